# SPDX-License-Identifier: Apache-2.0
"""Checks at start: that this is a Redis that keeps what it is given, and that the store is of this layout."""

import logging
from collections.abc import Callable
from typing import Final

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
from zq.storage.redis import layout
from zq.storage.redis.address import Address
from zq.storage.redis.lines import Reply
from zq.storage.redis.port import Port, lacks_replicas

LOG = logging.getLogger(__name__)
OLDEST: Final = (7, 0)


def check(port: Port, address: Address, wait_replicas: int = 0) -> None:
    """Raises ``StartRefused`` if waiting will not help, ``Unavailable`` if it may."""
    told = _told(lambda: port.command(layout.VERSION_KEY, b"INFO"), address)
    facts = dict(line.split(":", 1) for line in told.decode(errors="replace").splitlines() if ":" in line)
    _check_server(facts, address)
    _check_eviction(facts, address)
    if address.master and not wait_replicas and BOUND not in facts:
        LOG.warning(UNBOUND, address.name)
    number = b"%d" % layout.VERSION
    _told(lambda: port.command(layout.VERSION_KEY, b"SET", layout.VERSION_KEY, number, b"NX"), address)
    _told(lambda: port.command(layout.VERSION_KEY, b"PUBLISH", layout.READY, b""), address)
    _told(lambda: port.command(layout.FEED, b"SPUBLISH", layout.FEED, b""), address)
    _told(lambda: port.try_out(layout.FEED, b"SSUBSCRIBE", layout.FEED), address)
    found = _told(lambda: port.command(layout.VERSION_KEY, b"GET", layout.VERSION_KEY), address)
    if found != number:
        raise StartRefused(
            f"The store at {address.name} has layout {found.decode(errors='replace')}, this zq needs "
            f"{layout.VERSION}: use the zq that wrote it, or another database."
        )


def _check_server(facts: dict[str, str], address: Address) -> None:
    version = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise StartRefused(
            f"The server at {address.name} is Redis {version or 'of an unknown version'}, this zq needs 7.0 or newer, "
            "or any Valkey."
        )
    if facts.get("cluster_enabled") == "1" and not address.cluster:
        raise StartRefused(f"The server at {address.name} belongs to a cluster: add ?cluster=true to the URI.")
    if facts.get("role") == "slave" and not address.cluster:
        raise Unavailable(f"The server at {address.name} is a replica and takes no messages: name its master.")


def _check_eviction(facts: dict[str, str], address: Address) -> None:
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        raise StartRefused(
            f"The server at {address.name} throws away data when its memory is full (maxmemory-policy {policy}), so "
            "messages would be lost. Set maxmemory-policy noeviction there; a full store then refuses new messages."
        )


def _told(ask: Callable[[], Reply], address: Address) -> Reply:
    """The answer, or a refusal that says what is wrong where."""
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
            raise Unavailable(ALONE.format(address.name)) from cause
        text = str(cause).lower()
        if isinstance(cause, ResponseError) and ("db index" in text or "invalid database" in text):
            raise StartRefused(NO_DATABASE.format(address.name, address.db)) from cause
        if isinstance(cause, RedisClusterException) and "not enabled" in text:
            raise StartRefused(f"The server at {address.name} is no cluster: leave cluster=true away.") from cause
        raise Unavailable(f"The Redis server at {address.name} does not answer.") from cause


BOUND: Final = "min_slaves_good_slaves"
"""Redis tells this of itself where min-replicas-to-write is set."""
UNBOUND: Final = (
    "The master behind the Sentinels at %s has no min-replicas-to-write, and [storage:redis] wait_replicas is 0: a "
    "failover may lose what was acknowledged and not yet replicated."
)
ALONE: Final = (
    "The Redis server at {} takes no changes: fewer replicas are connected than its option min-replicas-to-write wants."
)
NO_DATABASE: Final = "The Redis server at {} has no database {}: its option databases says how many it has."
REFUSALS: Final[tuple[tuple[type[RedisError], str], ...]] = (
    (
        AuthenticationError,
        "The Redis server at {} does not accept the user or password, or wants one: redis://user:password@host:port.",
    ),
    (AuthorizationError, "The Redis server at {} does not let this user in."),
    (
        NoPermissionError,
        "The Redis server at {} does not allow this user what zq needs: keys and channels zq:*, all commands that read "
        "and write, EVAL, EVALSHA, INFO, TIME, WAIT, PUBLISH, SUBSCRIBE, SPUBLISH, SSUBSCRIBE and SUNSUBSCRIBE.",
    ),
    (InvalidResponse, "What listens at {} does not speak the protocol of Redis."),
)
