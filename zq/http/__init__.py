# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface: request parsing, calls of use cases, and rendering of answers."""
