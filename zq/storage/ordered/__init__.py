# SPDX-License-Identifier: Apache-2.0
"""The queue engine over any ordered key-value store.

- ``store`` has the protocol of a store, and ``layout`` its keys and values.
- ``handle`` provides the open store to every operation, and ``registry`` caches the state of each queue in memory.
- ``changes`` writes messages, ``scans`` finds them, and ``hints`` has caches that speed up the search.
- ``logs`` has the logs of topics.

In this package, a time of type ``int`` is a Unix time in milliseconds, and a time of type ``Seconds`` is a Unix time in
seconds.

A thread acquires locks in this order: striped locks, queue locks, the registry's lock. A thread that holds a log's lock
holds no other lock.
"""
