# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to queues and topics, and delivery of notifications by webhook and mail (contract section 9).

A post to a queue with subscribers stores a notice of each message in the same transaction. A delivery worker copies the
notices to one hidden queue per subscription. The worker then claims these deliveries and sends them. It releases a
failed delivery with a delay. After the last attempt, it moves the delivery to a dead-letter queue.

Deliveries survive the crash of a worker. Any number of workers can share a store.
"""
