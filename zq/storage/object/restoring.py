# SPDX-License-Identifier: Apache-2.0
"""From the object store to a local directory: the newest checkpoint, then the log behind it, in the chain's order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from zq.errors import StoreDamaged
from zq.storage.object import entries
from zq.storage.object.entries import Entry
from zq.storage.object.epochs import Head, Span, log_name
from zq.storage.object.objects import Objects

# Records that are asked for at a time.
AHEAD: Final = 16
MISSING: Final = "The object {} of the log is missing."


def whole_log(objects: Objects, base: int, chain: Sequence[Span]) -> Iterator[Entry]:
    """The records behind ``base`` that the chain counts. Raises ``StoreDamaged`` with the name of one that is missing,
    damaged or does not follow the one before."""
    for span in chain:
        last = base
        for record in followed(objects, span.epoch, base, span.last):
            yield record
            last = record.position
        if last < span.last:
            raise StoreDamaged(MISSING.format(log_name(span.epoch, last + 1)))
        base = max(base, span.last)


def followed(
    objects: Objects, epoch: int, base: int, last: int | None = None, acknowledged: int = 0
) -> Iterator[Entry]:
    """The records of one epoch behind ``base``, up to ``last`` or to the first that is missing. Raises
    ``StoreDamaged`` if that one was ``acknowledged``, or is by what a later record says."""
    before: int | None = None
    with ThreadPoolExecutor(AHEAD, "zq-restore") as readers:
        while last is None or base < last:
            end = base + AHEAD if last is None else min(base + AHEAD, last)
            names = [log_name(epoch, position) for position in range(base + 1, end + 1)]
            values = list(readers.map(objects.get, names))
            for name, value in zip(names, values, strict=True):
                if value is None:
                    if base < acknowledged or _was_acknowledged(base + 1, names, values):
                        raise StoreDamaged(MISSING.format(name))
                    return
                record = entries.decode(value, name)
                if (record.epoch, record.position) != (epoch, base + 1) or before not in (None, record.before):
                    raise StoreDamaged(f"The object {name} does not follow the record before it.")
                base, before = record.position, record.checksum
                yield record


def _was_acknowledged(position: int, names: Sequence[str], values: Sequence[bytes | None]) -> bool:
    """Whether one of these says so. Up to ``AHEAD`` are under way at a time, and not all of them need to arrive."""
    there = zip(names, values, strict=True)
    return any(value is not None and entries.decode(value, name).acknowledged >= position for name, value in there)


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


def said(kept: object) -> int:
    """Up to which position an owner has said that its log is acknowledged."""
    return max(kept.acknowledged, kept.released) if isinstance(kept, Head) else 0
