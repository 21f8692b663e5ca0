# SPDX-License-Identifier: Apache-2.0
"""One batch of a producer, decided and, if it is small, done in one write. The caller holds the names of all that it is
about."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from msgspec import structs

from zq import model
from zq.errors import ClaimLapsed, CommitRunning, StageNotFound
from zq.model import Bounds, Commit, Committed, Held, Outcome, QueueRef
from zq.storage.extensions import check_size, check_stage
from zq.storage.rocksdb import carrying, due, fences, layout, stages, unfinished
from zq.storage.rocksdb.carrying import CAPACITY
from zq.storage.rocksdb.change import Change, End
from zq.storage.rocksdb.holding import held_by, sequences_of
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.layout import Batch, Stage
from zq.storage.rocksdb.listing import Found
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.registry import QueueState
from zq.storage.rocksdb.unfinished import Pinned, Unfinished

STEP: Final = 1000
"""Messages of a commit that is one write at most: whatever is allowed, a write holds up every thread."""
Shelf = tuple[bytes, Stage]
"""(key, stage)"""


class Terms(NamedTuple):
    """When a batch is committed, and how much it may be."""

    now: int
    bounds: Bounds


def names(commit: Commit) -> list[bytes]:
    """What to hold while a commit runs."""
    shelves = [stages.name(stages.prefix(commit.project, stage)) for stage in commit.publish]
    return [producer_name(commit.project, commit.producer), *shelves, *fences.names(commit.project, commit.fence)]


def last(store: Store, project: str, producer: str, now: int) -> tuple[bytes, Committed] | None:
    """The producer's key and last batch, if it is known."""
    found = due.living(store, "producers", _producer(project, producer), now)
    if found is None:
        return None
    batch = layout.decode_batch(found[1])
    is_open = unfinished.find(store, _producer(project, producer)) is not None
    return found[0], Committed(batch.batch, batch.published, batch.deleted, open=is_open)


def producer_name(project: str, producer: str) -> bytes:
    """What to hold while the producer's open commit is carried on."""
    return b"producer " + _producer(project, producer)


def carry_on(opened: Opened, project: str, producer: str, most: int, now: int) -> bool:
    """One slice of the producer's open commit; whether anything of it is left."""
    return carrying.carry_on(opened, _producer(project, producer), most, now)


def every_open(store: Store) -> list[model.Unfinished]:
    """The open commits."""
    return [
        model.Unfinished(layout.project_of(layout.prefix_of(key)), _producer_of(key), f"{len(value)} {crc32(value)}")
        for key, value in unfinished.every(store)
    ]


def run(opened: Opened, commit: Commit, now: int, bounds: Bounds) -> Committed:
    """Decide the batch, and do it if it is small; or repeat what the last one did."""
    store = opened.store
    known = last(store, commit.project, commit.producer, now)
    found = {name: stages.find(store, stages.prefix(commit.project, name), now) for name in commit.publish}
    shelves = [shelf for shelf in found.values() if shelf is not None]
    ended = [write for shelf in shelves for write in stages.removal(*shelf)]
    if known is not None and (known[1].open or commit.batch <= known[1].batch):
        replayed = commit.batch <= known[1].batch
        if ended and replayed:
            store.write(ended)
        return structs.replace(known[1], replayed=replayed)
    if known is None and unfinished.find(store, _producer(commit.project, commit.producer)) is not None:
        raise CommitRunning("A commit of the producer is being carried out: try again soon.")
    fences.check(store, commit.project, commit.fence)
    for name, shelf in found.items():
        if shelf is None:
            raise StageNotFound(f"There is no stage {name} in the project.")
        check_stage(commit, name, shelf[1].count)
    traces = due.traces("producers", known[0], due.end_of(known[0])) if known is not None else []
    return _decide(opened, commit, shelves, traces, Terms(now, bounds))


