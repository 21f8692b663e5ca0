# SPDX-License-Identifier: Apache-2.0
"""Claims and pops in a grouped queue. They process the groups in the order of the group entries (decision 0129).

The module ``groups`` describes message groups and the group entries. A search for groups with ready messages reads the
entries. The transaction that takes messages reads the groups and rewrites their entries. The write of an entry
conflicts with every concurrent change of its group.
"""

import random
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.model import Outcome
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.changes import FinishTerms, finish
from zq.storage.mongodb.claim_attempt import ClaimAttempt, ClaimOutcome
from zq.storage.mongodb.client import LONGEST_PAUSE, Session, StoreClient, TransactionAborted
from zq.storage.mongodb.counters import NO_METADATA
from zq.storage.mongodb.floors import search
from zq.storage.mongodb.groups import SORT_ORDERS, Head, head_from, index_of
from zq.storage.mongodb.head_hint import HeadHint
from zq.storage.mongodb.layout import CLAIM_ORDER, FAIR, BsonDocument, QueueKey, size_of

# Number of entries that a search reads beyond one for each wanted message, because some groups have no ready message.
EXTRA_GROUPS: Final = 16
# Maximum number of groups that one transaction reads.
MAX_GROUPS: Final = 256
# Maximum number of index entries that one removal of expired messages reads in a group.
MAX_EXPIRED_SCAN: Final = 1024


class GroupSlice(NamedTuple):
    """The first messages of a message group, as a transaction has read them.

    - ``living``: the unexpired messages.
    - ``ready``: the ready messages at the beginning of ``living``.
    - ``last``: the last message that was read, or None if the group has no further messages.
    """

    group: str
    living: Sequence[BsonDocument]
    ready: Sequence[BsonDocument]
    last: Head | None
    has_expired: bool

    def head(self, now: int, claimed: Mapping[str, BsonDocument], popped: Collection[str]) -> Head | None:
        """Return the head of the group (its first unexpired message) after the claims and pops of a transaction.

        ``claimed`` maps the ``_id`` of each claimed message to its new document. ``popped`` has the ``_id`` of each
        popped message. If the group is empty, return None. If the head may be a message that was not read, return
        ``last`` with the available-at time ``now``.
        """
        left = [claimed.get(one["_id"], one) for one in self.living if one["_id"] not in popped]
        heads = [head_from(one) for one in left]
        if index_of(self.group) == FAIR:
            is_free = self.last is None or any(one["_id"] not in claimed for one in left)
            heads = sorted(heads) if is_free else []
        if heads or self.last is None:
            return heads[0] if heads else None
        return self.last._replace(available=now)  # the next claim reads the messages after it


class ServeResult(NamedTuple):
    """The result of a transaction that serves requests for claims.

    It consists of the outcome of each request, and the groups that contain expired messages.
    """

    outcomes: Sequence[ClaimOutcome]
    expired: Sequence[str]


