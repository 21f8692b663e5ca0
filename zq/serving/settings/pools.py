# SPDX-License-Identifier: Apache-2.0
"""Pool options: ``pooling`` and section ``[pooling:catalog]``."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

from zq.errors import StartRefused

POOLING: Final = cfg.BoolOpt(
    "pooling",
    default=False,
    help="Distribute queues over several stores: [storage] uri is the catalogue, the others are pools.",
)
CATALOG: Final[list[cfg.Opt]] = [
    cfg.BoolOpt(
        "enable_virtual_pool",
        default=False,
        help="Create queues without a matching pool in the store of [storage] uri.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=[],
        sample_default=["redis-1.example.org"],
        mutable=True,
        help="Hosts, with or without port, that pool URIs may name, separated by commas. rocksdb: and memory: allow "
        "embedded pools, which only a single server can use.",
    ),
]
# Option section by URI scheme, for stores that several servers share.
NETWORKED: Final = {
    "mongodb": "storage:mongodb",
    "mongodb+srv": "storage:mongodb",
    "redis": "storage:redis",
    "rediss": "storage:redis",
    "unix": "storage:redis",
}
# Embedded stores as written in ``allowed_hosts``; only one process can open them.
EMBEDDED: Final = ("memory:", "rocksdb:")


class PoolSettings(Struct, frozen=True):
    """Settings of a server with pools. ``hosts`` are in lower case; ``options`` maps each scheme to driver options."""

    virtual: bool
    hosts: tuple[str, ...]
    options: dict[str, dict[str, Any]]


def pools_of(conf: cfg.ConfigOpts, scheme: str, driver_options: Callable[[str], dict[str, Any]]) -> PoolSettings | None:
    """Return the pool settings, or ``None`` if pooling is off.

    ``scheme`` is the URI scheme of the catalogue. If other servers can share the catalogue, they must be able to open
    the pools too, so embedded pools raise ``StartRefused``.
    """
    if not conf.pooling:
        return None
    hosts = tuple(host.lower() for host in conf["pooling:catalog"].allowed_hosts)
    embedded = [name for name in EMBEDDED if name in hosts]
    if scheme in NETWORKED and embedded:
        raise StartRefused(
            f"[pooling:catalog] allowed_hosts must not name {embedded[0]} where [storage] uri is a store for several "
            "servers: they could not share such a pool."
        )
    schemes = (*NETWORKED, *(name[:-1] for name in EMBEDDED))
    options = {each: driver_options(each) for each in schemes}
    return PoolSettings(conf["pooling:catalog"].enable_virtual_pool, hosts, options)
