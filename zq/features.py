# SPDX-License-Identifier: Apache-2.0
"""The features of a server. To ship zq without one, delete its folder and its lines here."""

from zq.broker import Broker
from zq.events import Observers
from zq.figures.exchange import About
from zq.figures.feature import FiguresFeature, figures_feature
from zq.http.features import Feature
from zq.settings import Settings


def features_of(chosen: Settings, core: Broker, observers: Observers) -> list[Feature]:
    """Return the features of a server with these settings."""
    store = chosen.uri.partition(":")[0]
    about = About(store, chosen.engine, chosen.port, chosen.max_waiters, chosen.max_streams)
    return [
        figures_feature(chosen.console.enabled, core, observers, about),
    ]


def described_features() -> list[Feature]:
    """Return features that describe their operations and serve nothing."""
    return [
        FiguresFeature(None),
    ]
