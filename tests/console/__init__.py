# SPDX-License-Identifier: Apache-2.0
"""The web console, as a browser shows it and as the server sends it."""
