# SPDX-License-Identifier: Apache-2.0
"""Administration of pools and flavors (contract sections 11, 12).

A pool is a store that holds some of the queues. A flavor is a named set of pools for new queues.
"""
