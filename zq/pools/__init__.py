# SPDX-License-Identifier: Apache-2.0
"""Administration of pools and flavors (contract 11, 12).

A server with ``pooling`` but without this feature still serves the queues in the pools of its catalogue.
"""
