# SPDX-License-Identifier: Apache-2.0
"""Settings of servers with pools (several stores): ``pooling`` and section ``[pooling:catalog]``."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from oslo_config import cfg

from zq.errors import StartRefused
from zq.serving.settings.options import CATALOG, NETWORKED

# Embedded stores as written in ``allowed_hosts``; only one process can open them.
EMBEDDED: Final = ("memory:", "rocksdb:")


class PoolSettings(Struct, frozen=True):
    """Settings of a server with pools. ``hosts`` are in lower case; ``options`` maps each scheme to driver options."""

    virtual: bool
    hosts: tuple[str, ...]
    options: dict[str, dict[str, Any]]


def read_pool_settings(
    conf: cfg.ConfigOpts, scheme: str, driver_options: Callable[[str], dict[str, Any]]
) -> PoolSettings | None:
    """Return the pool settings, or ``None`` if pooling is off.

    ``scheme`` is the URI scheme of the catalogue, the store that lists the pools. Raises ``StartRefused`` if several
    servers can share the catalogue but a pool is embedded, because only one server could open that pool.
    """
    if not conf.pooling:
        return None
    catalog = CATALOG.read(conf)
    hosts = tuple(host.lower() for host in catalog.allowed_hosts)
    embedded = [name for name in EMBEDDED if name in hosts]
    if scheme in NETWORKED and embedded:
        raise StartRefused(
            f"[pooling:catalog] allowed_hosts must not contain {embedded[0]} if [storage] uri is a store for several "
            "servers, because they cannot share an embedded store."
        )
    schemes = (*NETWORKED, *(name[:-1] for name in EMBEDDED))
    options = {each: driver_options(each) for each in schemes}
    return PoolSettings(catalog.enable_virtual_pool, hosts, options)
