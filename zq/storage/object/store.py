# SPDX-License-Identifier: Apache-2.0
"""The owner's local RocksDB store, which is a cache: a write is durable once the object store's log contains it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from zq.model.stats import Measure
from zq.storage.object.checkpoints import Checkpointer
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import Proof
from zq.storage.object.shipping import LogCut, Shipper
from zq.storage.ordered.store import Range, Write
from zq.storage.rocksdb.files import Damage, flush_all, link_files
from zq.storage.rocksdb.store import Store


class ShippedStore(Store):
    """The local store whose log is in the object store.

    Call ``restore`` for each record of the log, then ``serve``. The directory may contain changes that were never
    acknowledged, so a later owner must not open it.
    """

    is_prompt = False
    contended = True

    def __init__(self, path: Path, families: Sequence[str], filtered: str, damage: Damage) -> None:
        super().__init__(path, families, "never", 0, filtered, damage, logged=False)
        self._order = threading.Lock()
        """Held while a batch is written and appended to the log, so that the log has the same order as the writes."""
        self._proof: Proof | None = None
        self._shipper: Shipper | None = None
        self._checkpointer: Checkpointer | None = None
        self._closed: Callable[[], object] = bool

    def restore(self, record: Entry) -> None:
        """Apply a record of the log without uploading it."""
        for batch in record.batches:
            super().write(batch.writes, batch.gone)

    def serve(
        self, proof: Proof, shipper: Shipper, checkpointer: Checkpointer, closed: Callable[[], object] = bool
    ) -> None:
        """Start uploading all new writes. ``closed`` is called when the store has been closed."""
        self._proof, self._shipper, self._checkpointer, self._closed = proof, shipper, checkpointer, closed

    def write(self, writes: Sequence[Write], removed_ranges: Sequence[Range] = ()) -> None:
        shipper = self.shipper
        shipper.admit()
        with self._order:
            super().write(writes, removed_ranges)
            shipper.append(writes, removed_ranges)

    def wait_durable(self, always: bool = False) -> None:
        """Wait until all changes are in the object store. ``always`` has no effect, because this store always waits."""
        self.shipper.wait()

    def prove(self) -> None:
        if self._proof is not None:
            self._proof.check()

    def check(self) -> None:
        """Raise ``Unavailable`` if the object store does not respond or rejects records."""
        if self._proof is not None and self.failure is None:
            self._proof.confirm()
            self.shipper.check()

    def snapshot(self, folder: Path) -> LogCut:
        """Hard-link the current files into a new folder, and return the point in the log at which they were linked."""
        self.flush_families()  # before the lock, so that writers wait only for a short flush
        with self._order:
            link_files(self._db, folder)
            return self.shipper.cut()

    def flush_families(self) -> None:
        """Flush the write buffers of all column families. Raises ``Unavailable`` if RocksDB cannot write its files."""
        flush_all(self._views.values())

    def measures(self) -> Iterator[Measure]:
        """Yield the metrics of uploads, checkpoints and ownership. Yield nothing before ``serve`` is called."""
        if self._proof is None or self._shipper is None or self._checkpointer is None:
            return
        yield Measure("object_epoch", self._proof.epoch)
        yield Measure("object_proof_age_seconds", max(0.0, self._proof.age))
        yield Measure("object_position", self._shipper.acknowledged)
        yield Measure("object_waiting_bytes", self._shipper.waiting_bytes)
        for result, number in self._shipper.uploads.items():
            yield Measure("object_uploads_total", number, (("result", result),))
        yield Measure("object_upload_seconds_total", self._shipper.seconds)
        yield Measure("object_commits_total", self._shipper.commits)
        yield Measure("object_uploaded_bytes_total", self._shipper.stored_bytes)
        yield Measure("object_checkpoint_age_seconds", self._checkpointer.age)

    def close(self) -> None:
        try:
            if self._shipper is not None and self._checkpointer is not None:
                self._checkpointer.stop()
                self._checkpointer.release(self._shipper.close())
            if self._proof is not None:
                self._proof.close()
        finally:
            super().close()
            self._closed()

    @property
    def shipper(self) -> Shipper:
        """The uploader of the log. It exists after ``serve``."""
        assert self._shipper is not None, "a store serves before it is written to"
        return self._shipper
