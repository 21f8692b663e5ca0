# SPDX-License-Identifier: Apache-2.0
"""Code that several operations share: queue scripts, script errors, moves, and the expiry schedule."""

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
from zq.model import Draft, IdempotencyKey, Move, QueueRef, SettleResult
from zq.model.stats import removals
from zq.storage.redis import layout, scripts
from zq.storage.redis.client import Client, ReadRequest
from zq.storage.redis.connections import Reply
from zq.storage.redis.layout import Block
from zq.storage.redis.scripts import Script

# Milliseconds to which times in the expiry schedule are rounded down, so that servers create equal entries.
EXPIRY_GRID_MS: Final = 15_000
# Milliseconds before its due time at which an entry no longer covers new messages, because the sweep may finish before
# such a message is stored.
MARGIN: Final = 30_000
# Milliseconds after which the target queue of a move is swept. The sweep is needed if the server dies before it
# schedules the exact expiry of the moved messages.
BURIAL: Final = 60_000
# Maximum number of queues and projects whose schedule entries are cached. A ``FIFOCache`` is read without a lock.
MAX_KNOWN: Final = 100_000


class Store:
    """A Redis store, which runs scripts on queues and schedules their sweeps. Times are in milliseconds.

    A sweep removes a queue's expired data. A schedule entry contains a queue and the time of its next sweep. The entry
    and the queue are in different cluster slots, so the entry is created before the message that needs it. One entry is
    enough for all later expiries, because each sweep schedules the next one.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.removals = removals()
        self._scheduled = FIFOCache[QueueRef, int](MAX_KNOWN)
        self._registered = FIFOCache[str, bool](MAX_KNOWN)
        self._lock = threading.Lock()

    def run(self, script: Script, queue: QueueRef, *arguments: bytes, more: Iterable[Block] = ()) -> Reply:
        """Run a script on a queue and return its reply."""
        return self.client.run(script, (*layout.keys(queue).first, *chain.from_iterable(more)), *arguments)

    def read_request(self, script: Script, queue: QueueRef, *arguments: bytes) -> ReadRequest:
        """Build a request that runs a read-only script on a queue. ``Client.read_pipelined`` sends such requests."""
        keys = layout.keys(queue).first
        return ReadRequest(keys[0], arguments, script, keys)

    def schedule_history(self, queue: QueueRef, seconds: int, now: int) -> list[Block]:
        """Schedule the removal of new history entries, and return the Redis keys of the queue's history.

        ``seconds`` is the retention of the new entries. If it is 0, the queue has no history, and the result is empty.
        """
        if not seconds:
            return []
        self.schedule_expiry(queue, now + seconds * 1000, now)
        return [layout.keys(queue).history]

    def schedule_idempotency_key(
        self, queue: QueueRef, idempotency_key: IdempotencyKey, now: int
    ) -> tuple[Block, list[bytes]]:
        """Schedule the removal of an idempotency key.

        Return the Redis keys of the queue's stored results, and the script arguments for the idempotency key.
        """
        expires = now + idempotency_key.window * 1000
        self.schedule_expiry(queue, expires, now)
        return layout.keys(queue).answers, [
            layout.encode_text(idempotency_key.key),
            idempotency_key.digest,
            b"%d" % expires,
        ]

    def schedule_expiry(self, queue: QueueRef, expires: int, now: int) -> None:
        """Ensure a sweep of the queue at ``expires`` or earlier. Call this before the expiring data is stored."""
        try:
            entered = self._scheduled[queue]  # in one step, because another thread may evict the entry
        except KeyError:
            entered = 0
        if entered <= expires and now < entered - MARGIN:
            return
        moment = max(1, expires // EXPIRY_GRID_MS * EXPIRY_GRID_MS)
        self.register_project(queue.project)
        self.schedule(queue, moment)
        with self._lock:
            self._scheduled[queue] = moment

    def register_project(self, project: str) -> None:
        """Add the project to the expiry schedule. Call this before the project's first queue is created."""
        if project not in self._registered:
            self.schedule(layout.project_ref(project), layout.LATEST_SCORE)
            with self._lock:
                self._registered[project] = True

    def schedule(self, queue: QueueRef, moment: int, done: bytes = b"") -> None:
        """Schedule a sweep of the queue at ``moment``, and remove the schedule entry ``done``.

        If ``moment`` is 0, only remove the entry.
        """
        key = layout.queue_bucket_key(queue)
        member = layout.schedule_entry(queue, moment)
        self.client.run(scripts.SCHEDULE, (key,), b"%d" % moment, member, done, b"")


