# SPDX-License-Identifier: Apache-2.0
"""What the controllers share: scripts run on a queue, what they refuse as errors, moves, and the expiry schedule."""

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from struct import Struct as Packing
from typing import Any, Final, NamedTuple

import msgspec
from cachetools import FIFOCache

from zq.errors import (
    ClaimLapsed,
    ClaimNotFound,
    ClaimNotHeld,
    CommitRunning,
    CommitTooLarge,
    DraftsRepeated,
    Fenced,
    KeyReused,
    MessageClaimed,
    QueueNotFound,
    Repeated,
    StageDiffers,
    StageFull,
    StageNotFound,
    ZqError,
)
from zq.model import Draft, IdempotencyKey, Move, QueueRef, Settled
from zq.model.stats import removals
from zq.storage.redis import layout, scripts
from zq.storage.redis.client import Client, Question
from zq.storage.redis.connections import Reply
from zq.storage.redis.layout import Block
from zq.storage.redis.scripts import Script

# Milliseconds to which moments of the expiry schedule are rounded down, so that servers enter the same ones.
GRID: Final = 15_000
# Milliseconds before an entry's moment from which no new message relies on it: whoever comes at that moment may be
# done before the message has arrived.
MARGIN: Final = 30_000
# Milliseconds after which a queue is looked at to which messages move whose expiry is known only afterwards, in case a
# server dies between moving and saying so.
BURIAL: Final = 60_000
# Queues, and projects, that a server remembers to have entered; a ``FIFOCache`` is read without a lock.
MOST_KNOWN: Final = 100_000


