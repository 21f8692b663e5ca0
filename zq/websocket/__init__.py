# SPDX-License-Identifier: Apache-2.0
"""WebSocket access to the queue service (contract 14).

Each action becomes one request to the WSGI application, which enforces authentication, policy, rate limits and quotas.
This package translates frames and limits connections:

- ``connections`` accepts connections, and receives and sends frames.
- ``session`` authenticates the client and handles its frames.
- ``actions`` translates actions into requests, and responses into answers.
- ``pushes`` sends the messages of subscriptions.
"""
