# SPDX-License-Identifier: Apache-2.0
"""From the object store to a local directory: the newest checkpoint, then the log behind it, in the chain's order."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from zq.errors import StoreDamaged
from zq.storage.object import records
from zq.storage.object.epochs import Span, log_name
from zq.storage.object.objects import Objects
from zq.storage.object.records import Record

# Records that are asked for at a time.
AHEAD: Final = 16


def whole_log(objects: Objects, base: int, chain: Sequence[Span]) -> Iterator[Record]:
    """The records behind ``base`` that the chain counts. Raises ``StoreDamaged`` with the name of one that is missing,
    damaged or does not follow the one before."""
    for span in chain:
        last = base
        for record in followed(objects, span.epoch, base, span.last):
            yield record
            last = record.position
        if last < span.last:
            raise StoreDamaged(f"The object {log_name(span.epoch, last + 1)} of the log is missing.")
        base = max(base, span.last)


def followed(objects: Objects, epoch: int, base: int, last: int | None = None) -> Iterator[Record]:
    """The records of one epoch behind ``base``, up to ``last`` or to the first that is missing."""
    before: int | None = None
    with ThreadPoolExecutor(AHEAD, "zq-restore") as readers:
        while last is None or base < last:
            end = base + AHEAD if last is None else min(base + AHEAD, last)
            names = [log_name(epoch, position) for position in range(base + 1, end + 1)]
            for name, value in zip(names, readers.map(objects.get, names), strict=True):
                if value is None:
                    return
                record = records.decode(value, name)
                if (record.epoch, record.position) != (epoch, base + 1) or before not in (None, record.before):
                    raise StoreDamaged(f"The object {name} does not follow the record before it.")
                base, before = record.position, record.checksum
                yield record


def end_of(objects: Objects, epoch: int, base: int, each: Callable[[Record], None]) -> int:
    """The last position of an epoch that was deposed; each record on the way is shown."""
    for record in followed(objects, epoch, base):
        each(record)
        base = record.position
    return base
