# SPDX-License-Identifier: Apache-2.0
"""From the object store to a local directory: the newest checkpoint, then the log behind it, in the chain's order; and
how the log of a deposed owner ends.

Fenced by position, an epoch's records and its successor's lie in one sequence of names, of which each is taken once, by
the first. A taker puts a fence at the first name that is free: what the owner has put before it counts, and the owner,
whose next record does not get its name, acknowledges nothing more. It may have put some of the next ``WINDOW`` names
already, or may still do so, however late. So the taker fills those that are free: behind a fence what is of an older
epoch is void, and nobody's record meets one.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from zq.errors import StoreDamaged
from zq.storage.object import entries
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import Head, Span, Taken, log_name
from zq.storage.object.objects import Objects

# Records that are asked for at a time.
AHEAD: Final = 16
# Positions beyond the last acknowledged one that an owner may put, where it is fenced by position.
WINDOW: Final = 16
MISSING: Final = "The object {} of the log is missing."
NOT_NEXT: Final = "The object {} does not follow the record before it."


def whole_log(objects: Objects, base: int, chain: Sequence[Span]) -> Iterator[Entry]:
    """The records behind ``base`` that the chain counts. Raises ``StoreDamaged`` with the name of one that is missing,
    damaged or does not follow the one before."""
    for span in chain:
        yield from followed(objects, span.epoch, base, span.last, by_position=span.by_position)
        base = max(base, span.last)


def followed(
    objects: Objects,
    epoch: int,
    base: int,
    last: int | None = None,
    acknowledged: int = 0,
    *,
    by_position: bool = False,
) -> Iterator[Entry]:
    """The records of one epoch behind ``base``, up to ``last`` or to the first that is missing. Raises
    ``StoreDamaged`` if that one comes before ``last``, was ``acknowledged``, or is by what a later record says."""
    before: int | None = None
    for record in sequence(objects, epoch, base, last, acknowledged, by_position):
        if record.epoch > epoch:
            return  # a fence: what follows is void
        if record.epoch < epoch or not record.batches:
            continue
        if before not in (None, record.before):
            raise StoreDamaged(NOT_NEXT.format(log_name(epoch, record.position, by_position)))
        before = record.checksum
        yield record


def sequence(
    objects: Objects, epoch: int, base: int, last: int | None, acknowledged: int, by_position: bool
) -> Iterator[Entry]:
    """What the names have, fences and what is void too; else as ``followed``."""
    with ThreadPoolExecutor(AHEAD, "zq-restore") as readers:
        while last is None or base < last:
            end = base + AHEAD if last is None else min(base + AHEAD, last)
            names = [log_name(epoch, position, by_position) for position in range(base + 1, end + 1)]
            values = list(readers.map(objects.get, names))
            for name, value in zip(names, values, strict=True):
                if value is None:
                    if last is not None or base < acknowledged or _was_acknowledged(base + 1, epoch, names, values):
                        raise StoreDamaged(MISSING.format(name))
                    return
                record = entries.decode(value, name)
                if record.position != base + 1 or (record.epoch != epoch and not by_position):
                    raise StoreDamaged(NOT_NEXT.format(name))
                base = record.position
                yield record


def _was_acknowledged(position: int, epoch: int, names: Sequence[str], values: Sequence[bytes | None]) -> bool:
    """Whether one of these says so. Up to ``AHEAD`` are under way at a time, and not all of them need to arrive."""
    there = zip(names, values, strict=True)
    records = (entries.decode(value, name) for name, value in there if value is not None)
    return any(record.epoch == epoch and record.acknowledged >= position for record in records)


def end_of(objects: Objects, epoch: int, base: int, acknowledged: int, each: Callable[[Entry], None]) -> int:
    """The last position of an epoch that was deposed; each record on the way is shown.

    Those of which it is not known that their owner had the object store's word are put again: else later readers
    might not find what is counted here."""
    doubtful: deque[Entry] = deque()
    for record in followed(objects, epoch, base, None, acknowledged):
        each(record)
        base, acknowledged = record.position, max(acknowledged, record.acknowledged)
        doubtful.append(record)
        while doubtful and (doubtful[0].position <= acknowledged or len(doubtful) > AHEAD):
            _confirm(objects, doubtful.popleft(), acknowledged)
    for record in doubtful:
        _confirm(objects, record, acknowledged)
    return base


def _confirm(objects: Objects, record: Entry, acknowledged: int) -> None:
    if record.position > acknowledged:
        objects.put(log_name(record.epoch, record.position), record.value)


def seal(
    objects: Objects, epoch: int, base: int, acknowledged: int, each: Callable[[Entry], None], successor: int
) -> int:
    """The same of an epoch that is fenced by position: close it for good. Raises ``Taken``."""

    def fence(position: int) -> bool:
        value, _ = entries.encode(successor, position, 0, 0, 0, [])
        return objects.put_new(log_name(epoch, position, True), value)

    closed = False
    while True:
        for record in sequence(objects, epoch, base, None, acknowledged, True):
            if record.epoch > successor:
                raise Taken
            closed = closed or record.epoch > epoch
            if record.epoch == epoch and record.batches and not closed:
                each(record)
            base = record.position
        if fence(base + 1):
            break
    with ThreadPoolExecutor(AHEAD, "zq-fence") as writers:
        list(writers.map(fence, range(base + 2, base + 1 + WINDOW)))
    return base + WINDOW


def said(kept: object) -> int:
    """Up to which position an owner has said that its log is acknowledged."""
    return max(kept.acknowledged, kept.released) if isinstance(kept, Head) else 0
