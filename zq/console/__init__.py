# SPDX-License-Identifier: Apache-2.0
"""The web console, a single-page application that uses only the public HTTP API."""
