# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface: parses requests, calls the use cases and renders answers. It contains no rules of queues."""