class Store:
    """Runs scripts, and keeps the expiry schedule.

    The expiry schedule says when a queue has to be looked at because something may have expired. It lies in another
    cluster slot than the queue, so an entry is made before the message that needs it; one entry serves all that expire
    later.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.removals = removals()
        self._scheduled = FIFOCache[QueueRef, int](MOST_KNOWN)
        self._registered = FIFOCache[str, bool](MOST_KNOWN)
        self._lock = threading.Lock()

    def run(self, script: Script, queue: QueueRef, *arguments: bytes, more: Iterable[Block] = ()) -> Reply:
        """Run a script on a queue, with more keys of the same project."""
        return self.client.run(script, (*layout.keys(queue).first, *chain.from_iterable(more)), *arguments)

    def question(self, script: Script, queue: QueueRef, *arguments: bytes) -> Question:
        """The same for ``Client.each``, of a script that only reads."""
        keys = layout.keys(queue).first
        return Question(keys[0], arguments, script, keys)

    def history(self, queue: QueueRef, seconds: int, now: int) -> list[Block]:
        """The keys of a queue's history, none for 0 seconds. The expiry schedule has entries made at ``now``, in ms."""
        if not seconds:
            return []
        self.schedule_expiry(queue, now + seconds * 1000, now)
        return [layout.keys(queue).history]

    def answers(self, queue: QueueRef, idempotency_key: IdempotencyKey, now: int) -> tuple[Block, list[bytes]]:
        """The keys for requests that a queue knows; key, digest and last moment of this one, as scripts take them."""
        expires = now + idempotency_key.window * 1000
        self.schedule_expiry(queue, expires, now)
        return layout.keys(queue).answers, [layout.text(idempotency_key.key), idempotency_key.digest, b"%d" % expires]

    def schedule_expiry(self, queue: QueueRef, expires: int, now: int) -> None:
        """Have the queue looked at by ``expires``, in ms: to be called before a message is stored that expires then."""
        try:
            entered = self._scheduled[queue]  # in one step: another thread may evict it
        except KeyError:
            entered = 0
        if entered <= expires and now < entered - MARGIN:
            return
        moment = max(1, expires // GRID * GRID)
        self.register_project(queue.project)
        self.schedule(queue, moment)
        with self._lock:
            self._scheduled[queue] = moment

    def register_project(self, project: str) -> None:
        """Have the project known as one that has queues: to be called before the first one is made."""
        if project not in self._registered:
            self.schedule(layout.whole(project), layout.FAR)
            with self._lock:
                self._registered[project] = True

    def schedule(self, queue: QueueRef, moment: int, done: bytes = b"") -> None:
        """Add an entry of this moment (0: none) to the queue's bucket and remove ``done``."""
        key = layout.bucket_of(queue)
        member = layout.schedule_entry(queue, moment)
        self.client.run(scripts.SCHEDULE, (key,), b"%d" % moment, member, done, b"")


# Front of what a queue knows of a key: until when, and the length of the digest, which follows; then the answer.
KNOWN: Final = Packing(">QH")
# As MessagePack begins two values, and a number of 8 bytes.
PAIR: Final = b"\x92"
NUMBER: Final = b"\xcf"
# Front of what a settlement did: how many were deleted, released, moved, buried; the ids that were lost follow.
SETTLED: Final = Packing(">IIII")
# What a script that refuses returns first, where that is all there is.
ERRORS: Final[dict[bytes, type[ZqError]]] = {
    b"claimed": MessageClaimed,
    b"unheld": ClaimNotHeld,
    b"unclaimed": ClaimNotFound,
    b"fenced": Fenced,
    b"full": StageFull,
    b"running": CommitRunning,
    b"missing": QueueNotFound,
}


def checked(
    reply: Reply, idempotency_key: IdempotencyKey | None = None, answer: Callable[[bytes], Any] | None = None
) -> Reply:
    """The reply of a script that did its work. ``answer`` reads the answer to a repeat of ``idempotency_key``; None: it
    is a post's."""
    if not isinstance(reply, list):
        return reply
    if idempotency_key is None or reply[0] != b"known":
        raise _error(reply)
    packed = _answered(reply[1], idempotency_key)
    raise unpack_posted(packed) if answer is None else Repeated(answer(packed))


def raise_repeated(reply: Reply, drafts: Sequence[Draft]) -> None:
    """Raise what a post is told of drafts whose keys are known, if that is its reply."""
    if not isinstance(reply, list) or reply[0] != b"repeated":
        return
    first: dict[str, Repeated] = {}
    for of, known in zip(reply[1::2], reply[2::2], strict=True):
        draft = drafts[of - 1]
        assert draft.once is not None, "the script was told of its key"
        first[draft.id] = unpack_posted(_answered(known, draft.once))
    raise DraftsRepeated(first)


def _answered(known: bytes, idempotency_key: IdempotencyKey) -> bytes:
    """The answer in what is known of the key. Raises ``KeyReused``."""
    end = KNOWN.size + KNOWN.unpack_from(known)[1]
    if known[KNOWN.size : end] != idempotency_key.digest:
        raise KeyReused
    return known[end:]


def _error(reply: Sequence[bytes]) -> ZqError:
    kind, *about = reply
    match kind:
        case b"unstaged":
            return StageNotFound.of(layout.string(about[0]))
        case b"lapsed":
            return ClaimLapsed.of(layout.string(about[0]))
        case b"differs":
            return StageDiffers.of(layout.string(about[0]), int(about[1]), int(about[2]))
        case b"much":
            return CommitTooLarge.of(int(about[0]), int(about[1]))
    return ERRORS[kind]()


def unpack_settled(packed: bytes) -> Settled:
    """What a settlement did, as the script returns and keeps it."""
    deleted, released, moved, buried = SETTLED.unpack_from(packed)
    return Settled(deleted, released, moved, buried, layout.ids(packed[SETTLED.size :]))


def packed_ids(drafts: Sequence[Draft]) -> bytes:
    """The answer to a repeated post into a stage."""
    return msgspec.msgpack.encode([draft.id for draft in drafts])


def packed_posted(drafts: Sequence[Draft]) -> bytes:
    """The answer to a repeated post, but for the last sequence: the script adds its 8 bytes."""
    return PAIR + packed_ids(drafts) + NUMBER


def unpack_posted(answer: bytes) -> Repeated:
    """What a post was answered. It may be one into a stage, or of an earlier version: then there are ids alone."""
    told = msgspec.msgpack.decode(answer)
    return Repeated(*told) if told and isinstance(told[0], list) else Repeated(told)


class MovePlan(NamedTuple):
    """Where messages go, as scripts read it."""

    targets: list[QueueRef]
    terms: list[bytes]
    """What ``read_targets`` and ``read_moves`` read."""

    @property
    def blocks(self) -> list[Block]:
        return [layout.keys(target).queue for target in self.targets]


def plan_moves(store: Store, project: str, moves: Sequence[Move], moment: int) -> MovePlan:
    """The plan of moves, whose arrivals are in the expiry schedule now: to be called before the messages move."""
    numbers: dict[str, int] = {}
    terms: list[bytes] = []
    expiries: dict[str, int] = {}
    for move in moves:
        number = numbers.setdefault(move.to, len(numbers) + 1)
        ttl = -1 if move.ttl is None else move.ttl
        soonest = moment + (BURIAL if move.ttl is None else move.ttl * 1000)
        expiries[move.to] = min(soonest, expiries.get(move.to, soonest))
        terms += [layout.packed(move.id), b"%d" % number, b"%d" % ttl, b"%d" % move.delay, b"%d" % move.keeps_age]
        terms += [layout.text(move.reason), layout.text(move.checksum)]
        terms += [b"0"] if move.body is None else [b"1", move.body]
    targets = [QueueRef(project, name) for name in numbers]
    for target in targets:
        store.schedule_expiry(target, expiries[target.name], moment)
    return MovePlan(targets, [layout.full(target) for target in targets] + terms)


def schedule_arrivals(store: Store, targets: Sequence[QueueRef], blob: bytes, moment: int) -> bytes:
    """Put what has arrived into the expiry schedule, by the front of a reply; the rest of the reply."""
    at = 0
    for target in targets:
        earliest = layout.MOMENT.unpack_from(blob, at)[0]
        at += layout.MOMENT.size
        if earliest:
            store.schedule_expiry(target, earliest, moment)
    return blob[at:]
