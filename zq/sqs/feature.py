# SPDX-License-Identifier: Apache-2.0
"""The SQS server feature: the SQS API and access key administration."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from zq.auth.master_keys import MasterKeys, read_keys
from zq.core import Broker
from zq.core.waiting import Waiters
from zq.http.features import Feature, Json
from zq.model.limits import Limits
from zq.sqs import openapi
from zq.sqs.accounts import Accounts
from zq.sqs.authentication import SignedCallers, UnauthenticatedCallers
from zq.sqs.call import UseCases
from zq.sqs.cooldowns import Cooldowns
from zq.sqs.endpoint import Endpoint
from zq.sqs.extension import EXTENSION
from zq.sqs.faults import add_handlers
from zq.sqs.key_resources import PATH, SqsKeyCollection, SqsKeyItem
from zq.sqs.keys import SqsKeyLookup, SqsKeys
from zq.sqs.messaging import Messaging
from zq.sqs.move_tasks import MoveTasks
from zq.sqs.recognition import ROUTE, Recognition
from zq.sqs.settings import KEY_FILE, SqsOptions

if TYPE_CHECKING:
    from zq.http.application import App


class Service(Struct, frozen=True):
    """The components of the SQS API, created only if the protocol is enabled."""

    options: SqsOptions
    use_cases: UseCases
    waiters: Waiters
    authenticate: SignedCallers | UnauthenticatedCallers


class SqsFeature(Feature):
    """The routes of the SQS API and of access key administration."""

    path_parameters = openapi.PATH_PARAMETERS
    extension = EXTENSION

    def __init__(self, keys: SqsKeys, service: Service | None = None, master_keys: str = "") -> None:
        """Create the feature. Without ``service``, the protocol is disabled, but keys can be managed."""
        self._keys = keys
        self._service = service
        self.files = (MasterKeys(master_keys, keys.replace, KEY_FILE),)
        if service is not None:
            self.middleware = (Recognition(),)
            self.credentials = service.authenticate

    def operations(self, _limits: Limits) -> Mapping[str, Mapping[str, Json]]:
        return {"administration": openapi.operations()}

    def schemas(self, _limits: Limits) -> Mapping[str, Json]:
        return openapi.schemas()

    def add_routes(self, app: "App") -> None:
        app.add_route(PATH, SqsKeyCollection(self._keys))
        app.add_route(f"{PATH}/{{key}}", SqsKeyItem(self._keys))
        if (service := self._service) is not None:
            app.add_route(
                ROUTE,
                Endpoint(service.use_cases, service.waiters, service.options, service.authenticate, app.authorization),
            )
            add_handlers(app)

    def resume(self) -> None:
        if self._service is not None:
            self._service.use_cases.move_tasks.resume()


def sqs_feature(options: SqsOptions, core: Broker, behind_proxy: bool = False) -> SqsFeature:
    """Create the SQS feature. Raises ``StartRefused`` if the master key file cannot be used."""
    keys = SqsKeys(core.storage.documents, core.clock, read_keys(options.key_file, KEY_FILE))
    if not options.enabled:
        return SqsFeature(keys, master_keys=options.key_file)
    authenticate: SignedCallers | UnauthenticatedCallers
    if options.auth == "sigv4":
        authenticate = SignedCallers(SqsKeyLookup(keys, core.clock), core.clock.now, behind_proxy)
    else:
        authenticate = UnauthenticatedCallers(options)
    return SqsFeature(keys, Service(options, use_cases(core), core.waiters, authenticate), options.key_file)


def use_cases(core: Broker) -> UseCases:
    """Create the SQS use cases from the core's components."""
    storage, clock, rules_cache, events = core.storage, core.clock, core.rules_cache, core.events
    return UseCases(
        queues=core.queues,
        find=storage.queues.get,
        messaging=Messaging(
            storage, clock, rules_cache, core.messages, core.claims, events, core.sealing, core.checksum
        ),
        move_tasks=MoveTasks(storage, clock, rules_cache, events, core.modes),
        cooldowns=Cooldowns(storage.documents, clock, core.queues),
        accounts=Accounts(storage, clock),
        quotas=core.quotas,
        clock=clock,
        max_message_ttl=core.limits.max_message_ttl,
        max_wait=core.limits.max_wait,
    )
