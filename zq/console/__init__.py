# SPDX-License-Identifier: Apache-2.0
"""The web console, a single-page application that uses only the public HTTP API.

The directory ``static`` contains the console's files, which the modules of this package serve.
"""
