# SPDX-License-Identifier: Apache-2.0
"""The queue engine over any ordered key-value store; it knows queues but no vendor.

- ``store`` is the protocol of a store, and ``layout`` its keys and values.
- ``handle`` opens the store for every verb, and ``registry`` has the queues in memory.
- ``changes`` writes messages, ``scans`` finds them, and ``hints`` accelerates the search.
- ``logs`` has the logs of topics.

Locks are acquired in the order stripes, queues, registry. A log's lock is never combined with another lock.
"""
