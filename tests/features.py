# SPDX-License-Identifier: Apache-2.0
"""Brokers with features, for tests below the server's composition."""

from typing import Any

from zq.administration.feature import AdministrationFeature
from zq.clock import Clock
from zq.core import Broker
from zq.figures import Figures
from zq.figures.counting import Counts
from zq.serving.features import EXTENSIONS
from zq.sqs.feature import SqsFeature, sqs_feature
from zq.sqs.settings import SqsOptions
from zq.storage.api import Storage
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.fan_out import FanOut, Subscribers
from zq.subscriptions.feature import UseCases
from zq.subscriptions.policy import DEFAULT_POLICY, SubscriptionPolicy

# SQS options without authentication.
UNSIGNED = SqsOptions(enabled=True, auth="none")


def core_with_subscriptions(
    storage: Storage, clock: Clock, policy: SubscriptionPolicy = DEFAULT_POLICY, **options: Any
) -> tuple[Broker, UseCases]:
    """Return a broker whose queues and topics may have subscribers, and its use cases. ``options`` go to the broker."""
    followers = Subscribers(storage, clock, policy.keep)
    core = Broker(storage, clock, followers=followers, extensions=EXTENSIONS, **options)
    return core, UseCases(core, policy)


def fan_out_of(storage: Storage, clock: Clock, policy: SubscriptionPolicy = DEFAULT_POLICY) -> FanOut:
    """Return the fan-out of a delivery worker."""
    return FanOut(storage, clock, SubscriptionDocuments(storage, clock), policy)


def figures_of(core: Broker, counts: Counts) -> Figures:
    """Return the metrics of a broker whose events ``counts`` observes."""
    return Figures(core.storage, core.waiters.clock, core.queues, core.topics, core.quotas, counts)


def sqs(core: Broker, options: SqsOptions = UNSIGNED) -> SqsFeature:
    """Return the SQS feature of a broker, by default without authentication."""
    return sqs_feature(options, core)


def administration_of(core: Broker) -> AdministrationFeature:
    """Return the administration feature of a broker."""
    return AdministrationFeature(core.quotas, core.removal, core.sealing.keys)
