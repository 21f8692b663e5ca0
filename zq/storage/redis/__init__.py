# SPDX-License-Identifier: Apache-2.0
"""The Redis driver, for Redis or Valkey: one server, a master behind Sentinels, or a cluster.

The folder ``lua`` contains the scripts that implement the operations. The main modules are:

- ``layout``: the keys;
- ``address``: parser for store URIs;
- ``network``: selection of the server for a key;
- ``connections``: connection pools;
- ``client``: sending of commands and scripts;
- ``store``: code that the controllers share;
- ``maintenance``: active expiry and metrics.

This module checks the server's version and configuration at start. In this package, a time of type ``int``, such as
``now``, is in milliseconds since the Unix epoch.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from zq.errors import StartRefused, Unavailable
from zq.model import LocatedMessage, QueueRef, Seconds
from zq.model.expiry import Expiry, Pace, Steps
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import browsing
from zq.storage.api import FALSE_FUTURE, Defaults, Storage
from zq.storage.options import RedisOptions
from zq.storage.redis import address, layout, network, scripts
from zq.storage.redis.address import Address
from zq.storage.redis.claims import ClaimController
from zq.storage.redis.client import Client, lacks_replicas
from zq.storage.redis.connections import Reply
from zq.storage.redis.documents import DocumentController
from zq.storage.redis.history import HistoryController
from zq.storage.redis.maintenance import ActiveExpiry, StoreStats
from zq.storage.redis.messages import MessageController, locate
from zq.storage.redis.notices import LogSubscriber, QueueSubscriber
from zq.storage.redis.parcels import ParcelController
from zq.storage.redis.queues import QueueController
from zq.storage.redis.store import Store
from zq.storage.redis.topics import TopicController
from zq.storage.redis.transactions import TransactionController

SWEPT = Expiry()


class RedisStorage(Defaults):
    """The Redis implementation of ``zq.storage.api.Storage``."""

    def __init__(self, client: Client, expiry: Expiry, database: int) -> None:
        self._client = client
        self._expiry = expiry
        self._store = store = Store(client)
        self._active_expiry = ActiveExpiry(store)
        self._figures = StoreStats(store)
        self._follower = LogSubscriber(client.network, database)
        self._listener: QueueSubscriber | None = None
        self.queues = QueueController(store)
        self.messages = MessageController(store)
        self.claims = ClaimController(store)
        self.history = HistoryController(store)
        self.transactions = TransactionController(store)
        self.topics = TopicController(store, self._follower)
        self.documents = DocumentController(store)
        self.parcels = ParcelController(store, self)

    def now(self) -> Seconds:
        return self._clock(scripts.CLOCK)

    def clock_lead(self) -> Seconds:
        return 0.0

    def ping(self) -> None:
        self._clock(scripts.PING)

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        self._expiry = expiry or self._expiry
        return self._active_expiry.sweep(layout.ms(now), pace or Steps()) if self._expiry.sweep else 0

    def usage(self, project: str, now: Seconds) -> Usage | None:
        key = layout.keys(layout.whole(project)).usage
        messages, size = self._client.command(key, b"HMGET", key, b"messages", b"bytes")
        return Usage(int(messages or 0), int(size or 0))

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._figures.depths(layout.ms(now), queues, most)

    def depth(self, queue: QueueRef, now: Seconds, most: int) -> Depth:
        return self._figures.depth(queue, layout.ms(now), most)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        for queues in browsing.pages(self.queues, project):
            if located := locate(self._store, queues, message, layout.ms(now)):
                return located
        return browsing.find_latest(self, project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._figures.measures(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        if self._listener is None:
            self._listener = QueueSubscriber(self._client.network, listener)
        else:
            self._listener.set_listener(listener)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._follower.close()
        self._client.close()

    def _clock(self, script: scripts.Script) -> Seconds:
        return float(self._client.run(script, (layout.CLOCK_KEY,), b"%d" % (FALSE_FUTURE * 1_000_000))) / 1_000_000


def connect(uri: str, expiry: Expiry = SWEPT, **options: Any) -> Storage:
    """Open the store at a URI.

    Args:
        uri: Store URI, in one of the forms that ``zq.storage.redis.address`` lists.
        expiry: Settings for the removal of expired data.
        options: Fields of ``RedisOptions``.

    Raises:
        StartRefused: The URI or the server is unsuitable. Retries do not help.
        Unavailable: The server is unavailable. Retries may help.
    """
    chosen = RedisOptions(**options)
    timeout, wait_replicas = chosen.timeout, chosen.wait_replicas
    if timeout <= 0 or wait_replicas < 0:
        raise StartRefused("[storage:redis] timeout must be greater than 0, and wait_replicas must be 0 or greater.")
    where = address.parse(uri)
    client = Client(network.reach(where, timeout), timeout, wait_replicas)
    try:
        _check(client, where, wait_replicas)
        return RedisStorage(client, expiry, where.db)
    except BaseException:
        client.close()
        raise


LOG: Final = logging.getLogger(__name__)
OLDEST: Final = (7, 0)


def _check(client: Client, address: Address, wait_replicas: int = 0) -> None:
    reply = _answer(lambda: client.command(layout.VERSION_KEY, b"INFO"), address)
    facts = dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)
    _check_server(facts, address)
    _check_eviction(facts, address)
    if address.master and not wait_replicas and BOUND not in facts:
        LOG.warning(UNBOUND, address.name)
    number = b"%d" % layout.VERSION
    _check_layout(client, address)
    _answer(lambda: client.command(layout.VERSION_KEY, b"SET", layout.VERSION_KEY, number, b"NX"), address)
    _answer(lambda: client.command(layout.VERSION_KEY, b"PUBLISH", layout.READY, b""), address)
    _answer(lambda: client.command(layout.FEED, b"SPUBLISH", layout.FEED, b""), address)
    _answer(lambda: client.try_channel(layout.FEED), address)
    _check_layout(client, address)


def _check_layout(client: Client, address: Address) -> None:
    """Raise ``StartRefused`` if the store has another layout. An empty store has no layout number yet."""
    found = _answer(lambda: client.command(layout.VERSION_KEY, b"GET", layout.VERSION_KEY), address)
    if found not in (None, b"%d" % layout.VERSION):
        raise StartRefused(
            f"The store at {address.name} has layout {found.decode(errors='replace')}, but this version of "
            f"zq requires {layout.VERSION}. Use the version of zq that wrote the store, or another database."
        )


def _check_server(facts: dict[str, str], address: Address) -> None:
    version = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise StartRefused(
            f"The server at {address.name} is Redis {version or 'of an unknown version'}, but zq needs Redis 7.0 or "
            "newer, or Valkey."
        )
    if facts.get("cluster_enabled") == "1" and not address.cluster:
        raise StartRefused(f"The server at {address.name} belongs to a cluster: add ?cluster=true to the URI.")
    if facts.get("role") == "slave" and not address.cluster:
        raise Unavailable(f"The server at {address.name} is a read-only replica. Use the address of its master.")


def _check_eviction(facts: dict[str, str], address: Address) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        raise StartRefused(
            f"The server at {address.name} evicts data when its memory is full (maxmemory-policy {policy}), so "
            "messages would be lost. Set maxmemory-policy noeviction; a full store then rejects new messages."
        )


def _answer(ask: Callable[[], Reply], address: Address) -> Reply:
    """Run the query ``ask`` and return its reply, or None if the server is out of memory.

    Convert all other errors to ``StartRefused`` or ``Unavailable``, with a message that names the server.
    """
    try:
        return ask()
    except Unavailable as unavailable:
        cause = unavailable.__cause__
        for kind, sentence in REFUSALS:
            if isinstance(cause, kind):
                raise StartRefused(sentence.format(address.name, address.db)) from cause
        if isinstance(cause, OutOfMemoryError):
            return None
        if lacks_replicas(cause):
            raise Unavailable(TOO_FEW_REPLICAS_ERROR.format(address.name)) from cause
        text = str(cause).lower()
        if isinstance(cause, ResponseError) and ("db index" in text or "invalid database" in text):
            raise StartRefused(NO_DATABASE.format(address.name, address.db)) from cause
        if isinstance(cause, RedisClusterException) and "not enabled" in text:
            raise StartRefused(f"The server at {address.name} is not a cluster: remove cluster=true.") from cause
        raise Unavailable(f"The Redis server at {address.name} is unavailable.") from cause


# Field of INFO that is present if min-replicas-to-write is set.
BOUND: Final = "min_slaves_good_slaves"
UNBOUND: Final = (
    "The master behind the Sentinels at %s has no min-replicas-to-write, and [storage:redis] wait_replicas is 0: a "
    "failover may lose acknowledged changes that are not replicated yet."
)
TOO_FEW_REPLICAS_ERROR: Final = (
    "The Redis server at {} rejects changes: fewer replicas are connected than min-replicas-to-write requires."
)
NO_DATABASE: Final = "The Redis server at {} has no database {}: its option databases limits the number of databases."
REFUSALS: Final[tuple[tuple[type[RedisError], str], ...]] = (
    (
        AuthenticationError,
        "The Redis server at {} rejected the user or password. Use redis://user:password@host:port.",
    ),
    (AuthorizationError, "The Redis server at {} does not authorize this user."),
    (
        NoPermissionError,
        "The Redis server at {} denies this user permissions that zq needs: keys and channels zq:*, all commands that "
        "read and write, EVAL, EVALSHA, INFO, TIME, WAIT, PUBLISH, SUBSCRIBE, SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE.",
    ),
    (InvalidResponse, "The server at {} does not speak the Redis protocol."),
)
