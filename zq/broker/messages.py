# SPDX-License-Identifier: Apache-2.0
"""Use cases on messages (contract 7)."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from zq import wire
from zq.broker.metadata import Book, Rules
from zq.broker.watch import Watch
from zq.clock import Clock
from zq.errors import Invalid, MessageNotFound, Repeated, StageFull
from zq.limits import DEFAULT_PAGE, MAX_IDS, MIN_DELAY, MIN_TTL, Limits, body_size, count_within, free_name, within
from zq.model import Draft, Message, Once, Outcome, Page, QueueRef, Seconds, View, new_ids
from zq.model import Messages as MessageList
from zq.storage.api import Storage

MESSAGE_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
"""No sequence has so many digits."""


class Messages:
    """What a caller can do with messages."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        book: Book,
        checksum: bool,
        delete_with_claim_id: bool,
        watch: Watch,
    ) -> None:
        self._queues = storage.queues
        self._messages = storage.messages
        self._transactions = storage.transactions
        self._clock = clock
        self._limits = limits
        self._book = book
        self._checksum = checksum
        self._delete_with_claim_id = delete_with_claim_id
        self._watch = watch

    def rules(self, queue: QueueRef, size: int) -> Rules:
        """The rules for a post of ``size`` bytes to a queue, which is created if it is missing (contract 7.2, step 1).

        Rules that this server remembers save the store a question: ``post`` finds out whether they still hold, and a
        post that they refuse is judged by what the store says.
        """
        remembered = self._book.remembered(queue)
        if remembered is not None and size <= remembered.max_post_size:
            return remembered
        return self._read_rules(queue)

    def post(
        self,
        queue: QueueRef,
        client: str,
        posted: Sequence[wire.Posted],
        size: int,
        rules: Rules,
        once: Once | None = None,
    ) -> tuple[list[str], bool]:
        """Store all messages or none; their ids in array order, and whether they were stored before under ``once``.

        Raises ``Invalid``, ``KeyReused``.
        """
        self._check_count(posted)
        while True:
            body_size(size, rules.max_post_size)
            now = self._clock.now()
            try:
                drafts = self._drafts(posted, client, queue, rules, now)
            except Invalid:
                former, rules = rules, self._read_rules(queue)
                if rules == former:
                    raise
                continue
            try:
                metadata = self._messages.post(queue, drafts, now, rules.metadata, once)
            except Repeated as first:
                return first.answer, True
            if metadata is None:
                self._watch.posted(drafts)
                return [draft.id for draft in drafts], False
            rules = self._book.remember(queue, metadata)

    def stage(
        self, queue: QueueRef, client: str, posted: Sequence[wire.Posted], size: int, stage: str, once: Once | None
    ) -> tuple[int, bool]:
        """Store all messages, or none, where nobody sees them; how many, and whether ``once`` was known before.

        Extensions 9. The queue is not created before they are published.
        Raises ``Invalid``, ``StageFull``, ``KeyReused``.
        """
        stage = free_name("stage", stage)
        self._check_count(posted)
        rules = self._book.recent(queue)
        body_size(size, rules.max_post_size)
        now = self._clock.now()
        drafts = self._drafts(posted, client, queue, rules, now)
        limits = self._limits
        try:
            self._transactions.stage(
                queue.project,
                stage,
                queue,
                drafts,
                now,
                limits.stage_ttl,
                limits.max_stage_bytes,
                once,
                limits.max_stage_messages,
            )
        except StageFull as full:
            most = f"{limits.max_stage_messages} messages and {limits.max_stage_bytes} bytes of bodies"
            raise StageFull(f"A stage may hold at most {most}.") from full
        except Repeated as first:
            return len(first.answer), True
        self._watch.posted(drafts)
        return len(drafts), False

    def list(
        self,
        queue: QueueRef,
        client: str,
        marker: str,
        limit: int | None,
        *,
        echo: bool,
        include_claimed: bool,
        include_delayed: bool,
    ) -> tuple[Page[Message], bool, Seconds]:
        """A page, whether delayed messages were shown (always on a normal queue), and the moment it is of."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        now = self._clock.now()
        stored = self._queues.get(queue)
        after = None if stored is None else self._after(queue, marker, now)
        if stored is None or after is None:
            return Page([], None), include_delayed, now
        delayed = include_delayed or not self._book.rules(stored.metadata).default_delay
        view = View("" if echo else client, include_claimed, delayed)
        page = self._messages.list(queue, after, size, view, now, self._limits.max_answer_bytes)
        return page, delayed, now

    def get(self, queue: QueueRef, message: str) -> tuple[Message, Seconds]:
        """One message and the moment it was seen. Raises ``MessageNotFound``."""
        now = self._clock.now()
        for found in self._messages.get(queue, [message], now):
            return found, now
        raise MessageNotFound("There is no such message in the queue.")

    def get_many(self, queue: QueueRef, ids: Sequence[str]) -> tuple[MessageList, Seconds]:
        """Those of the ids that exist, and the moment. Raises ``MessageNotFound`` if none does."""
        count_within("ids", len(ids), MAX_IDS)
        now = self._clock.now()
        found = self._messages.get(queue, ids, now)
        if not found:
            raise MessageNotFound("None of the ids is a message of the queue.")
        return found, now

    def delete(self, queue: QueueRef, message: str, claim: str) -> None:
        """Remove one message. Raises ``MessageClaimed``, ``ClaimNotHeld``."""
        self._messages.delete(queue, message, self._clock.now(), claim, self._book.recent(queue).history_ttl)
        self._watch.finished(Outcome.DELETED, 1)

    def delete_many(self, queue: QueueRef, ids: Sequence[str], claims: Sequence[str]) -> None:
        """Remove messages by id, claimed or not; where the server wants claim ids, only under these, else none."""
        count_within("ids", len(ids), self._limits.max_messages_per_page)
        if self._delete_with_claim_id and not claims:
            raise Invalid("claim_ids is missing: this server deletes by ids only together with their claims.")
        holders = claims if self._delete_with_claim_id else None
        history = self._book.recent(queue).history_ttl
        # Records take the bodies along, so many of them in one step.
        step = MAX_IDS if history and holders is None else len(ids)
        for start in range(0, len(ids), step):
            self._messages.delete_many(queue, ids[start : start + step], self._clock.now(), holders, history)
        self._watch.finished(Outcome.DELETED, len(ids))

    def pop(self, queue: QueueRef, limit: int, claims: Sequence[str]) -> tuple[MessageList, Seconds]:
        """Remove and return up to ``limit`` ready messages, or as many as an answer carries; and the moment."""
        within("pop", limit, 1, self._limits.max_messages_per_claim_or_pop)
        if self._delete_with_claim_id and claims:
            raise Invalid("claim_ids does not go with pop.")
        history = self._book.recent(queue).history_ttl
        now = self._clock.now()
        popped = self._messages.pop(queue, limit, now, history, self._limits.max_answer_bytes)
        if popped:
            self._watch.popped(popped, now)
        return popped, now

    def _after(self, queue: QueueRef, marker: str, now: Seconds) -> int | None:
        """The sequence that a marker means: its own, or that of the message whose id it is, by which openstacksdk goes
        on; None if it means none."""
        if MESSAGE_ID.fullmatch(marker):
            return next((found.sequence for found in self._messages.get(queue, [marker], now)), None)
        return int(marker[:40]) if marker.isascii() and marker.isdigit() else None

    def _check_count(self, posted: Sequence[wire.Posted]) -> None:
        count_within("messages", len(posted), self._limits.max_messages_per_post)

    def _read_rules(self, queue: QueueRef) -> Rules:
        stored = self._queues.get(queue)
        if stored is None:
            self._queues.create(queue, b"{}")
        return self._book.remember(queue, stored.metadata if stored else b"{}")

    def _drafts(
        self, posted: Sequence[wire.Posted], client: str, queue: QueueRef, rules: Rules, now: Seconds
    ) -> Sequence[Draft]:
        ids, ttl = new_ids(len(posted), now), self._book.ttl(queue, rules)
        return [self._draft(message, id, client, rules, ttl) for message, id in zip(posted, ids, strict=True)]

    def _draft(self, posted: wire.Posted, identity: str, client: str, rules: Rules, ttl: int) -> Draft:
        if posted.ttl is not UNSET:
            ttl = within("ttl", posted.ttl, MIN_TTL, self._limits.max_message_ttl)
        delay = rules.default_delay
        if delay and (own := wire.posted_delay(posted.delay)) is not None:
            delay = within("delay", own, MIN_DELAY, self._limits.max_message_delay)
        body = bytes(posted.body)
        return Draft(identity, body, ttl, delay, client, wire.checksum(body) if self._checksum else "")
