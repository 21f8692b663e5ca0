# SPDX-License-Identifier: Apache-2.0
"""What purged and deleted queues, histories that went with them, and stages leave behind. No verb reaches it."""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from zq.expiry import Pace
from zq.storage.rocksdb import due, layout, past
from zq.storage.rocksdb.change import traces
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.port import Store, Write


class Removal(NamedTuple):
    """A thing that was found at ``key`` of ``family``, and how it is removed."""

    family: str
    key: bytes
    writes: list[Write]


class Ruins:
    """Clears them in steps; each begins where the last one ended, not with its tombstones."""

    def __init__(self) -> None:
        self._begin: dict[tuple[str, bytes], bytes] = {}
        """From which key on there is something left, by family and number."""

    def clear_doomed(self, store: Store, size: int, pace: Pace) -> int:
        """Remove messages of former queues, up to ``size``; how many there were."""
        return self._clear(store, layout.DOOMED, self._messages, size, pace)

    def clear_dropped(self, store: Store, size: int, pace: Pace) -> int:
        """Remove what is left of former histories and stages, up to ``size`` things; how many there were."""
        return self._clear(store, layout.DROPPED, self._remains, size, pace)

    def _clear(
        self,
        store: Store,
        kind: bytes,
        removals: Callable[[Store, bytes, bytes], Iterator[Removal]],
        size: int,
        pace: Pace,
    ) -> int:
        found = 0
        for note, value in store.scan("default", kind, layout.after(kind)):
            number = note[len(kind) :]
            batch = list(islice(removals(store, number, value), size - found))
            writes = [*chain.from_iterable(removal.writes for removal in batch)]
            last = len(batch) < size - found
            store.write([*writes, ("default", note, None)] if last else writes)
            if batch:
                pace.removed(len(batch))
            self._begin |= {(removal.family, number): removal.key + b"\0" for removal in batch}
            if last:
                self._begin = {place: key for place, key in self._begin.items() if place[1] != number}
            found += len(batch) or 1
            if found >= size:
                break
        return found

    def _messages(self, store: Store, number: bytes, queue_key: bytes) -> Iterator[Removal]:
        queue = layout.number.unpack(number)[0]
        project = layout.prefix_of(queue_key)
        for key, value in self._rest(store, "messages", number):
            sequence = layout.pair.unpack(key)[1]
            yield Removal("messages", key, traces(queue, project, sequence, layout.decode_trace(value)))

    def _remains(self, store: Store, number: bytes, _: bytes) -> Iterator[Removal]:
        for key, value in self._rest(store, "history", number):
            kept = layout.decode_past(value)
            ended = due.traces("history", key, kept.expires)
            yield Removal("history", key, [*ended, *past.traces(key, past.note(kept))])
        for key, _ in self._rest(store, "keys", number):
            yield Removal("keys", key, due.traces("keys", key, due.end_of(key)))
        for key, _ in self._rest(store, "staged", number):
            yield Removal("staged", key, [("staged", key, None)])

    def _rest(self, store: Store, family: str, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return store.scan(family, self._begin.get((family, number), number), layout.after(number))


def forget_hidden(opened: Opened) -> None:
    """Forget what is hidden in the place of queues and knows no key any more."""
    for key, _ in opened.store.scan("hidden", b"", layout.END):
        ref = layout.queue_ref(key)
        with opened.registry.known(ref) as state:
            if state is not None and state is opened.registry.hidden(ref):
                numbers = (layout.number.pack(state.history), layout.number.pack(state.history + 1))
                if next(opened.store.scan("keys", *numbers), None) is None:
                    opened.registry.drop(state)
