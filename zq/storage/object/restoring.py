# SPDX-License-Identifier: Apache-2.0
"""Functions that read the log, and that close the log of a deposed owner.

A restore reads the newest checkpoint and then the log, epoch by epoch in the order of ``Opening.chain``.

With fencing by position, all epochs use the same sequence of object names, and each name is written once. The successor
writes a fence to the first free name:

- The former owner's records before the fence are valid.
- The former owner cannot write the next record, so it acknowledges no further records.
- The former owner may write some of the next ``WINDOW`` names, before or after the fence. These records are void.
- The successor writes fences to all free names among these ``WINDOW`` names, so that its own records do not collide
  with void ones.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from zq.errors import StoreDamaged
from zq.storage.object import entries
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import Head, Span, TakeoverLost, log_name
from zq.storage.object.objects import Objects

# Number of records that are read concurrently.
READ_AHEAD: Final = 16
# Maximum number of unacknowledged records of an owner with fencing by position.
WINDOW: Final = 16
MISSING_OBJECT: Final = "The object {} of the log is missing."
NOT_NEXT: Final = "The object {} does not follow the record before it."


def read_chain(objects: Objects, base: int, chain: Sequence[Span]) -> Iterator[Entry]:
    """Yield the records in the log parts ``chain`` after the position ``base``."""
    for span in chain:
        yield from read_epoch(objects, span.epoch, base, span.last, by_position=span.by_position)
        base = max(base, span.last)


def read_epoch(
    objects: Objects,
    epoch: int,
    base: int,
    last: int | None = None,
    acknowledged: int = 0,
    *,
    by_position: bool = False,
) -> Iterator[Entry]:
    """Yield the valid records of one epoch after the position ``base``.

    If ``last`` is None, the log ends before the first missing record. The owner has acknowledged all records up to
    ``acknowledged``.

    Raises ``StoreDamaged`` if a record is damaged, out of order, or missing although it is at or before ``last`` or
    was acknowledged.
    """
    before: int | None = None
    for record in read_records(objects, epoch, base, last, acknowledged, by_position):
        if record.epoch > epoch:
            return  # a fence: the following records are void
        if record.epoch < epoch or not record.batches:
            continue
        if before not in (None, record.before):
            raise StoreDamaged(NOT_NEXT.format(log_name(epoch, record.position, by_position)))
        before = record.checksum
        yield record


def read_records(
    objects: Objects, epoch: int, base: int, last: int | None, acknowledged: int, by_position: bool
) -> Iterator[Entry]:
    """Yield all records of an epoch after the position ``base``: valid records, fences and void records.

    A fence is a record with which a later epoch ends this one. Records of this epoch after a fence are void.

    If ``last`` is None, the log ends before the first missing record. ``acknowledged`` is the last position that is
    known to be acknowledged. If ``by_position`` is true, all epochs use the same sequence of object names.

    Raises ``StoreDamaged`` if a record is damaged, out of order, or missing although it is at or before ``last`` or
    was acknowledged.
    """
    with ThreadPoolExecutor(READ_AHEAD, "zq-restore") as readers:
        while last is None or base < last:
            end = base + READ_AHEAD if last is None else min(base + READ_AHEAD, last)
            names = [log_name(epoch, position, by_position) for position in range(base + 1, end + 1)]
            values = list(readers.map(objects.get, names))
            for name, value in zip(names, values, strict=True):
                if value is None:
                    if last is not None or base < acknowledged or _was_acknowledged(base + 1, epoch, names, values):
                        raise StoreDamaged(MISSING_OBJECT.format(name))
                    return
                record = entries.decode(value, name)
                if record.position != base + 1 or (record.epoch != epoch and not by_position):
                    raise StoreDamaged(NOT_NEXT.format(name))
                base = record.position
                yield record


def _was_acknowledged(position: int, epoch: int, names: Sequence[str], values: Sequence[bytes | None]) -> bool:
    """Return whether the position was acknowledged according to the header of a later record.

    ``names`` and ``values`` are the names and contents of some log objects. A missing object has the content None.
    """
    # An owner uploads records concurrently, so a gap before a stored record is damage only if it was acknowledged.
    there = zip(names, values, strict=True)
    records = (entries.decode(value, name) for name, value in there if value is not None)
    return any(record.epoch == epoch and record.acknowledged >= position for record in records)


def close_log(objects: Objects, epoch: int, base: int, acknowledged: int, each: Callable[[Entry], None]) -> int:
    """Close the log of a fenced epoch, and return the position of its last record.

    Call ``each`` with every record after the position ``base``. ``acknowledged`` is the last position that is known to
    be acknowledged. Later records are uploaded again, because some readers may not see the first upload yet.
    """
    doubtful: deque[Entry] = deque()
    for record in read_epoch(objects, epoch, base, None, acknowledged):
        each(record)
        base, acknowledged = record.position, max(acknowledged, record.acknowledged)
        doubtful.append(record)
        while doubtful and (doubtful[0].position <= acknowledged or len(doubtful) > READ_AHEAD):
            _confirm(objects, doubtful.popleft(), acknowledged)
    for record in doubtful:
        _confirm(objects, record, acknowledged)
    return base


def _confirm(objects: Objects, record: Entry, acknowledged: int) -> None:
    if record.position > acknowledged:
        objects.put(log_name(record.epoch, record.position), record.value)


def close_log_by_position(
    objects: Objects, epoch: int, base: int, acknowledged: int, each: Callable[[Entry], None], successor: int
) -> int:
    """Close the log of an epoch by writing fences after its last record, and return the position of the last fence.

    A fence is a record that occupies a position, so that the former owner cannot store a record there. ``successor`` is
    the number of the new owner's epoch.

    Call ``each`` with every valid record after the position ``base``. Raises ``TakeoverLost`` if an epoch later than
    ``successor`` has written to the log.
    """

    def fence(position: int) -> bool:
        value, _ = entries.encode(successor, position, 0, 0, 0, [])
        return objects.put_new(log_name(epoch, position, True), value)

    closed = False
    while True:
        for record in read_records(objects, epoch, base, None, acknowledged, True):
            if record.epoch > successor:
                raise TakeoverLost
            closed = closed or record.epoch > epoch
            if record.epoch == epoch and record.batches and not closed:
                each(record)
            base = record.position
        if fence(base + 1):
            break
    with ThreadPoolExecutor(READ_AHEAD, "zq-fence") as writers:
        list(writers.map(fence, range(base + 2, base + 1 + WINDOW)))
    return base + WINDOW


def acknowledged_position(kept: object) -> int:
    """Return the last acknowledged position in ``kept``, or 0 if ``kept`` is not a progress record (``Head``).

    An owner regularly writes its progress record to the object store.
    """
    return max(kept.acknowledged, kept.released) if isinstance(kept, Head) else 0