class GroupClaimer:
    """The component that claims and pops messages of one grouped queue, for all threads of this process."""

    def __init__(self, client: StoreClient, key: QueueKey) -> None:
        self._client = client
        self._key = key
        self.head_hint = HeadHint()

    def find_due(self, want: int, now: int) -> tuple[list[str], bytes]:
        """Return message groups that may have ready messages, and the queue's metadata.

        The groups are in claim order.
        """
        want = min(want + EXTRA_GROUPS, MAX_GROUPS)
        head, skip, token = self.head_hint.get_start(want)
        found, counter = self._entries(head, now, want, skip)
        if (head or skip) and len(found) < want:
            head, skip, token = 0, 0, self.head_hint.invalidate()
            found, counter = self._entries(head, now, want)
        if found and not skip:
            self.head_hint.update(found[0]["d"], token, searched_all=not head)
        return [one["j"] for one in found], counter.get("b", NO_METADATA)

    def serve(self, attempts: Sequence[ClaimAttempt], names: Sequence[str]) -> Sequence[ClaimOutcome]:
        """Distribute the ready messages of the groups ``names`` among the attempts, in one transaction.

        If the transaction conflicts with another process, the outcomes have no messages.
        """
        finishing = [self._key.history_counter] if any(attempt.history for attempt in attempts) else []
        try:
            with self._client.locks.locked(*finishing):
                taken = self._client.transaction(partial(self.take, attempts, names), retry_conflicts=False)
        except TransactionAborted:
            self.head_hint.record_collision()
            time.sleep(random.uniform(0, LONGEST_PAUSE))
            return [ClaimOutcome(attempt.now) for attempt in attempts]
        self.remove_expired(taken.expired, attempts[0].now)
        return taken.outcomes

    def take(self, attempts: Sequence[ClaimAttempt], names: Sequence[str], session: Session) -> ServeResult:
        """Distribute the ready messages of the groups ``names`` among the attempts, in the session's transaction."""
        now = attempts[0].now
        turns = deque(names)
        slices: list[GroupSlice] = []
        outcomes: list[ClaimOutcome] = []
        for attempt in attempts:
            new_slices = self._read_groups(attempt, turns, session)
            found = [one for one_slice in new_slices for one in one_slice.ready]
            choice = attempt.choose(found)
            if new_slices and len(choice.candidates) <= len(found) - len(new_slices[-1].ready) < len(found):
                turns.appendleft(new_slices.pop().group)  # no message of the last group fits into ``max_bytes``
            slices += new_slices
            if choice.eligible and attempt.request is None:
                ending = FinishTerms(Outcome.POPPED, now, attempt.history)
                finish(self._client, session, self._key, choice.doc_ids, ending)
            elif choice.eligible and attempt.request:
                named = self._client.where(self._key, _id={"$in": choice.doc_ids})
                claiming = {"q": named, "u": layout.claim_update(attempt.request, now), "multi": True, "hint": "_id_"}
                if self._client.update([claiming], session) != len(choice.eligible):
                    raise TransactionAborted
            outcomes.append(attempt.outcome(choice, choice.doc_ids))
        served = list(zip(attempts, outcomes, strict=True))
        claimed = {one["_id"]: one for attempt, outcome in served if attempt.request for one in outcome.messages}
        popped = {one["_id"] for attempt, outcome in served if not attempt.request for one in outcome.messages}
        heads = {one_slice.group: one_slice.head(now, claimed, popped) for one_slice in slices}
        until = max((int(one["e"]) for one in claimed.values()), default=0)
        groups.write_entries(self._client, session, self._key, heads, now, until)
        return ServeResult(outcomes, [one_slice.group for one_slice in slices if one_slice.has_expired])

    def remove_expired(self, names: Sequence[str], now: int) -> None:
        """Remove expired messages among the first ``MAX_EXPIRED_SCAN`` messages of each of the groups ``names``."""
        for group in names:
            order = index_of(group)
            entries = self._client.find(
                self._client.where(self._key, h1=group),
                limit=MAX_EXPIRED_SCAN,
                sort=SORT_ORDERS[order],
                hint=order,
                fields={"_id": 0, "k": 1, "e": 1},
            )
            gone = [one["k"] for one in entries if int(one["e"]) <= now]
            expired = self._client.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
            self._client.removals.add("read", self._client.delete_all(expired, hint=layout.OBSERVERS, durable=False))

    def _entries(self, head: int, now: int, want: int, skip: int = 0) -> tuple[list[BsonDocument], BsonDocument]:
        where = {**self._client.where(self._key, d={"$gte": head, "$lte": now}), "q": self._key.entries}
        fields = {"_id": 0, "j": 1, "d": 1, "k": 1}
        return search(
            self._client, self._key, where, limit=want, sort=CLAIM_ORDER, hint=layout.CLAIMS, skip=skip, fields=fields
        )

    def _read_groups(self, attempt: ClaimAttempt, turns: deque[str], session: Session) -> list[GroupSlice]:
        slices: list[GroupSlice] = []
        count = 0
        left = attempt.max_bytes
        ahead: dict[str, GroupMessages] = {}
        while turns and count < attempt.limit and left > 0:
            want = attempt.limit - count
            if slices and not ahead:
                ahead = self._read_ahead(list(islice(turns, want)), want, left, session)
            group = turns.popleft()
            read = ahead.get(group, NOT_READ)
            if read.is_cut and len(read.found) <= want:
                read = self._read(group, want, left, session)
            slices.append(_group_slice(group, read, want, attempt.now))
            count += len(slices[-1].ready)
            left -= sum(map(size_of, slices[-1].ready))
        return slices

    def _read(self, group: str, want: int, max_bytes: int, session: Session) -> "GroupMessages":
        """Read up to ``want`` + 1 messages of the group, because the additional message may become the next head."""
        found = self._find(self._client.where(self._key, h1=group), index_of(group), want + 1, max_bytes, session)
        return GroupMessages(found, len(found) > want or sum(map(size_of, found)) >= max_bytes)

    def _read_ahead(
        self, names: Sequence[str], want: int, max_bytes: int, session: Session
    ) -> dict[str, "GroupMessages"]:
        """Read several groups in one command, and return the first messages of each group.

        If the groups have more messages than the command reads, the result lacks the groups at the end of ``names``.
        The last group in the result then has ``is_cut`` set, because it may have more messages.
        """
        if len(names) < 2:
            return {}
        max_found = want + 2 * len(names)
        where = self._client.where(self._key, h1={"$in": list(names)})
        found = self._find(where, index_of(names[0]), max_found, max_bytes, session)
        is_cut = len(found) == max_found or sum(map(size_of, found)) >= max_bytes
        by_group: dict[str, list[BsonDocument]] = {group: [] for group in sorted(names)}
        for one in found:
            by_group[one["h1"]].append(one)
        if not is_cut:
            return {group: GroupMessages(its, is_cut=False) for group, its in by_group.items()}
        last = found[-1]["h1"]
        return {group: GroupMessages(its, is_cut=group == last) for group, its in by_group.items() if group <= last}

    def _find(
        self, where: BsonDocument, order: str, limit: int, max_bytes: int, session: Session
    ) -> list[BsonDocument]:
        sort = {"h1": 1, **SORT_ORDERS[order]}
        found, _ = search(
            self._client, self._key, where, limit=limit, sort=sort, hint=order, max_bytes=max_bytes, session=session
        )
        return found


class GroupMessages(NamedTuple):
    """The documents of a group's first messages. ``is_cut`` is true if more messages may follow."""

    found: list[BsonDocument]
    is_cut: bool


NOT_READ: Final = GroupMessages([], is_cut=True)


def _group_slice(group: str, read: GroupMessages, want: int, now: int) -> GroupSlice:
    living = [one for one in read.found if int(one["e"]) > now]
    ready = list(takewhile(lambda one: int(one["d"]) <= now, living))[:want]
    last = head_from(read.found[-1]) if read.is_cut else None
    return GroupSlice(group, living, ready, last, len(living) < len(read.found))
