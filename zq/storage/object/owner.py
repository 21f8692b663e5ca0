# SPDX-License-Identifier: Apache-2.0
"""Owning a store in an object store: taking it over, with all that was acknowledged, into an empty local directory; and
giving it back."""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from zq.errors import StartRefused, Unavailable
from zq.model.expiry import Expiry
from zq.storage.object.epochs import (
    Head,
    Opening,
    Proof,
    Span,
    Taken,
    depose,
    joined,
    open_epoch,
    read,
    win,
)
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import end_of, whole_log
from zq.storage.object.ship import Shipper
from zq.storage.object.store import ShippedStore
from zq.storage.ordered.startup import uptime
from zq.storage.rocksdb import Directory
from zq.storage.rocksdb.store import Store

LOG = logging.getLogger(__name__)
TAKEN: Final = "Another server has taken the store over while this one did: start it again, or as a standby."


class Owner(Directory):
    """Upkeep of the local directory, and of this server's ownership. Each time that the store is opened it is taken
    over anew, as from another server: what the directory holds is not trusted."""

    def __init__(
        self,
        objects: Objects,
        path: Path,
        families: Sequence[str],
        expiry: Expiry,
        stamped: str,
        trimmed: str,
        *,
        name: str,
        lease: float,
        ship: Callable[[Objects, Proof, int], Shipper],
    ) -> None:
        """``name``: what this server calls itself to operators."""
        super().__init__(path, families, ("never", 0), expiry, stamped, trimmed)
        self._objects = objects
        self._name = name
        self._lease = lease
        self._ship = ship
        self._proof: Proof | None = None

    def _make(self, filtered: str) -> Store:
        if self._proof is not None:
            self._proof.close()
            if self._proof.fenced:  # it would take the store back, and the two would fight
                raise Unavailable
        shutil.rmtree(self._path, ignore_errors=True)
        epoch = win(self._objects)
        former, opening = depose(self._objects, epoch)
        fenced = uptime()
        head = read(self._objects, f"head/{former}", Head) or Head()
        store = ShippedStore(self._path, self._families, filtered, self._damage)
        try:
            position, chain = self._restored(store, former, opening)
            open_epoch(self._objects, epoch, Opening(self._name, int(time.time() * 1000), 0, chain))
            if former and head.released != position:
                time.sleep(max(0.0, fenced + self._lease - uptime()))
            self._proof = Proof(self._objects, epoch, self._lease)
            self._proof.look()
        except Taken as error:
            store.let_go()
            raise StartRefused(TAKEN) from error
        except BaseException:
            store.let_go()
            raise
        self._proof.start()
        shipper = self._ship(self._objects, self._proof, position)
        shipper.start()
        store.serve(shipper, self._proof)
        LOG.info("This server owns the store as number %d, from position %d on.", epoch, position)
        return store

    def _restored(self, store: ShippedStore, former: int, opening: Opening | None) -> tuple[int, list[Span]]:
        """The last position of the log, and the chain up to it."""
        if opening is None:
            return 0, []
        position = opening.base
        for record in whole_log(self._objects, opening.base, opening.chain):
            store.restore(record)
            position = record.position
        last = end_of(self._objects, former, position, store.restore)
        return last, joined(opening.chain, Span(former, last), opening.base)
