# SPDX-License-Identifier: Apache-2.0
"""The web console, as the browser renders it and as the server serves it."""
