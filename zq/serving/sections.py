# SPDX-License-Identifier: Apache-2.0
"""The configuration sections of features; see ``features.py``."""

from typing import Any, Final

from zq.console.settings import SECTION as CONSOLE
from zq.http.features import Section
from zq.sqs.settings import SECTION as SQS
from zq.subscriptions.settings import SECTION as SUBSCRIPTIONS
from zq.tracing.settings import SECTION as TRACING
from zq.websocket.settings import SECTION as WEBSOCKET

SECTIONS: Final[list[Section[Any]]] = [
    CONSOLE,
    SQS,
    SUBSCRIPTIONS,
    TRACING,
    WEBSOCKET,
]
