# SPDX-License-Identifier: Apache-2.0
"""An open RocksDB directory that is only a cache: what is written is durable once it is in the object store's log."""

import threading
from collections.abc import Sequence
from pathlib import Path

from zq.storage.object.epochs import Proof
from zq.storage.object.records import Record
from zq.storage.object.ship import Shipper
from zq.storage.ordered.store import Range, Write
from zq.storage.rocksdb.files import Damage
from zq.storage.rocksdb.store import Store


class ShippedStore(Store):
    """``restore`` first, then ``serve``, then as any store. It may hold more than was acknowledged, and is never opened
    again: a directory that was not restored anew could hold what no other server ever saw."""

    prompt = False

    def __init__(self, path: Path, families: Sequence[str], filtered: str, damage: Damage) -> None:
        super().__init__(path, families, "never", 0, filtered, damage, logged=False)
        self._order = threading.Lock()
        """Held while a batch is written and appended: the log has the order of the writes."""
        self._shipper: Shipper | None = None
        self._proof: Proof | None = None

    def restore(self, record: Record) -> None:
        """Apply what the log has."""
        for batch in record.batches:
            super().write(batch.writes, batch.gone)

    def serve(self, shipper: Shipper, proof: Proof) -> None:
        """From now on what is written is shipped."""
        self._shipper, self._proof = shipper, proof

    def write(self, writes: Sequence[Write], gone: Sequence[Range] = ()) -> None:
        shipper = self.shipper
        shipper.admit()
        with self._order:
            super().write(writes, gone)
            shipper.append(writes, gone)

    def wait_durable(self, always: bool = False) -> None:
        """In every mode and for every caller: in the object store."""
        self.shipper.wait()

    def prove(self) -> None:
        if self._proof is not None:
            self._proof.check()

    def close(self) -> None:
        if self._shipper is not None:
            self._shipper.close()
        super().close()

    @property
    def shipper(self) -> Shipper:
        """The log that is written to."""
        assert self._shipper is not None, "a store serves before it is written to"
        return self._shipper
