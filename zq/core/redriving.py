# SPDX-License-Identifier: Apache-2.0
"""Redrive of dead letters, and its dry run (extensions contract, section 4)."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from zq import turns
from zq.clock import Clock
from zq.core.quotas import AnyQuotas
from zq.core.rules import Rules, RulesCache
from zq.errors import Invalid, QueuePaused
from zq.events import Events
from zq.model import ListFilter, Message, Move, Outcome, QueueRef
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.limits import (
    DEFAULT_BATCH,
    MAX_BATCH,
    MAX_NAMED,
    check_count,
    check_queue_name,
    check_range,
    check_target,
    check_unique,
)
from zq.model.scopes import Kind, Verb
from zq.storage.api import Storage
from zq.wire.answers import RedriveDryRun, RedriveResult
from zq.wire.extensions import RedriveTerms

# Number of messages moved at a time.
CHUNK: Final = 100
# Maximum bytes of bodies and attributes that are read at a time. A single message may exceed it.
CHUNK_BYTES: Final = 4_000_000
# Policy rule for moving messages to a queue: the rule for posting to it.
MOVE_RULE: Final = "messages:create"
NO_ORIGIN: Final = 'The field "to" must name a target queue, because a message in the queue has no origin queue.'


class Routes:
    """The target queues of one redrive.

    A message is moved only if the client may post to the target and posts to the target are not paused. If ``to`` is
    ``None``, each message goes to its origin queue. Otherwise, the caller must already have checked the client's
    permission to post to ``to``.
    """

    def __init__(
        self, rules_cache: RulesCache, project: str, to: str | None, origin: str | None, allowance: Allowance
    ) -> None:
        self._rules_cache = rules_cache
        self._project = project
        self._to = to
        self._allowance = allowance
        self._targets: dict[str, Rules] = {}
        self.origin = origin
        """The queue from which the messages must come; ``None`` = any queue."""

    def selected(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages if self.origin is None else [each for each in messages if each.origin == self.origin]

    def has_target(self, message: Message) -> bool:
        return bool(self._to or message.origin)

    def moves(self, messages: Sequence[Message]) -> list[Move]:
        """Return a ``Move`` for each message that may be moved, with the default delay of its target queue."""
        moves = []
        for message in messages:
            target = self._to or message.origin
            if target and (self._to or self._allowance.allows(MOVE_RULE, Verb.PRODUCE, Kind.QUEUE, target)):
                if target not in self._targets:
                    self._targets[target] = self._rules_cache.fresh(QueueRef(self._project, target))
                if not self._targets[target].posts_paused:
                    moves.append(Move(message.id, target, delay=self._targets[target].default_message_delay))
        return moves

    def check_paused(self) -> None:
        """Raise ``QueuePaused`` if posts to one of the targets are paused."""
        if paused := [target for target, rules in self._targets.items() if rules.posts_paused]:
            raise QueuePaused.of(paused[0])


class Redriving:
    """The operations that move dead letters out of a queue, or count the possible moves in a dry run."""

    def __init__(
        self, storage: Storage, clock: Clock, rules_cache: RulesCache, events: Events, quotas: AnyQuotas
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._rules_cache = rules_cache
        self._events = events
        self._quotas = quotas

    def redrive(self, queue: QueueRef, terms: RedriveTerms, allowance: Allowance = EVERYTHING) -> RedriveResult:
        """Move ready messages to ``terms.to``, or back to their origin queues.

        Without ``terms.ids``, the oldest messages are moved. Without ``terms.to``, a message stays in the queue if it
        has no origin, if the caller may not post to its origin, or if posts to its origin are paused.

        Raises:
            NotAuthorized: The caller may not post to ``terms.to``.
            Invalid: ``terms.to`` is not set, no message was moved, and a message to move has no origin.
            QueuePaused: No message was moved, and posts to a target are paused.
        """
        routes = self._routes(queue, terms, allowance)
        lost: list[str] | UnsetType = UNSET
        if terms.ids is UNSET:
            limit = DEFAULT_BATCH if terms.limit is UNSET else terms.limit
            moved = self._move_oldest(queue, routes, limit)
        else:
            moved, lost = self._move_named(queue, routes, terms.ids)
        if not moved:
            routes.check_paused()
        self._events.finished(queue, Outcome.MOVED, moved)
        return RedriveResult(moved, self._storage.queues.ready(queue, MAX_BATCH, self._clock.now()).count, lost)

    def dry_run(self, queue: QueueRef, terms: RedriveTerms, allowance: Allowance = EVERYTHING) -> RedriveDryRun:
        """Return the expected result of ``redrive`` without moving messages. Inspect at most ``MAX_BATCH`` messages.

        Without ids, ``redrive`` stops at the first message without a target queue. The dry run continues after this
        message, and includes later messages in the fields ``counted`` and ``origins`` of the result.
        """
        routes = self._routes(queue, terms, allowance)
        limit = MAX_BATCH if terms.limit is UNSET else terms.limit
        named = terms.ids is not UNSET
        pages = self._oldest(queue) if terms.ids is UNSET else self._named(queue, terms.ids)
        would_move, counted, blocked = 0, 0, False
        origins: Counter[str] = Counter()
        seen: set[str] = set()
        for page in pages:
            inspected = page[: MAX_BATCH - counted]
            messages = routes.selected(inspected)[: limit - would_move]
            end = next((at for at, found in enumerate(messages) if not routes.has_target(found)), len(messages))
            would_move += 0 if blocked else len(routes.moves(messages if named else messages[:end]))
            blocked = blocked or (end < len(messages) and not named)
            counted += len(messages if routes.origin is None else inspected)
            origins.update(message.origin for message in messages)
            seen.update(message.id for message in messages if named)
            if would_move >= limit or counted >= MAX_BATCH:
                break
        without, there = origins.pop("", 0), self._existing(queue.project, origins)
        known = {name: count for name, count in origins.items() if name in there}
        missing = {name: count for name, count in origins.items() if name not in there}
        lost = UNSET if terms.ids is UNSET else [id for id in terms.ids if id not in seen]
        return RedriveDryRun(would_move, known, without, missing, counted, lost)

    def _routes(self, queue: QueueRef, terms: RedriveTerms, allowance: Allowance) -> Routes:
        if terms.limit is not UNSET:
            check_range("limit", terms.limit, 1, MAX_BATCH)
        if terms.ids is not UNSET:
            for name in ("limit", "origin"):
                if getattr(terms, name) is not UNSET:
                    raise Invalid(f"{name} cannot be combined with ids.")
            check_count("ids", len(terms.ids), MAX_NAMED)
            check_unique("ids", terms.ids)
        to = None if terms.to is UNSET else check_queue_name("to", terms.to)
        if to == queue.name:
            raise Invalid('The field "to" must not name the queue that is redriven.')
        origin = None if terms.origin is UNSET else check_queue_name("origin", terms.origin)
        if to is not None or not allowance.permits(MOVE_RULE):
            allowance.authorize(MOVE_RULE, Verb.PRODUCE, Kind.QUEUE, to or queue.name)
        if to is not None:
            target = QueueRef(queue.project, to)
            check_target("to", target, self._storage.queues.get)
            self._rules_cache.check_posts(target)
        return Routes(self._rules_cache, queue.project, to, origin, allowance)

    def _move_oldest(self, queue: QueueRef, routes: Routes, limit: int) -> int:
        """Move the oldest messages. Stop before the first message without a target. Return the number of moves."""
        moved = marker = left = 0
        while moved < limit and left < MAX_BATCH:
            size = min(CHUNK, limit - moved) if routes.origin is None else CHUNK
            page = self._storage.messages.list(queue, marker, size, ListFilter(), self._clock.now(), CHUNK_BYTES)
            selected = routes.selected(page.items)[: limit - moved]
            end = next((at for at, message in enumerate(selected) if not routes.has_target(message)), len(selected))
            movable = selected[:end]
            if selected and not movable and not moved:
                raise Invalid(NO_ORIGIN)
            moves = routes.moves(movable)
            moved += len(self._moved(queue, moves))
            left += len(page.items) - len(moves)
            if page.next is None or len(movable) < len(selected):
                break
            marker = int(page.next)
            turns.give_way()
        return moved

    def _move_named(self, queue: QueueRef, routes: Routes, ids: Sequence[str]) -> tuple[int, list[str]]:
        """Move ready messages. Return the number of moves, and the ids of messages that are missing or not ready."""
        went: set[str] = set()
        stay: set[str] = set()
        homeless = False
        for messages in self._named(queue, ids):
            homeless = homeless or not all(map(routes.has_target, messages))
            moves = routes.moves(messages)
            went.update(self._moved(queue, moves))
            stay.update({message.id for message in messages} - {move.id for move in moves})
        if homeless and not went:
            raise Invalid(NO_ORIGIN)
        return len(went), [id for id in ids if id not in went and id not in stay]

    def _moved(self, queue: QueueRef, moves: Sequence[Move]) -> Sequence[str]:
        if not moves:
            return []
        history = self._rules_cache.recent(queue).history_ttl
        targets = {QueueRef(queue.project, move.to) for move in moves}
        with self._quotas.admit_targets(targets):
            now = self._clock.now()
            self._rules_cache.admit_moves(queue, moves, now)
            return self._storage.messages.move(queue, moves, now, history)

    def _oldest(self, queue: QueueRef) -> Iterator[Sequence[Message]]:
        marker = 0
        while True:
            page = self._storage.messages.list(queue, marker, CHUNK, ListFilter(), self._clock.now(), CHUNK_BYTES)
            yield page.items
            if page.next is None:
                return
            marker = int(page.next)
            turns.give_way()

    def _named(self, queue: QueueRef, ids: Sequence[str]) -> Iterator[Sequence[Message]]:
        """Yield the ready messages with these ids, in pages.

        A claimed message is not ready, and neither is a message that a running commit settles.
        """
        for start in range(0, len(ids), CHUNK):
            if start:
                turns.give_way()
            now = self._clock.now()
            found = self._storage.messages.get(queue, ids[start : start + CHUNK], now)
            yield [message for message in found if message.available <= now and not message.claim]

    def _existing(self, project: str, names: Collection[str]) -> set[str]:
        return {name for name in names if self._storage.queues.get(QueueRef(project, name)) is not None}
