# SPDX-License-Identifier: Apache-2.0
"""Checks of the server's version, configuration and layout at start."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha1
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
from zq.model import levels
from zq.model.levels import Initial
from zq.storage.redis import layout, scripts
from zq.storage.redis.address import Address
from zq.storage.redis.client import Client, lacks_replicas
from zq.storage.redis.connections import Reply

LOG: Final = logging.getLogger(__name__)
OLDEST: Final = (7, 0)
# A key that does not exist.
UNUSED: Final = b"zq:unused"
# A script without effect.
SCRIPT: Final = b"return 0"
# Commands to try at start, after the key that selects the server. ``DEL`` fails if the server rejects writes.
TRIALS: Final = (
    (UNUSED, b"DEL", UNUSED),
    (layout.VERSION_KEY, b"EVAL", SCRIPT, b"0"),
    (layout.VERSION_KEY, b"EVALSHA", sha1(SCRIPT, usedforsecurity=False).hexdigest().encode(), b"0"),
    (layout.VERSION_KEY, b"PUBLISH", layout.READY_CHANNEL, b""),
    (layout.FEED_CHANNEL, b"SPUBLISH", layout.FEED_CHANNEL, b""),
)


def check(client: Client, address: Address, wait_replicas: int = 0, initial: Initial = levels.initial) -> None:
    """Check the server. If the store is empty, store the layout version and the level that ``initial`` returns.

    The level is the number of the data format that servers write. Raises ``StartRefused`` if the server cannot be used,
    and ``Unavailable`` if it does not reply.
    """
    facts = inspect(client, address)
    if address.master and not wait_replicas and BOUND not in facts:
        LOG.warning(UNBOUND, address.name)
    if _answer(lambda: client.command(layout.VERSION_KEY, b"GET", layout.VERSION_KEY), address) is None:
        number, level = b"%d" % layout.VERSION, initial()
        if level:  # comes first, so that a store with a number has its level
            _answer(lambda: client.run(scripts.LEVEL, (layout.LEVEL_KEY,), b"", level), address)
        _answer(lambda: client.command(layout.VERSION_KEY, b"SET", layout.VERSION_KEY, number, b"NX"), address)
    _check_layout(client, address)


def inspect(client: Client, address: Address) -> Mapping[str, str]:
    """Check the server, and return the fields of its ``INFO`` reply.

    The check tries the commands that zq needs. It does not write any data.
    """
    reply = _answer(lambda: client.command(layout.VERSION_KEY, b"INFO"), address)
    facts = parse_info(reply)
    _check_server(facts, address)
    _check_eviction(facts, address)
    _check_layout(client, address)
    for key, *command in TRIALS:
        _answer(partial(client.command, key, *command), address)
    _answer(lambda: client.try_channel(layout.FEED_CHANNEL), address)
    return facts


def parse_info(reply: bytes) -> dict[str, str]:
    """Parse a reply to ``INFO``."""
    return dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)


def _check_layout(client: Client, address: Address) -> None:
    """Raise ``StartRefused`` if this version of zq does not support the store's data layout or upgrade level.

    An empty store has no layout number and is accepted.
    """
    found = _answer(lambda: client.command(layout.VERSION_KEY, b"GET", layout.VERSION_KEY), address)
    if found not in (None, b"%d" % layout.VERSION):
        raise StartRefused(
            f"The store at {address.name} has layout {found.decode(errors='replace')}, but this version of "
            f"zq requires {layout.VERSION}. Use the version of zq that wrote the store, or another database."
        )
    if found is not None:
        levels.check(_answer(lambda: client.command(layout.LEVEL_KEY, b"GET", layout.LEVEL_KEY), address))


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
    """Call ``ask`` and return its reply, or None if the Redis server is out of memory.

    Raises:
        StartRefused: The error shows a wrong configuration, for example a rejected password.
        Unavailable: The call failed for another reason. The error message names the server.
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
