# SPDX-License-Identifier: Apache-2.0
"""The queue engine over any ordered key-value store: it knows queues and no vendor.

``store`` is the protocol of a store, ``layout`` what lies in it, ``handle`` the way in for every verb, ``registry`` the
queues in memory, ``changes`` how messages are written, ``scans`` how they are found, ``hints`` what makes that fast,
``logs`` the logs of topics. Locks are taken in the order stripes, queues, registry; a log's lock is taken alone.
"""