# Header of a remembered request: expiry and length of the digest. The digest and the result follow.
REQUEST_HEADER: Final = Packing(">QH")
# First byte of a MessagePack array of two values, and of an 8-byte number.
PAIR: Final = b"\x92"
NUMBER: Final = b"\xcf"
# Header of a settlement's result: numbers of deleted, released, moved and buried messages. The lost ids follow.
SETTLE_HEADER: Final = Packing(">IIII")
# Errors of scripts that reply with a code only.
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
    """Return a script's reply, or raise the error that the reply reports.

    ``answer`` decodes the stored result of a repeated request. The default is the decoder for results of posts.

    Raises:
        Repeated: An earlier request had the same idempotency key. The error contains the decoded result.
        KeyReused: A different request had the same idempotency key.
        ZqError: The script rejected the request.
    """
    if not isinstance(reply, list):
        return reply
    if idempotency_key is None or reply[0] != b"known":
        raise _read_error(reply)
    packed = _read_result(reply[1], idempotency_key)
    raise decode_posted(packed) if answer is None else Repeated(answer(packed))


def raise_repeated(reply: Reply, drafts: Sequence[Draft]) -> None:
    """Raise ``DraftsRepeated`` if the reply reports drafts whose idempotency keys were used before."""
    if not isinstance(reply, list) or reply[0] != b"repeated":
        return
    first: dict[str, Repeated] = {}
    for of, known in zip(reply[1::2], reply[2::2], strict=True):
        draft = drafts[of - 1]
        assert draft.once is not None, "the script was called with the key"
        first[draft.id] = decode_posted(_read_result(known, draft.once))
    raise DraftsRepeated(first)


def _read_result(known: bytes, idempotency_key: IdempotencyKey) -> bytes:
    end = REQUEST_HEADER.size + REQUEST_HEADER.unpack_from(known)[1]
    if known[REQUEST_HEADER.size : end] != idempotency_key.digest:
        raise KeyReused
    return known[end:]


def _read_error(reply: Sequence[bytes]) -> ZqError:
    kind, *about = reply
    match kind:
        case b"unstaged":
            return StageNotFound.of(layout.decode_text(about[0]))
        case b"lapsed":
            return ClaimLapsed.of(layout.decode_text(about[0]))
        case b"differs":
            return StageDiffers.of(layout.decode_text(about[0]), int(about[1]), int(about[2]))
        case b"much":
            return CommitTooLarge.of(int(about[0]), int(about[1]))
    return ERRORS[kind]()


def decode_settled(packed: bytes) -> SettleResult:
    deleted, released, moved, buried = SETTLE_HEADER.unpack_from(packed)
    return SettleResult(deleted, released, moved, buried, layout.decode_ids(packed[SETTLE_HEADER.size :]))


def encode_ids(drafts: Sequence[Draft]) -> bytes:
    """Encode the message ids of the drafts as a MessagePack array."""
    return msgspec.msgpack.encode([draft.id for draft in drafts])


def encode_posted(drafts: Sequence[Draft]) -> bytes:
    """Encode the beginning of a post's stored result. The Lua script appends the sequence of the last message."""
    return PAIR + encode_ids(drafts) + NUMBER


def decode_posted(answer: bytes) -> Repeated:
    """Decode the stored result of a post: the message ids, and the sequence of the last message if it was stored."""
    # The results of stage requests and the results of earlier versions of zq contain only message ids.
    told = msgspec.msgpack.decode(answer)
    return Repeated(*told) if told and isinstance(told[0], list) else Repeated(told)


class MovePlan(NamedTuple):
    """The target queues of moves, and the script arguments for the moves."""

    targets: list[QueueRef]
    terms: list[bytes]
    """Arguments for the script parts ``read_targets`` and ``read_moves``."""

    @property
    def blocks(self) -> list[Block]:
        return [layout.keys(target).queue for target in self.targets]


def plan_moves(store: Store, project: str, moves: Sequence[Move], moment: int) -> MovePlan:
    """Build the script arguments for moves, and schedule sweeps for the earliest possible expiries.

    After the moves, call ``schedule_arrivals`` with the script's reply.
    """
    numbers: dict[str, int] = {}
    terms: list[bytes] = []
    expiries: dict[str, int] = {}
    for move in moves:
        number = numbers.setdefault(move.to, len(numbers) + 1)
        ttl = -1 if move.ttl is None else move.ttl
        soonest = moment + (BURIAL if move.ttl is None else move.ttl * 1000)
        expiries[move.to] = min(soonest, expiries.get(move.to, soonest))
        numbers_of_move = number, ttl, move.delay, move.keeps_age, move.may_create
        terms += [layout.pack_id(move.id), *(b"%d" % one for one in numbers_of_move)]
        terms += [layout.encode_text(move.reason), layout.encode_text(move.checksum)]
        terms += [b"0"] if move.body is None else [b"1", move.body]
    targets = [QueueRef(project, name) for name in numbers]
    for target in targets:
        store.schedule_expiry(target, expiries[target.name], moment)
    return MovePlan(targets, [layout.encode_full_name(target) for target in targets] + terms)


def schedule_arrivals(store: Store, targets: Sequence[QueueRef], blob: bytes, moment: int) -> bytes:
    """Schedule sweeps of the target queues after moves.

    ``blob`` is the script's reply. It begins with the earliest expiry in each target queue. Return the rest of the
    reply.
    """
    at = 0
    for target in targets:
        earliest = layout.MOMENT.unpack_from(blob, at)[0]
        at += layout.MOMENT.size
        if earliest:
            store.schedule_expiry(target, earliest, moment)
    return blob[at:]