def _decide(
    opened: Opened, commit: Commit, shelves: Sequence[Shelf], traces: Sequence[Write], terms: Terms
) -> Committed:
    """Look at the claims, under their queues' locks, and say what is to become of the batch."""
    claims = list({(held.queue, held.claim): held for held in commit.settle}.values())
    refs = list(dict.fromkeys(claim.queue for claim in claims))
    published, size = (sum(getattr(stage, what) for _, stage in shelves) for what in ("count", "size"))
    with opened.registry.held(*refs) as found:
        states = {ref: state for ref, state in zip(refs, found, strict=True) if state is not None}
        held = [_sequences(opened.store, states.get(claim.queue), claim, terms.now) for claim in claims]
        committed = Committed(commit.batch, published, sum(map(len, held)))
        check_size(committed, terms.bounds)
        if published + committed.deleted > min(terms.bounds.step, STEP) or size > CAPACITY:
            together: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
            for claim, its in zip(claims, held, strict=True):
                together[states[claim.queue].number, claim.history] += its
            pinned = [Pinned(*place, sorted(sequences)) for place, sequences in together.items()]
            _open(
                opened.store,
                commit,
                committed,
                [stage for _, stage in shelves],
                pinned,
                [
                    *traces,
                    *(write for key, _ in shelves for write in due.traces("stages", key, due.end_of(key))),
                    *_remembered(commit, committed, terms.now),
                ],
            )
            for claim, its in zip(claims, held, strict=True):
                states[claim.queue].pinned.update(its)
            return structs.replace(committed, open=True)
    ended = [write for shelf in shelves for write in stages.removal(*shelf)]
    return _at_once(opened, commit, claims, shelves, [*traces, *ended], terms.now)


def _open(
    store: Store,
    commit: Commit,
    committed: Committed,
    taken: Sequence[Stage],
    pinned: list[Pinned],
    writes: Sequence[Write],
) -> None:
    """Note what is to be done: this write is the decision."""
    left = [unfinished.Shelf(stage.number, 0, stage.count) for stage in taken if stage.count]
    opened = Unfinished(committed.batch, committed.published, committed.deleted, pinned, left)
    store.write([unfinished.write(_producer(commit.project, commit.producer), opened), *writes])


def _at_once(
    opened: Opened, commit: Commit, claims: Sequence[Held], shelves: Sequence[Shelf], ended: Sequence[Write], now: int
) -> Committed:
    """Publish and settle, with the queues locked; a queue that is missing is created first."""
    store, registry = opened
    staged = [item for _, stage in shelves for item in stages.messages(store, stage)]
    targets = dict.fromkeys(item.queue for item in staged)
    refs = list(dict.fromkeys([*(claim.queue for claim in claims), *(QueueRef(commit.project, to) for to in targets)]))
    while True:
        with registry.held(*refs) as found:
            states = {ref: state for ref, state in zip(refs, found, strict=True) if state is not None}
            held = [_held(store, states.get(claim.queue), claim, now) for claim in claims]
            if len(states) == len(refs):
                change = Change(store)
                for item in staged:
                    change.post(states[QueueRef(commit.project, item.queue)], item.draft, now)
                _delete(change, states, claims, held, now)
                committed = Committed(commit.batch, len(staged), sum(map(len, held)))
                change.also(*ended, *_remembered(commit, committed, now))
                change.commit()
                return committed
        for ref in refs:
            registry.ensure(ref)


def _sequences(store: Store, state: QueueState | None, claim: Held, now: int) -> list[int]:
    """All that the claim holds, by sequence."""
    held = sequences_of(store, state, claim.claim, now)
    if not held:
        raise _lapsed(claim)
    return held


def _held(store: Store, state: QueueState | None, claim: Held, now: int) -> list[Found]:
    """All that the claim holds."""
    held = held_by(store, state, claim.claim, now)
    if not held:
        raise _lapsed(claim)
    return held


def _lapsed(claim: Held) -> ClaimLapsed:
    return ClaimLapsed(f"The claim {claim.claim} is not live any more; nothing has changed.")


def _delete(
    change: Change,
    states: dict[QueueRef, QueueState],
    claims: Sequence[Held],
    held: Sequence[list[Found]],
    now: int,
) -> None:
    for claim, its in zip(claims, held, strict=True):
        end = End(Outcome.DELETED, claim.history, now)
        for sequence, record in its:
            change.finish(states[claim.queue], sequence, record, end)


def _remembered(commit: Commit, committed: Committed, now: int) -> list[Write]:
    """The producer's last batch, until its time is up."""
    expires = now + commit.ttl * 1000
    key = _producer(commit.project, commit.producer) + layout.number.pack(expires)
    value = Batch(committed.batch, committed.published, committed.deleted)
    return due.writes("producers", key, layout.encode(value), expires)


def _producer(project: str, producer: str) -> bytes:
    return layout.ended(layout.project_prefix(project), producer)


def _producer_of(key: bytes) -> str:
    return key[len(layout.prefix_of(key)) : -1].decode()
