# SPDX-License-Identifier: Apache-2.0
"""The queue service over WebSocket (contract 14): each action is one request to the same application as HTTP's, which
judges credentials, rules, scopes, rates and limits; this package translates frames, and bounds connections."""
