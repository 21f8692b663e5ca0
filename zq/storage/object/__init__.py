# SPDX-License-Identifier: Apache-2.0
"""The embedded store that survives its machine: the ordered engine over a local RocksDB directory, whose log is in an
object store. One server owns it; another machine with an empty disk can take over.

Here both are put together: a URI becomes the objects, the owner and the engine.
"""

import hashlib
import os
import socket
from pathlib import Path
from typing import Final

from zq.errors import StartRefused
from zq.model import store_uri
from zq.model.expiry import Expiry
from zq.storage.object.objects import Objects
from zq.storage.object.owner import Owner
from zq.storage.object.ship import Shipper
from zq.storage.object.swift import SwiftObjects
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage

SCHEMES: Final = ("swift",)


def connect(
    uri: str,
    cache: str = "",
    lease: float = 10.0,
    uploads: int = 4,
    linger: float = 0.0,
    patience: float = 10.0,
    max_clock_jump: int = 172800,
    expiry: Expiry | None = None,
) -> OrderedStorage:
    """Take over ``swift://container/prefix`` and open it. Raises ``StartRefused`` with a sentence.

    ``cache``: a local directory, whose content is thrown away. ``lease``: seconds that a server may answer from what it
    holds without asking the object store. For the others see ``Shipper``.
    """
    if not 1 <= lease <= 3600:
        raise StartRefused(f"[storage:object] lease must be from 1 to 3600 seconds; it is {lease}.")
    expiry, objects = expiry or Expiry(), _objects(uri)
    owner = Owner(
        objects,
        Path(cache) if cache else _default_cache(uri),
        layout.FAMILIES,
        expiry,
        stamped=layout.STAMPED,
        trimmed=layout.TRIMMED,
        name=f"{socket.gethostname()}:{os.getpid()}",
        lease=lease,
        ship=lambda objects, proof, position: Shipper(objects, proof, position, uploads, linger, patience),
    )
    return OrderedStorage(owner.open, expiry, owner, max_clock_jump)


def _objects(uri: str) -> Objects:
    objects = SwiftObjects(uri, os.environ)
    objects.prepare()
    return objects


def _default_cache(uri: str) -> Path:
    digest = hashlib.sha256(store_uri.split(uri)._replace(query="").geturl().encode()).hexdigest()[:16]
    return Path("var/zq") / digest
