# SPDX-License-Identifier: Apache-2.0
"""Claims and pops of a grouped queue: line by line, in the order of the lines' entries (decision 0129). ``lines`` says
what both are.

Entries are searched for as the messages of other queues are. What is taken is read in the transaction that takes it
and places the entries: the write of an entry meets every other change of its line.
"""

import random
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.model import Outcome
from zq.storage.mongodb import layout, lines
from zq.storage.mongodb.changes import Ending, finish
from zq.storage.mongodb.claim_attempt import ClaimAttempt
from zq.storage.mongodb.client import LONGEST_PAUSE, Aborted, Session, StoreClient
from zq.storage.mongodb.counters import NO_METADATA
from zq.storage.mongodb.floors import search
from zq.storage.mongodb.head_hint import HeadHint
from zq.storage.mongodb.layout import CLAIM_ORDER, FAIR, BsonDocument, QueueKey, body_of
from zq.storage.mongodb.lines import PLACES, Head, head_of, order_of

# Entries that one search finds beyond the messages that are wanted: some lines may have nothing ready.
MORE_LINES: Final = 16
# Lines that one transaction looks at.
MOST_LINES: Final = 256
# Index entries that the removal of a line's expired messages reads.
STEPS: Final = 1024


class LineWalk(Struct):
    """What was read of a line: its first living messages, in order; of these some are ``ready``, before the others.

    ``last``: the last that was read, if there may be more behind it. ``taken``: what was claimed, as it is now;
    ``popped``: which are gone.
    """

    line: str
    living: list[BsonDocument]
    ready: list[BsonDocument]
    last: Head | None
    has_expired: bool
    taken: dict[str, BsonDocument] = {}
    popped: set[str] = set()

    def head(self, now: int) -> Head | None:
        """The line's head after that."""
        left = [self.taken.get(one["_id"], one) for one in self.living if one["_id"] not in self.popped]
        heads = [head_of(one) for one in left]
        if order_of(self.line) == FAIR:
            heads = sorted(heads) if len(self.taken) < len(left) or self.last is None else []
        if heads or self.last is None:
            return heads[0] if heads else None
        return self.last._replace(available=now)  # what is behind is for the next claim


