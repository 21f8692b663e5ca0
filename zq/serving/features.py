# SPDX-License-Identifier: Apache-2.0
"""The optional features of a server, and the functions that create them.

To build zq without a feature, delete its folder, its lines in this module and its lines in ``sections.py``. For SQS,
also delete the option in ``zq.testing``. A variable has two assignments if the second one belongs to a feature. Other
modules may still contain reserved names of the feature, such as a policy rule or a metadata key. They have no effect.

``python -m zq.serving.features`` prints the OpenAPI document of a server with all features and default settings.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Final

from zq.administration.feature import AdministrationFeature
from zq.clock import Clock, StoreClock
from zq.console.feature import ConsoleFeature
from zq.console.settings import SECTION as CONSOLE
from zq.core import Broker
from zq.core.extensions import Extension
from zq.core.followers import Followers
from zq.events import Events, Observers
from zq.figures.exchange import KIND as FIGURES_RECORD
from zq.figures.exchange import ProcessInfo
from zq.figures.feature import FiguresFeature, figures_feature
from zq.http.commands import Command
from zq.http.features import Feature
from zq.http.openapi import document
from zq.model import Seconds
from zq.model.limits import Limits
from zq.model.pools import PROCESS as POOLS_RECORD
from zq.pools.catalogue import Pools
from zq.pools.feature import PoolsFeature, pools_mover_feature
from zq.pools.moves import Moves as PoolsMoves
from zq.serving.level_watch import KIND as PROCESS_RECORD
from zq.serving.level_watch import read_processes
from zq.serving.settings import Configuration, Settings
from zq.sqs.extension import EXTENSION as SQS_EXTENSION
from zq.sqs.feature import sqs_feature
from zq.sqs.key_command import COMMAND as SQS_KEY_COMMAND
from zq.sqs.settings import SECTION as SQS
from zq.sqs.settings import SqsOptions
from zq.storage import connect
from zq.storage.api import DocumentController, Storage
from zq.storage.pooling import PooledStorage
from zq.subscriptions.documents import postpone as subscriptions_postponed
from zq.subscriptions.fan_out import Subscribers
from zq.subscriptions.feature import SubscriptionsFeature, UseCases, subscriptions_feature
from zq.subscriptions.settings import SECTION as SUBSCRIPTIONS
from zq.tracing.feature import tracing_feature, tracing_observers
from zq.tracing.settings import SECTION as TRACING
from zq.websocket.feature import WebSocketFeature
from zq.websocket.pushes import NO_SUBSCRIPTIONS
from zq.websocket.settings import SECTION as WEBSOCKET

# Functions of features that postpone the expiry times in their documents; see ``postpone_expiry``.
POSTPONEMENTS: Final[list[Callable[[str, bytes, Seconds], bytes | None]]] = [
    subscriptions_postponed,
]
# Extensions of the core's rules that features provide.
EXTENSIONS: Final[list[Extension]] = [
    SQS_EXTENSION,
]
# Kinds of the deployment's documents in which running servers report their state.
SERVER_RECORDS: Final[list[str]] = [
    PROCESS_RECORD,
    FIGURES_RECORD,
    POOLS_RECORD,
]
# Commands of ``zq-server`` that administer features' credentials.
COMMANDS: Final[list[Command]] = [
    SQS_KEY_COMMAND,
]


def create_followers(chosen: Settings, storage: Storage, clock: Clock) -> Followers:
    followers = Followers()
    followers = Subscribers(storage, clock, chosen.of(SUBSCRIPTIONS).keep)
    return followers


def create_store_observers(chosen: Settings) -> list[Events]:
    """Create the features' observers of the store's operations."""
    observers: list[Events] = []
    observers = tracing_observers(chosen.of(TRACING))
    return observers


def create_features(
    configuration: Configuration,
    core: Broker,
    observers: Observers,
    strategy: object,
    documents: DocumentController,
    probe: Callable[[str], None],
    pooled: PooledStorage | None = None,
) -> list[Feature]:
    """Create the features of a server.

    ``probe`` raises ``StartRefused`` if the store at a URI is not usable. ``pooled`` is the store if pooling is on.
    """
    chosen, share = configuration.current, lambda: configuration.current.share
    store = chosen.storage.uri.partition(":")[0]
    figures_about = ProcessInfo(store, chosen.server.engine, chosen.server.port, chosen.max_waiters, chosen.max_streams)
    subscriptions_options, alone = chosen.of(SUBSCRIPTIONS), not chosen.shared_store
    subscriptions = subscriptions_feature(subscriptions_options, core, share, strategy, alone)
    websocket_subscriptions = NO_SUBSCRIPTIONS
    websocket_subscriptions = subscriptions.connections
    features: list[Feature] = [
        *command_features(core, chosen),
        subscriptions,
        ConsoleFeature(chosen.of(CONSOLE)),
        WebSocketFeature(
            chosen.of(WEBSOCKET),
            chosen.auth.strategy,
            chosen.server.behind_proxy,
            chosen.limits.max_messages_post_size,
            core.waiters.clock,
            core.storage.queues,
            websocket_subscriptions,
        ),
        tracing_feature(chosen.of(TRACING), observers),
    ]
    pools_moves: PoolsMoves | None = None
    if pooled is not None and chosen.pooling is not None and chosen.pooling.moves:
        now, catalogue = pooled.now, pooled.catalogue
        pools_mover = pools_mover_feature(
            pooled.relocation, catalogue, core, lambda: read_processes(catalogue.documents, now())
        )
        pools_moves = pools_mover.moves
        features += [pools_mover]
    if chosen.general.admin_mode and chosen.pooling is not None:

        def allowed() -> Sequence[str]:
            pooling = configuration.current.pooling
            return pooling.hosts if pooling else ()

        pools = Pools(documents, core.waiters.clock, chosen.limits, probe, allowed, chosen.storage.uri)
        features += [PoolsFeature(pools, pools_moves)]
    has_page = any(feature.page is not None for feature in features)
    return [
        figures_feature(
            has_page,
            observers,
            figures_about,
            core.storage,
            core.waiters.clock,
            core.queues,
            core.topics,
            core.quotas,
        ),
        *features,
    ]


def command_features(core: Broker, chosen: Settings | None = None) -> list[Feature]:
    """Create the features whose routes the ``zq-server`` commands call.

    Without ``chosen``, the features have the default options.
    """
    return [
        AdministrationFeature(core.quotas, core.removal, core.sealing.keys),
        sqs_feature(chosen.of(SQS) if chosen else SqsOptions(), core, bool(chosen and chosen.server.behind_proxy)),
    ]


def described_features(core: Broker) -> list[Feature]:
    """Create all features that have operations in the OpenAPI document."""
    unpooled = PooledStorage(core.storage, lambda uri, _expiry: connect(uri))
    return [
        *command_features(core),
        FiguresFeature(None),
        PoolsFeature(
            Pools(core.storage.documents, core.waiters.clock, core.limits, lambda _uri: None, list),
            PoolsMoves(unpooled.relocation, core.storage, core.waiters.clock, core.limits, lambda: None),
        ),
        SubscriptionsFeature(UseCases(core)),
    ]


def postpone_expiry(kind: str, stored: bytes, seconds: Seconds) -> bytes | None:
    """Return a feature's document with all its expiry times postponed by ``seconds``.

    Return ``None`` if documents of this ``kind`` contain no expiry times.
    """
    for postpone in POSTPONEMENTS:
        if (document := postpone(kind, stored, seconds)) is not None:
            return document
    return None


if __name__ == "__main__":
    empty = connect("memory:")
    features = described_features(Broker(empty, StoreClock(empty.now)))
    json.dump(document(Limits(), features=features), sys.stdout, indent=1)
    sys.stdout.write("\n")
