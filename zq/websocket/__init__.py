# SPDX-License-Identifier: Apache-2.0
"""The queue service over WebSocket (contract 14), as a feature of the server.

Each action is one request to the WSGI application, which checks credentials, rules, scopes, rates and limits. This
package translates frames and bounds connections. ``connections`` accepts connections and moves frames, ``session``
answers them, ``actions`` translates actions into requests, ``pushes`` sends messages of subscriptions.
"""
