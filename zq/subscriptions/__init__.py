# SPDX-License-Identifier: Apache-2.0
"""Subscriptions to queues and topics, and the delivery of notifications by webhook and mail (contract 9).

A post to a queue with subscribers stores a notice of each message together with the messages. A delivery worker fans
the notices out to one hidden queue for each subscription, claims the deliveries there, and sends them. It releases a
delivery with a delay if an attempt fails, and moves it to a dead-letter queue after the last attempt. A killed worker
therefore loses no delivery, and any number of workers may share a store.
"""