class LineClaimer:
    """Claims and pops along the lines of one queue, for all threads of this process."""

    def __init__(self, client: StoreClient, key: QueueKey) -> None:
        self._client = client
        self._key = key
        self.head_hint = HeadHint()

    def due(self, want: int, now: int) -> tuple[list[str], bytes]:
        """Return the lines that may have something ready, in the order of their turns, and the queue's metadata."""
        want = min(want + MORE_LINES, MOST_LINES)
        head, skip, token = self.head_hint.start(want)
        found, counter = self._entries(head, now, want, skip)
        if (head or skip) and len(found) < want:
            head, skip, token = 0, 0, self.head_hint.invalidate()
            found, counter = self._entries(head, now, want)
        if found and not skip:
            self.head_hint.found(found[0]["d"], token, searched_all=not head)
        return [one["j"] for one in found], counter.get("b", NO_METADATA)

    def serve(self, attempts: Sequence[ClaimAttempt], names: Sequence[str]) -> None:
        """Give the attempts what is ready in these lines, in one transaction; nothing if another process was there."""
        finishing = [self._key.finishing] if any(attempt.history for attempt in attempts) else []
        try:
            with self._client.locks.locked(*finishing):
                expired = self._client.transaction(partial(self.take, attempts, names), retry_conflicts=False)
        except Aborted:
            self.head_hint.collided()
            for attempt in attempts:
                attempt.clear()
            time.sleep(random.uniform(0, LONGEST_PAUSE))
            return
        self.remove_expired(expired, attempts[0].now)

    def take(self, attempts: Sequence[ClaimAttempt], names: Sequence[str], session: Session) -> list[str]:
        """The same in the caller's transaction; lines in which messages have expired."""
        turns = deque(names)
        walks: list[LineWalk] = []
        for attempt in attempts:
            attempt.clear()
            walks += self._serve(attempt, turns, session)
        changed = [found for walk in walks for found in walk.taken.values()]
        now = attempts[0].now
        until = max((int(found["e"]) for found in changed), default=0)
        heads = {walk.line: walk.head(now) for walk in walks}
        lines.write_entries(self._client, session, self._key, heads, now, until)
        return [walk.line for walk in walks if walk.has_expired]

    def remove_expired(self, names: Sequence[str], now: int) -> None:
        """Remove what has expired at the beginning of lines, step by step: what lies behind is for the next call."""
        for line in names:
            order = order_of(line)
            met = self._client.find(
                self._client.where(self._key, h1=line),
                limit=STEPS,
                sort=PLACES[order],
                hint=order,
                fields={"_id": 0, "k": 1, "e": 1},
            )
            gone = [one["k"] for one in met if int(one["e"]) <= now]
            expired = self._client.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
            self._client.removals.add("read", self._client.delete_all(expired, hint=layout.OBSERVERS, durable=False))

    def _entries(self, head: int, now: int, want: int, skip: int = 0) -> tuple[list[BsonDocument], BsonDocument]:
        where = {**self._client.where(self._key, d={"$gte": head, "$lte": now}), "q": self._key.entries}
        fields = {"_id": 0, "j": 1, "d": 1, "k": 1}
        return search(
            self._client, self._key, where, limit=want, sort=CLAIM_ORDER, hint=layout.CLAIMS, skip=skip, fields=fields
        )

    def _serve(self, attempt: ClaimAttempt, turns: deque[str], session: Session) -> list[LineWalk]:
        """Give one attempt what is ready in the next lines; those that were looked at."""
        walks: list[LineWalk] = []
        found: list[BsonDocument] = []
        left = attempt.most_bytes
        ahead: dict[str, Read] = {}
        while turns and len(found) < attempt.limit and left > 0:
            want = attempt.limit - len(found)
            if walks and not ahead:
                ahead = self._read_ahead(list(islice(turns, want)), want, left, session)
            line = turns.popleft()
            read = ahead.get(line, NOT_READ)
            if read.is_cut and len(read.found) <= want:
                read = self._read(line, want, left, session)
            walks.append(_walk_of(line, read, want, attempt.now))
            found += walks[-1].ready
            left -= sum(map(len, map(body_of, walks[-1].ready)))
        candidates = attempt.candidates(found)
        if walks and len(candidates) <= len(found) - len(walks[-1].ready) < len(found):
            turns.appendleft(walks.pop().line)  # there was no room for any of its bodies
        living = attempt.living(candidates)
        if living:
            (self._pop if attempt.request is None else self._claim)(attempt, living, walks, session)
        return walks

    def _read(self, line: str, want: int, most_bytes: int, session: Session) -> "Read":
        """One more than are wanted of the line, so that its next head is known."""
        found = self._find(self._client.where(self._key, h1=line), order_of(line), want + 1, most_bytes, session)
        return Read(found, len(found) > want or sum(map(len, map(body_of, found))) >= most_bytes)

    def _read_ahead(self, names: Sequence[str], want: int, most_bytes: int, session: Session) -> dict[str, "Read"]:
        """The same of several lines in one command; where some have much, not of all."""
        if len(names) < 2:
            return {}
        most = want + 2 * len(names)
        where = self._client.where(self._key, h1={"$in": list(names)})
        found = self._find(where, order_of(names[0]), most, most_bytes, session)
        is_cut = len(found) == most or sum(map(len, map(body_of, found))) >= most_bytes
        by_line: dict[str, list[BsonDocument]] = {line: [] for line in sorted(names)}
        for one in found:
            by_line[one["h1"]].append(one)
        if not is_cut:
            return {line: Read(its, is_cut=False) for line, its in by_line.items()}
        last = found[-1]["h1"]
        return {line: Read(its, is_cut=line == last) for line, its in by_line.items() if line <= last}

    def _find(
        self, where: BsonDocument, order: str, limit: int, most_bytes: int, session: Session
    ) -> list[BsonDocument]:
        sort = {"h1": 1, **PLACES[order]}
        found, _ = search(
            self._client, self._key, where, limit=limit, sort=sort, hint=order, most_bytes=most_bytes, session=session
        )
        return found

    def _claim(
        self, attempt: ClaimAttempt, living: Sequence[BsonDocument], walks: Sequence[LineWalk], session: Session
    ) -> None:
        assert attempt.request is not None
        named = self._client.where(self._key, _id={"$in": [found["_id"] for found in living]})
        step = layout.claiming(attempt.request, attempt.now)
        if self._client.update([{"q": named, "u": step, "multi": True, "hint": "_id_"}], session) != len(living):
            raise Aborted
        attempt.take(living)
        held = {found["_id"]: found for found in attempt.messages}
        for walk in walks:
            walk.taken = {one["_id"]: held[one["_id"]] for one in walk.ready if one["_id"] in held}

    def _pop(
        self, attempt: ClaimAttempt, living: Sequence[BsonDocument], walks: Sequence[LineWalk], session: Session
    ) -> None:
        doc_ids = [found["_id"] for found in living]
        finish(self._client, session, self._key, doc_ids, Ending(Outcome.POPPED, attempt.now, attempt.history))
        attempt.messages = list(living)
        for walk in walks:
            walk.popped = set(doc_ids)


class Read(NamedTuple):
    """What was read of a line, and whether there may be more."""

    found: list[BsonDocument]
    is_cut: bool


NOT_READ: Final = Read([], is_cut=True)


def _walk_of(line: str, read: Read, want: int, now: int) -> LineWalk:
    """The walk, of which so many are wanted at most."""
    living = [one for one in read.found if int(one["e"]) > now]
    ready = list(takewhile(lambda one: int(one["d"]) <= now, living))[:want]
    last = head_of(read.found[-1]) if read.is_cut else None
    return LineWalk(line, living, ready, last, len(living) < len(read.found))
