# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to queues and topics, and delivery of notifications by webhook and mail (contract 9).

A post to a queue with subscribers stores a notice of each message in the same transaction. A delivery worker fans the
notices out to one hidden queue per subscription, claims the deliveries from there, and sends them. After a failed
attempt, the worker releases the delivery with a delay; after the last attempt, it moves it to a dead-letter queue.

Deliveries survive the crash of a worker, and any number of workers can share a store.
"""
