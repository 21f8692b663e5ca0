# SPDX-License-Identifier: Apache-2.0
"""The options of pools: ``pooling`` and ``[pooling:catalog]``."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

from zq.errors import StartRefused

POOLING: Final = cfg.BoolOpt(
    "pooling",
    default=False,
    help="Keep queues in several stores: the one of [storage] uri is the catalogue, pools are the others.",
)
CATALOG: Final[list[cfg.Opt]] = [
    cfg.BoolOpt(
        "enable_virtual_pool",
        default=False,
        help="Put new queues for which there is no pool into the store of [storage] uri.",
    ),
    cfg.ListOpt(
        "allowed_hosts",
        default=[],
        sample_default=["redis-1.example.org"],
        mutable=True,
        help="Hosts, with or without ports, that URIs of pools may name; rocksdb: and memory: allow pools in files "
        "and in the memory of a server that is alone. Between several a comma.",
    ),
]
# The section of a URI's scheme, for stores that several servers share.
NETWORKED: Final = {
    "mongodb": "storage:mongodb",
    "mongodb+srv": "storage:mongodb",
    "redis": "storage:redis",
    "rediss": "storage:redis",
    "unix": "storage:redis",
}
# Stores of one process, as ``allowed_hosts`` names them.
EMBEDDED: Final = ("memory:", "rocksdb:")


class PoolSettings(Struct, frozen=True):
    """Of a server with pools. ``hosts``: in lower case; ``options``: the settings of each scheme's driver."""

    virtual: bool
    hosts: tuple[str, ...]
    options: dict[str, dict[str, Any]]


def pools_of(conf: cfg.ConfigOpts, scheme: str, driver_options: Callable[[str], dict[str, Any]]) -> PoolSettings | None:
    """None = one store. ``scheme``: that of the catalogue, which other processes may use too, and so its pools."""
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
