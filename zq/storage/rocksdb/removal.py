# SPDX-License-Identifier: Apache-2.0
"""Removes messages that have expired: what sweeper and remover share."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from zq.model import QueueRef
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.registry import QueueState

Told = dict[bytes, int]
"""Keys of ``messages``, each with a moment not before which the message expires, or it has been given longer life."""


def by_queue(told: Iterable[tuple[bytes, int]]) -> Iterator[tuple[int, Told]]:
    """What is told, by the queues' numbers."""
    grouped: defaultdict[bytes, Told] = defaultdict(dict)
    for key, moment in told:
        grouped[key[:8]][key] = moment
    return ((layout.number.unpack(number)[0], its) for number, its in grouped.items())


def remove(opened: Opened, number: int, told: Told, sweeping: bool) -> tuple[int, QueueRef | None]:
    """Remove those of one queue's messages that expire at their moments, in one step; how many, and of which queue.

    ``sweeping``: the moments come from the expiry index, whose entries go even where they point at nothing.
    """
    with _locked(opened, number) as state:
        if state is None:
            return 0, None
        change = Change(opened.store)
        count = 0
        values = opened.store.get_many("messages", list(told), spare=True)
        for (key, moment), value in zip(told.items(), values, strict=True):
            if value == b"":  # damaged: its index entries are what a salvage has of it
                continue
            trace = layout.decode_trace(value) if value is not None else None
            if trace is not None and trace.expires <= moment:
                change.remove(state, layout.pair.unpack(key)[1], trace)
                count += 1
            elif sweeping:
                change.also(("expiry", layout.number.pack(moment) + key, None))
        change.commit()
        return count, state.ref


@contextmanager
def _locked(opened: Opened, number: int) -> Iterator[QueueState | None]:
    """The queue of a number, locked; None if no queue has it."""
    state = opened.registry.by_number(number)
    if state is None:
        yield None
        return
    with opened.registry.held(state.ref) as (held,):
        yield state if held is state else None
