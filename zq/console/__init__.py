# SPDX-License-Identifier: Apache-2.0
"""The web console as a feature of the server.

The console is a single-page application that uses only the public HTTP API. ``static`` has its files, and the modules
of this package serve them.
"""
