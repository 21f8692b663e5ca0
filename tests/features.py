# SPDX-License-Identifier: Apache-2.0
"""The features of an application under test."""

from zq.core import Broker
from zq.figures.feature import FiguresFeature
from zq.http.features import Feature
from zq.serving.features import described_features
from zq.sqs.feature import SqsFeature, sqs_feature
from zq.sqs.settings import SqsOptions

# The additions of all features to the rules of a broker.
EXTENSIONS = [feature.extension for feature in described_features()]
# The options of SQS without authentication.
UNSIGNED = SqsOptions(enabled=True, auth="none")


def sqs(broker: Broker, options: SqsOptions = UNSIGNED) -> SqsFeature:
    """SQS on a broker."""
    return sqs_feature(options, broker)


def features(broker: Broker, figures: FiguresFeature | None = None) -> list[Feature]:
    """Every feature with its defaults, but figures are off."""
    return [figures or FiguresFeature(None), sqs(broker, SqsOptions())]
