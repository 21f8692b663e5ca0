# SPDX-License-Identifier: Apache-2.0
"""The server feature for subscriptions: use cases, routes and the delivery worker."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import falcon

from zq.auth.signatures import Signatures
from zq.core import Broker
from zq.core.quotas import NO_QUOTAS
from zq.errors import Invalid
from zq.http.features import Feature, Json
from zq.model.identity import SignedUrlOptions
from zq.model.limits import Limits
from zq.subscriptions import openapi, resources
from zq.subscriptions.connections import ConnectionSubscriptions
from zq.subscriptions.deliveries import Deliveries
from zq.subscriptions.delivery.running import create_target_policy, create_worker
from zq.subscriptions.delivery.targets import AddressCheck
from zq.subscriptions.delivery.worker import DeliveryWorker
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.policy import DEFAULT_POLICY, SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer
from zq.subscriptions.settings import NotificationOptions
from zq.subscriptions.subscriptions import Subscriptions

if TYPE_CHECKING:
    from zq.subscriptions.trusts import Trusts

# Whether the extra ``delivery`` is installed.
CAN_DELIVER: Final = find_spec("aiohttp") is not None


class UseCases:
    """All use cases of subscriptions and deliveries."""

    def __init__(self, core: Broker, policy: SubscriptionPolicy = DEFAULT_POLICY) -> None:
        storage, clock, limits, sealing = core.storage, core.waiters.clock, core.limits, core.sealing
        self.stored = stored = SubscriptionDocuments(storage, clock)
        self.subscriptions = Subscriptions(
            *(storage, clock, limits, stored, core.quotas or NO_QUOTAS, core.queue_creation, core.topic_creation),
            policy,
        )
        self.deliveries = Deliveries(storage, clock, limits, stored, policy, sealing)
        self.connections = ConnectionSubscriptions(
            storage.claims, clock, sealing, stored, self.subscriptions, core.modes
        )


class SubscriptionsFeature(Feature):
    """The feature for subscriptions. It has the routes, and the delivery worker if this process runs a worker."""

    tags: Mapping[str, str] = {"subscriptions": "Subscriptions to queues and topics, by webhook and mail."}

    def __init__(self, use_cases: UseCases, deliverer: DeliveryWorker | None = None) -> None:
        self._use_cases = use_cases
        self._deliverer = deliverer
        self.connections = use_cases.connections
        self.listeners = [use_cases.connections.wake, *([deliverer.notify] if deliverer else [])]

    def operations(self, limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        return {"subscriptions": openapi.subscriptions(limits)}

    def schemas(self, _limits: Limits) -> Mapping[str, Json]:
        return openapi.schemas()

    def add_routes(self, app: "falcon.App[Any, Any]") -> None:
        resources.add_routes(app, self._use_cases.subscriptions)
        resources.add_delivery_routes(app, self._use_cases.deliveries)

    def start(self) -> None:
        if self._deliverer is not None:
            self._deliverer.start()

    def stop(self) -> None:
        if self._deliverer is not None:
            self._deliverer.stop()


def subscriptions_feature(
    options: NotificationOptions, core: Broker, share: Callable[[], SignedUrlOptions], strategy: object, alone: bool
) -> SubscriptionsFeature:
    """Create the server feature for subscriptions.

    If the optional dependencies for deliveries are not installed, the server rejects all new subscriptions.

    Args:
        share: Returns the options of signed URLs.
        strategy: The authentication strategy.
        alone: Whether no other process uses the store.
    """
    if not CAN_DELIVER:
        return SubscriptionsFeature(UseCases(core, create_policy(options, share, check_address=_reject_subscriber)))
    trusts, storage, clock = create_trusts(options, strategy), core.storage, core.waiters.clock
    policy = create_policy(options, share, trusts, AddressCheck(create_target_policy(options)))
    deliverer = None
    if options.deliver:
        signatures = Signatures(share, storage.documents, clock)
        deliverer = create_worker(options, storage, clock, policy, core.sealing, signatures, alone, trusts)
    return SubscriptionsFeature(UseCases(core, policy), deliverer)


def create_policy(
    options: NotificationOptions,
    share: Callable[[], SignedUrlOptions],
    trusts: "Trusts | None" = None,
    check_address: Callable[[str], None] = DEFAULT_POLICY.check_address,
) -> SubscriptionPolicy:
    return SubscriptionPolicy(
        *(options.subscriber_types, options.default_subscription_ttl, options.require_confirmation, options.keep),
        sealer=SecretSealer(share),
        trusts=trusts or DEFAULT_POLICY.trusts,
        check_address=check_address,
    )


def create_trusts(options: NotificationOptions, strategy: object) -> "Trusts | None":
    """Create the Keystone trust client. Return None if the authentication strategy is not Keystone."""
    middleware, settings = getattr(strategy, "middleware", None), getattr(strategy, "options", None)
    if middleware is None or settings is None:
        return None
    from zq.subscriptions.trusts import Trusts

    return Trusts(middleware, settings, options.trust_http, options.trust_targets)


def _reject_subscriber(_subscriber: str) -> None:
    raise Invalid("Subscriptions are not available: the extra delivery is not installed on the server.")
