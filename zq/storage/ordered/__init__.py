# SPDX-License-Identifier: Apache-2.0
"""The queue engine over any ordered key-value store, independent of the store's vendor.

- ``store`` is the protocol of a store, and ``layout`` its keys and values.
- ``handle`` provides the open store to every verb, and ``registry`` has the state of the queues in memory.
- ``changes`` writes messages, ``scans`` finds them, and ``hints`` makes the search faster.
- ``logs`` has the logs of topics.

A thread acquires locks in this order: striped locks, queue locks, the registry's lock. A log's lock is never combined
with another lock.
"""
