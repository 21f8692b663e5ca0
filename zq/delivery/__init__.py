# SPDX-License-Identifier: Apache-2.0
"""Delivers to subscribers what was posted and published: webhooks and mail (contract 9.7 to 9.11).

What is to be delivered are messages in queues of zq's own: claimed, released with a delay when an attempt fails, moved
to a queue of their own when none is left. So a worker that is killed loses nothing, and any number may work.
"""
