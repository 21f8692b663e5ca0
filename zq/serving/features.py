# SPDX-License-Identifier: Apache-2.0
"""The features of a server. To ship zq without one, delete its folder and its lines here.

``python -m zq.serving.features`` prints the OpenAPI document of a server with every feature and default.
"""

import json
import sys

from zq.console.feature import ConsoleFeature
from zq.console.settings import SECTION as CONSOLE
from zq.core import Broker
from zq.events import Observers
from zq.figures.exchange import About
from zq.figures.feature import FiguresFeature, figures_feature
from zq.http.features import Feature
from zq.http.openapi import document
from zq.limits import Limits
from zq.serving.settings import Settings
from zq.websocket.feature import WebSocketFeature
from zq.websocket.settings import SECTION as WEBSOCKET


def features_of(chosen: Settings, core: Broker, observers: Observers) -> list[Feature]:
    """Return the features of a server with these settings."""
    store = chosen.uri.partition(":")[0]
    figures_about = About(store, chosen.engine, chosen.port, chosen.max_waiters, chosen.max_streams)
    features: list[Feature] = [
        ConsoleFeature(chosen.of(CONSOLE)),
        WebSocketFeature(
            chosen.of(WEBSOCKET),
            chosen.auth.strategy,
            chosen.behind_proxy,
            chosen.limits.max_messages_post_size,
            core.waiters.clock,
            core.storage.queues,
            core.pushes,
        ),
    ]
    has_page = any(feature.page is not None for feature in features)
    return [
        figures_feature(has_page, core, observers, figures_about),
        *features,
    ]


def described_features() -> list[Feature]:
    """Return features that describe their operations and serve nothing."""
    return [
        FiguresFeature(None),
    ]


if __name__ == "__main__":
    json.dump(document(Limits(), pools=True, features=described_features()), sys.stdout, indent=1)
    sys.stdout.write("\n")
