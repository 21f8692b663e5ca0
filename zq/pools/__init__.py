# SPDX-License-Identifier: Apache-2.0
"""The administration of pools and flavors (contract 11, 12), as a feature of the server.

Without this feature, a server with ``pooling`` still serves the queues in the pools of its catalogue.
"""
