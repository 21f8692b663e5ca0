# SPDX-License-Identifier: Apache-2.0
"""Use cases that redrive dead letters, and the dry run of a redrive (extensions 4)."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from msgspec import UNSET, Struct, UnsetType

from zq import turns
from zq.clock import Clock
from zq.core.quotas import AnyQuotas
from zq.core.rules import Rules, RulesCache
from zq.errors import Invalid, QueuePaused
from zq.events import Events
from zq.limits import DEFAULT_BATCH, MAX_BATCH, MAX_NAMED, check_target, count_within, each_once, queue_name, within
from zq.model import ListFilter, Message, Move, Outcome, QueueRef
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.scopes import Kind, Verb
from zq.storage.api import Storage
from zq.wire.extensions import RedriveTerms

# Messages that a redrive moves at a time.
CHUNK: Final = 100
# Bytes of bodies that a dry run reads at a time.
CHUNK_BYTES: Final = 4_000_000
# The rule that the target of a move needs: a move is a post there.
MOVED: Final = "messages:create"
NO_WAY: Final = "to is missing: a message of the queue is no dead letter and has no queue to go back to."


class Redriven(Struct, frozen=True):
    """The number of moved messages, and of those still ready, counted up to ``MAX_BATCH``.

    ``lost``: the named ids whose message is not ready any more, in the order of the request.
    """

    moved: int
    remaining: int
    lost: list[str] | UnsetType = UNSET


class DryRun(Struct, frozen=True):
    """The outcome that a redrive would have.

    Of the ``counted`` ready messages: how many have no origin, an origin that exists, and one that would be created
    again. ``lost`` is that of ``Redriven``.
    """

    would_move: int
    origins: dict[str, int]
    without_origin: int
    missing_origin: dict[str, int]
    counted: int
    lost: list[str] | UnsetType = UNSET


class Ways:
    """The targets of one redrive: queues to which the caller may post and whose posts are not paused."""

    def __init__(self, rules_cache: RulesCache, project: str, to: str | None, allowance: Allowance) -> None:
        self._rules_cache = rules_cache
        self._project = project
        self._to = to
        self._allowance = allowance
        self._targets: dict[str, Rules] = {}

    def known(self, message: Message) -> bool:
        """Return whether the message has a target."""
        return bool(self._to or message.origin)

    def moves(self, messages: Sequence[Message]) -> list[Move]:
        """Return a move for each message that may move."""
        moves = []
        for message in messages:
            target = self._to or message.origin
            if target and (self._to or self._allowance.allows(MOVED, Verb.PRODUCE, Kind.QUEUE, target)):
                if target not in self._targets:
                    self._targets[target] = self._rules_cache.fresh(QueueRef(self._project, target))
                if not self._targets[target].posts_paused:
                    moves.append(Move(message.id, target, delay=self._targets[target].default_delay))
        return moves

    def check_paused(self) -> None:
        """Raise ``QueuePaused`` if posts to a target are paused."""
        if paused := [target for target, rules in self._targets.items() if rules.posts_paused]:
            raise QueuePaused.of(paused[0])


class Redriving:
    """The use cases of a dead-letter queue's messages."""

    def __init__(
        self, storage: Storage, clock: Clock, rules_cache: RulesCache, events: Events, quotas: AnyQuotas
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._rules_cache = rules_cache
        self._events = events
        self._quotas = quotas

    def redrive(self, queue: QueueRef, terms: RedriveTerms, allowance: Allowance = EVERYTHING) -> Redriven:
        """Move ready messages, the oldest or the named ones, to their origin or to ``terms.to``.

        Messages stay if the caller may not post to their origin, and named messages also if they have no origin.
        Raises ``NotAuthorized`` for ``to``, and, if nothing was moved, ``Invalid`` where a message has no origin, and
        ``QueuePaused`` at a target to which posts are paused.
        """
        ways = self._ways(queue, terms, allowance)
        lost: list[str] | UnsetType = UNSET
        if terms.ids is UNSET:
            limit = DEFAULT_BATCH if terms.limit is UNSET else terms.limit
            moved = self._move_oldest(queue, ways, limit)
        else:
            moved, lost = self._move_named(queue, ways, terms.ids)
        if not moved:
            ways.check_paused()
        self._events.finished(queue, Outcome.MOVED, moved)
        return Redriven(moved, self._storage.queues.ready(queue, MAX_BATCH, self._clock.now()).count, lost)

    def dry_run(self, queue: QueueRef, terms: RedriveTerms, allowance: Allowance = EVERYTHING) -> DryRun:
        """Return the outcome that ``redrive`` would have, for up to ``MAX_BATCH`` messages, and change nothing.

        Without ids a redrive stops before the first message that has no target; the dry run counts all the same.
        """
        ways = self._ways(queue, terms, allowance)
        limit = MAX_BATCH if terms.limit is UNSET else terms.limit
        named = terms.ids is not UNSET
        pages = self._oldest(queue) if terms.ids is UNSET else self._named(queue, terms.ids)
        would_move, counted, blocked = 0, 0, False
        origins: Counter[str] = Counter()
        seen: set[str] = set()
        for page in pages:
            messages = page[: min(limit - would_move, MAX_BATCH - counted)]
            way = next((at for at, found in enumerate(messages) if not ways.known(found)), len(messages))
            would_move += 0 if blocked else len(ways.moves(messages if named else messages[:way]))
            blocked = blocked or (way < len(messages) and not named)
            counted += len(messages)
            origins.update(message.origin for message in messages)
            seen.update(message.id for message in messages if named)
            if would_move >= limit or counted >= MAX_BATCH:
                break
        without, there = origins.pop("", 0), self._existing(queue.project, origins)
        known = {name: count for name, count in origins.items() if name in there}
        missing = {name: count for name, count in origins.items() if name not in there}
        lost = UNSET if terms.ids is UNSET else [id for id in terms.ids if id not in seen]
        return DryRun(would_move, known, without, missing, counted, lost)

    def _ways(self, queue: QueueRef, terms: RedriveTerms, allowance: Allowance) -> Ways:
        """Check the terms. Raises ``Invalid``, ``NotAuthorized``, ``QueuePaused``."""
        if terms.limit is not UNSET:
            within("limit", terms.limit, 1, MAX_BATCH)
        if terms.ids is not UNSET:
            if terms.limit is not UNSET:
                raise Invalid("limit does not go with ids.")
            count_within("ids", len(terms.ids), MAX_NAMED)
            each_once("ids", terms.ids)
        to = None if terms.to is UNSET else queue_name("to", terms.to)
        if to == queue.name:
            raise Invalid("to must name another queue than the one that is redriven.")
        if to is not None or not allowance.permits(MOVED):
            allowance.judge(MOVED, Verb.PRODUCE, Kind.QUEUE, to or queue.name)
        if to is not None:
            target = QueueRef(queue.project, to)
            check_target("to", target, self._storage.queues.get)
            self._rules_cache.check_posts(target)
        return Ways(self._rules_cache, queue.project, to, allowance)

    def _move_oldest(self, queue: QueueRef, ways: Ways, limit: int) -> int:
        """Move the oldest messages up to the first one without a target; return the number of moved ones."""
        moved = marker = left = 0
        while moved < limit and left < MAX_BATCH:
            page = self._storage.messages.list(
                queue, marker, min(CHUNK, limit - moved), ListFilter(), self._clock.now()
            )
            end = next((at for at, message in enumerate(page.items) if not ways.known(message)), len(page.items))
            known = page.items[:end]
            if page.items and not known and not moved:
                raise Invalid(NO_WAY)
            moves = ways.moves(known)
            moved += len(self._moved(queue, moves))
            left += len(known) - len(moves)
            if page.next is None or len(known) < len(page.items):
                break
            marker = int(page.next)
            turns.give_way()
        return moved

    def _move_named(self, queue: QueueRef, ways: Ways, ids: Sequence[str]) -> tuple[int, list[str]]:
        """Move the named messages; return the number of moved ones and the lost ids."""
        went: set[str] = set()
        stay: set[str] = set()
        homeless = False
        for messages in self._named(queue, ids):
            homeless = homeless or not all(map(ways.known, messages))
            moves = ways.moves(messages)
            went.update(self._moved(queue, moves))
            stay.update({message.id for message in messages} - {move.id for move in moves})
        if homeless and not went:
            raise Invalid(NO_WAY)
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
        """Yield the ready messages in pages."""
        marker = 0
        while True:
            page = self._storage.messages.list(queue, marker, CHUNK, ListFilter(), self._clock.now(), CHUNK_BYTES)
            yield page.items
            if page.next is None:
                return
            marker = int(page.next)
            turns.give_way()

    def _named(self, queue: QueueRef, ids: Sequence[str]) -> Iterator[Sequence[Message]]:
        """Yield the named messages that are ready, in pages.

        A message that a commit settles stays claimed beyond the claim's end.
        """
        for start in range(0, len(ids), CHUNK):
            if start:
                turns.give_way()
            now = self._clock.now()
            found = self._storage.messages.get(queue, ids[start : start + CHUNK], now)
            yield [message for message in found if message.available <= now and not message.claim]

    def _existing(self, project: str, names: Collection[str]) -> set[str]:
        """Return the names of existing queues."""
        return {name for name in names if self._storage.queues.get(QueueRef(project, name)) is not None}
