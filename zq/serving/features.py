# SPDX-License-Identifier: Apache-2.0
"""The features of a server. To ship zq without one, delete its folder and its lines here.

``python -m zq.serving.features`` prints the OpenAPI document of a server with every feature and default.
"""

import json
import sys

from zq.console.settings import SECTION as CONSOLE
from zq.core import Broker
from zq.events import Observers
from zq.figures.exchange import About
from zq.figures.feature import FiguresFeature, figures_feature
from zq.http.features import Feature
from zq.http.openapi import document
from zq.limits import Limits
from zq.serving.settings import Settings
from zq.sqs.feature import SqsFeature, sqs_feature
from zq.sqs.settings import SECTION as SQS


def features_of(chosen: Settings, core: Broker, observers: Observers) -> list[Feature]:
    """Return the features of a server with these settings."""
    store = chosen.uri.partition(":")[0]
    figures_about = About(store, chosen.engine, chosen.port, chosen.max_waiters, chosen.max_streams)
    return [
        figures_feature(chosen.of(CONSOLE).enabled, core, observers, figures_about),
        sqs_feature(chosen.of(SQS), core, chosen.behind_proxy),
    ]


def described_features() -> list[Feature]:
    """Return features that describe their operations and serve nothing."""
    return [
        FiguresFeature(None),
        SqsFeature(None),
    ]


if __name__ == "__main__":
    json.dump(document(Limits(), pools=True, features=described_features()), sys.stdout, indent=1)
    sys.stdout.write("\n")
