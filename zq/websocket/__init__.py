# SPDX-License-Identifier: Apache-2.0
"""WebSocket access to the queue service (contract section 14).

Each action is executed as a request to the WSGI application, which enforces authentication, policy, rate limits and
quotas. An answer is the frame that the server sends in response to a client's frame.
"""
