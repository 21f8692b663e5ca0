# SPDX-License-Identifier: Apache-2.0
"""One batch of a producer, decided and done in one write. The caller holds the names of all that it is about."""

from collections.abc import Sequence

from msgspec import structs

from zq.errors import ClaimLapsed, StageNotFound
from zq.model import Commit, Committed, Held, Outcome, QueueRef
from zq.storage.rocksdb import due, fences, layout, stages
from zq.storage.rocksdb.change import Change, End
from zq.storage.rocksdb.holding import held_by
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.layout import Batch, Stage
from zq.storage.rocksdb.listing import Found
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.registry import QueueState

Shelf = tuple[bytes, Stage]
"""(key, stage)"""


def names(commit: Commit) -> list[bytes]:
    """What to hold while a commit runs."""
    shelves = [stages.name(stages.prefix(commit.project, stage)) for stage in commit.publish]
    producer = b"producer " + _producer(commit.project, commit.producer)
    return [producer, *shelves, *fences.names(commit.project, commit.fence)]


def last(store: Store, project: str, producer: str, now: int) -> tuple[bytes, Committed] | None:
    """The producer's key and last batch, if it is known."""
    found = due.living(store, "producers", _producer(project, producer), now)
    if found is None:
        return None
    batch = layout.decode_batch(found[1])
    return found[0], Committed(batch.batch, batch.published, batch.deleted)


def run(opened: Opened, commit: Commit, now: int) -> Committed:
    """Decide and do the batch, or repeat what the last one did."""
    store = opened.store
    known = last(store, commit.project, commit.producer, now)
    found = {name: stages.find(store, stages.prefix(commit.project, name), now) for name in commit.publish}
    shelves = [shelf for shelf in found.values() if shelf is not None]
    ended = [write for shelf in shelves for write in stages.removal(*shelf)]
    if known is not None and commit.batch <= known[1].batch:
        if ended:
            store.write(ended)
        return structs.replace(known[1], replayed=True)
    fences.check(store, commit.project, commit.fence)
    if len(shelves) < len(found):
        missing = next(name for name, shelf in found.items() if shelf is None)
        raise StageNotFound(f"There is no stage {missing} in the project.")
    if known is not None:
        ended += due.traces("producers", known[0], due.end_of(known[0]))
    return _decide(opened, commit, shelves, ended, now)


def _decide(opened: Opened, commit: Commit, shelves: Sequence[Shelf], ended: Sequence[Write], now: int) -> Committed:
    """Publish and settle, with the queues locked; a queue that is missing is created first."""
    store, registry = opened
    claims = list({(held.queue, held.claim): held for held in commit.settle}.values())
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


def _held(store: Store, state: QueueState | None, claim: Held, now: int) -> list[Found]:
    """All that the claim holds."""
    held = held_by(store, state, claim.claim, now)
    if not held:
        raise ClaimLapsed(f"The claim {claim.claim} is not live any more; nothing has changed.")
    return held


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
