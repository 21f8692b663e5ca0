# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs Zaqar's own WSGI tests, unchanged, on zq, in Zaqar's environment.

Zaqar's ``Bootstrap`` creates zq's application instead of Zaqar's, in the tests' process and on a new store for each
test. ``ZQ_SUITE_STORE`` names the store: ``memory:``, ``rocksdb:``, or the URI of a Redis database, which is emptied.

``X-Tenant-Id`` is dropped: the tests send it with a different ``X-Project-ID``, which zq rejects (decision 0047). If a
test patches Zaqar's objects, the replacements here apply the patch's effect to zq.
"""

import os
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import redis
import zaqar.storage.mongodb as zaqar_mongodb
from zaqar import bootstrap
from zaqar.conf import drivers_management_store_mongodb, pooling_catalog
from zaqar.notification.notifier import NotifierDriver

from tests.http.stores import BrokenStore, down
from zq.auth import create_strategy
from zq.clock import StoreClock
from zq.errors import Conflict
from zq.events import NO_EVENTS
from zq.http.app import create_app
from zq.http.features import Feature
from zq.model.identity import AuthOptions, SignedUrlOptions
from zq.model.pools import POOL, each
from zq.pools.catalogue import Pools
from zq.pools.feature import PoolsFeature
from zq.serving.application import make_broker
from zq.serving.features import command_features
from zq.serving.settings import Configuration
from zq.storage import connect
from zq.storage.pooling import PooledStorage
from zq.subscriptions.fan_out import Subscribers
from zq.subscriptions.feature import SubscriptionsFeature, UseCases
from zq.subscriptions.model import parse_delivery_queue
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer

STORE: Final = os.environ.get("ZQ_SUITE_STORE", "memory:")
# Hosts of the pools that the tests create.
HOSTS: Final = ("127.0.0.1:27017", "127.0.0.1:6379", "localhost:27017", "localhost")
# Options that Zaqar's tests read from their configuration files, or rely on.
OPTIONS: Final = (
    "max_queue_metadata",
    "max_messages_post_size",
    "max_messages_per_page",
    "max_messages_per_claim_or_pop",
)

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def _is_patched(target: object) -> bool:
    return isinstance(target, mock.Mock)


class Messages:
    """The messages of a store, with confirmations recorded for ``NotifierDriver`` and patched rejections applied."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._messages, verb)

    def post(self, queue: Any, *args: Any, **kwargs: Any) -> Any:
        if parse_delivery_queue(queue) and _is_patched(NotifierDriver.send_confirm_notification):
            NotifierDriver.send_confirm_notification()
        return self._messages.post(queue, *args, **kwargs)

    def delete(self, queue: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
        if len(ids) == 1 and _is_patched(zaqar_mongodb.messages.MessageController.delete):
            raise Conflict("A test has patched the deletion of one message.")
        return self._messages.delete(queue, ids, *args, **kwargs)


class Store:
    """A store that uses ``Messages``."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.messages = Messages(storage.messages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class Bootstrap:
    """The replacement of Zaqar's class with this name."""

    def __init__(self, conf: Any) -> None:
        for section in (drivers_management_store_mongodb, pooling_catalog):
            conf.register_opts(section.ALL_OPTS, group=section.GROUP_NAME)
        self._conf = conf
        self._closing = ExitStack()
        self._faulty = conf.drivers.message_store == "faulty"
        self._store = BrokenStore(down) if self._faulty else self._open(STORE)
        self._known: tuple[object, ...] = ()
        self._app: Wsgi
        lists = SimpleNamespace(list=None)
        self.storage = SimpleNamespace(close=self._closing.close, _storage=mock.MagicMock())
        self.storage.queue_controller = self.storage.topic_controller = self.storage.subscription_controller = lists
        self._lists = lists
        drops = SimpleNamespace(drop_all=self._drop_pools)
        self.control = mock.MagicMock(pools_controller=drops)
        defaults = SimpleNamespace(message_ttl=3600, claim_ttl=300)
        self.transport = SimpleNamespace(app=self._call, _defaults=defaults)

    def _open(self, uri: str) -> Any:
        options = {}
        if uri == "rocksdb:":
            folder = tempfile.mkdtemp(prefix="zaqar-suite-")
            self._closing.callback(shutil.rmtree, folder)
            uri, options = f"rocksdb://{folder}/store", {"sync": "never"}
        elif uri.startswith("redis:"):
            with redis.Redis.from_url(uri) as client:
                client.flushdb()
        storage = connect(uri, options)
        self._closing.callback(storage.close)
        return storage

    def _drop_pools(self) -> None:
        documents, now = self._store.documents, self._store.now()
        for pool in list(each(documents, POOL, now)):
            documents.delete(pool.ref, now)

    def _call(self, env: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request with the options that the test has set."""
        env.pop("HTTP_X_TENANT_ID", None)
        transport = self._conf.transport
        options = {name: getattr(transport, name, None) for name in OPTIONS}
        strict = getattr(transport, "client_id_uuid_safe", "strict") == "strict"
        deletes = bool(getattr(transport, "message_delete_with_claim_id", False))
        known = (tuple(options.items()), strict, deletes, _is_patched(NotifierDriver.send_confirm_notification))
        if known != self._known:
            self._known, self._app = known, self._made(options, strict, deletes)
        if _is_patched(self._lists.list):
            return self._made(options, strict, deletes, BrokenStore(down))(env, start)
        return self._app(env, start)

    def _made(self, options: dict[str, object], strict: bool, deletes: bool, broken: Any = None) -> Wsgi:
        given = {f"OS_TRANSPORT__{name.upper()}": str(value) for name, value in options.items() if value is not None}
        given |= {"OS_TRANSPORT__MESSAGE_DELETE_WITH_CLAIM_ID": str(deletes), **KEYS}
        with mock.patch.dict(os.environ, given):
            chosen = Configuration().current
        storage = broken or (self._store if self._faulty else Store(self._store))
        clock = StoreClock(storage.now)
        pools, share = None, SignedUrlOptions(secret_key="test_key")
        if self._conf.pooling and not isinstance(storage, BrokenStore):
            virtual = self._conf["pooling:catalog"].enable_virtual_pool
            pools = Pools(storage.documents, clock, chosen.limits, lambda _uri: None, lambda: HOSTS, "mongodb://own/zq")
            storage = Store(PooledStorage(storage, lambda _uri, _expiry: self._open("memory:"), virtual))
        confirms = _is_patched(NotifierDriver.send_confirm_notification)
        policy = SubscriptionPolicy(confirm=confirms, sealer=SecretSealer(lambda: share))
        broker = make_broker(chosen, storage, clock, NO_EVENTS, Subscribers(storage, clock, policy.keep))
        features: list[Feature] = [SubscriptionsFeature(UseCases(broker, policy)), *command_features(broker)]
        features += [] if pools is None else [PoolsFeature(pools)]
        guard = "token" if self._conf.auth_strategy else ""
        return create_app(
            broker,
            strict_client_id=strict,
            admin_mode=True,
            trusts_network=True,
            allowed_hosts=lambda: ("*",),
            features=features,
            share=lambda: share,
            strategy=create_strategy(lambda: AuthOptions(strategy=guard), storage.documents, clock) if guard else None,
        )


def _keys() -> dict[str, str]:
    """Create a key file for the tests of encryption."""
    path = Path(tempfile.mkdtemp(prefix="zaqar-suite-")) / "keys"
    path.write_text(f"a {b64encode(bytes(32)).decode()}\n")
    path.chmod(0o600)
    return {"OS_TRANSPORT__MESSAGE_ENCRYPTION_KEY_FILE": str(path)}


KEYS: Final = _keys()
bootstrap.Bootstrap = Bootstrap
