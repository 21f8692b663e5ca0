# SPDX-License-Identifier: Apache-2.0
"""The administration of pools and flavors (contract 11, 12), as a feature of the server.

Without it a server with ``pooling`` still serves the queues of the pools that its catalogue has.
"""
