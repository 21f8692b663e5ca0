# SPDX-License-Identifier: Apache-2.0
"""The features of a server. To ship zq without a feature, delete its folder and its lines here.

``python -m zq.serving.features`` prints the OpenAPI document of a server with every feature and default.
"""

import json
import sys
from collections.abc import Callable
from typing import Final

from zq.clock import Clock
from zq.console.feature import ConsoleFeature
from zq.console.settings import SECTION as CONSOLE
from zq.core import Broker
from zq.core.followers import Followers
from zq.events import Observers
from zq.figures.exchange import About
from zq.figures.feature import FiguresFeature, figures_feature
from zq.http.features import Feature
from zq.http.openapi import document
from zq.limits import Limits
from zq.model import Seconds
from zq.serving.settings import Configuration, Settings
from zq.sqs.feature import SqsFeature, sqs_feature
from zq.sqs.settings import SECTION as SQS
from zq.storage.api import Storage
from zq.subscriptions.documents import postponed as subscriptions_postponed
from zq.subscriptions.feature import DescribedSubscriptions as subscriptions_described
from zq.subscriptions.feature import subscriptions_feature
from zq.subscriptions.followers import Subscribers
from zq.subscriptions.settings import SECTION as SUBSCRIPTIONS
from zq.websocket.feature import WebSocketFeature
from zq.websocket.pushes import NO_SUBSCRIPTIONS
from zq.websocket.settings import SECTION as WEBSOCKET

# For each feature, a function that moves the expiries in its documents: see ``postponed``.
POSTPONEMENTS: Final[list[Callable[[str, bytes, Seconds], bytes | None]]] = [
    subscriptions_postponed,
]


def followers_of(chosen: Settings, storage: Storage, clock: Clock) -> Followers:
    """Return the followers of queues and topics."""
    followers = Followers()
    followers = Subscribers(storage, clock, chosen.of(SUBSCRIPTIONS).keep)
    return followers


def features_of(configuration: Configuration, core: Broker, observers: Observers, strategy: object) -> list[Feature]:
    """Return the features of a server with this configuration. ``strategy``: that of authentication."""
    chosen, share = configuration.current, lambda: configuration.current.share
    store = chosen.uri.partition(":")[0]
    figures_about = About(store, chosen.engine, chosen.port, chosen.max_waiters, chosen.max_streams)
    subscriptions_options, alone = chosen.of(SUBSCRIPTIONS), not chosen.shared_store
    subscriptions = subscriptions_feature(subscriptions_options, core, share, strategy, alone)
    websocket_subscriptions = NO_SUBSCRIPTIONS
    websocket_subscriptions = subscriptions.connections
    features: list[Feature] = [
        subscriptions,
        ConsoleFeature(chosen.of(CONSOLE)),
        WebSocketFeature(
            chosen.of(WEBSOCKET),
            chosen.auth.strategy,
            chosen.behind_proxy,
            chosen.limits.max_messages_post_size,
            core.waiters.clock,
            core.storage.queues,
            websocket_subscriptions,
        ),
    ]
    has_page = any(feature.page is not None for feature in features)
    return [
        figures_feature(has_page, core, observers, figures_about),
        sqs_feature(chosen.of(SQS), core, chosen.behind_proxy),
        *features,
    ]


def described_features() -> list[Feature]:
    """Return features that describe their operations and serve nothing."""
    return [
        FiguresFeature(None),
        SqsFeature(None),
        subscriptions_described(),
    ]


def postponed(kind: str, stored: bytes, seconds: Seconds) -> bytes | None:
    """Return a feature's document with its expiries later by ``seconds``; None for a document without expiries."""
    for postpone in POSTPONEMENTS:
        if (document := postpone(kind, stored, seconds)) is not None:
            return document
    return None


if __name__ == "__main__":
    json.dump(document(Limits(), pools=True, features=described_features()), sys.stdout, indent=1)
    sys.stdout.write("\n")
