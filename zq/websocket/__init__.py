# SPDX-License-Identifier: Apache-2.0
"""WebSocket access to the queue service (contract 14).

Each action is executed as a request to the WSGI application, which enforces authentication, policy, rate limits and
quotas. The modules of this package:

- ``connections`` accepts and limits connections, and receives and sends frames.
- ``session`` authenticates the client, executes the requests in this process and answers frames.
- ``actions`` converts actions to requests, and responses to answers.
- ``frames`` decodes, validates and encodes frames.
- ``pushes`` sends the messages of subscriptions.

An answer is the frame that the server sends in response to a client's frame.
"""
