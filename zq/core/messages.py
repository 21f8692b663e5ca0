# SPDX-License-Identifier: Apache-2.0
"""Operations on a queue's messages (contract section 7)."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, NoReturn

from msgspec import UNSET, structs

from zq import wire
from zq.clock import Clock
from zq.core.creation import QueueCreation
from zq.core.encryption import UNREADABLE, UNREADABLE_DELAY, Sealing
from zq.core.followers import Followers
from zq.core.modes import Modes
from zq.core.paging import list_messages
from zq.core.quotas import AnyQuotas
from zq.core.rules import Rules, RulesCache
from zq.core.values import MessagePage, ReadResult, WriteResult
from zq.errors import (
    ClaimNotHeld,
    Invalid,
    MessageClaimed,
    MessageNotFound,
    MessageUnreadable,
    OtherMetadata,
    QueuePaused,
    Repeated,
    StageFull,
    ZqError,
)
from zq.events import Events
from zq.model import Copies, Draft, IdempotencyKey, ListFilter, Message, Outcome, Page, QueueRef, Seconds, new_ids
from zq.model import Messages as MessageList
from zq.model.attributes import Attributes, AttributeValue, encode_attributes, trim_trace, with_trace
from zq.model.hidden import copies_of
from zq.model.limits import (
    DEFAULT_PAGE,
    MAX_IDS,
    MIN_DELAY,
    MIN_TTL,
    Limits,
    check_attributes,
    check_body_size,
    check_count,
    check_free_name,
    check_group_name,
    check_range,
)
from zq.model.quotas import Work
from zq.storage.api import Storage
from zq.turns import SLICE, slices
from zq.wire.attributes import attribute_values

# A message id. It is never mistaken for a marker, because sequence numbers have fewer digits.
MESSAGE_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
# Metadata that no queue has. A post that expects this metadata stores nothing and only looks up its idempotency key.
UNMATCHABLE_METADATA: Final = b"none"
# A size limit that every stage exceeds. Staging under this limit stores nothing and only looks up the idempotency key.
NO_ROOM: Final = -1
# The attributes of a request without a trace context.
NO_TRACE: Final[Mapping[str, AttributeValue]] = {}
# Maximum total size of the copies for followers in a stage, as a multiple of the maximum stage size.
COPIES_SIZE: Final = 2


class Messages:
    """Operations on a queue's messages: post, stage, list, get, delete and pop."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        rules_cache: RulesCache,
        checksum: bool,
        delete_with_claim_id: bool,
        events: Events,
        sealing: Sealing,
        quotas: AnyQuotas,
        creation: QueueCreation,
        followers: Followers,
        modes: Modes,
    ) -> None:
        self._sealing = sealing
        self._modes = modes
        self._quotas = quotas
        self._creation = creation
        self._followers = followers
        self._messages = storage.messages
        self._transactions = storage.transactions
        self._clock = clock
        self._limits = limits
        self._rules_cache = rules_cache
        self._checksum = checksum
        self._delete_with_claim_id = delete_with_claim_id
        self._events = events

    def rules(self, queue: QueueRef, size: int) -> Rules:
        """Return the queue's rules (parsed settings) for a post of ``size`` bytes. Create a missing queue.

        If no rules are cached, or if the cached rules forbid the post, the current rules are read from the store. If
        the method returns outdated cached rules, the store later rejects the post. Raises ``NoPosts`` or ``ReadOnly``
        if the mode of the service forbids posts. See contract section 7.2.
        """
        self._modes.check_post()
        remembered = self._rules_cache.remembered(queue)
        if remembered is not None and size <= remembered.max_messages_post_size and not remembered.posts_paused:
            return remembered
        return self._creation.rules(queue)

    def post(
        self,
        queue: QueueRef,
        client: str,
        raw: bytes,
        idempotency_key: IdempotencyKey | None = None,
        hops: int = 0,
        rules: Rules | None = None,
        trace: Mapping[str, AttributeValue] = NO_TRACE,
    ) -> WriteResult[list[str]]:
        """Post all messages in a JSON body atomically. Return their ids, in the same order (contract section 7.2).

        A missing queue is created first. The store looks up the idempotency key after all other checks.

        Args:
            hops: Number of zq subscriptions through which the messages have passed already.
            rules: Rules that the method ``rules`` has returned for this post. ``None`` = look up the rules.
            trace: Trace context for messages that have none. Parts that exceed the queue's size limit are omitted.

        Raises ``Invalid``, ``KeyReused``, ``QueuePaused`` or ``QuotaExceeded``.
        """
        rules = rules or self.rules(queue, len(raw))
        posted = wire.parse_post(raw)
        if len(posted) > self._limits.max_messages_per_post:
            check_count("messages", len(posted), self._limits.max_messages_per_post)
        while True:
            room = rules.max_messages_post_size - len(raw)
            if room < 0:
                check_body_size(len(raw), rules.max_messages_post_size)
            now = self._clock.now()
            try:
                own_trace = trim_trace(trace, room // len(posted)) if trace else trace
                drafts, ignores_delays = self._drafts(posted, client, queue, rules, now, own_trace)
            except Invalid:
                former, rules = rules, self._creation.rules(queue)
                if rules == former:
                    raise
                continue
            try:
                copies = self.copies(queue, drafts, rules, now, hops)
                if refusal := self.reserve_storage(queue, drafts, rules):
                    self._raise_unless_repeated(queue, drafts, now, refusal, idempotency_key)
                metadata = self._messages.post(queue, drafts, now, rules.metadata, idempotency_key, copies)
            except Repeated as first:
                return WriteResult(first.answer, replayed=True, ignores_delays=ignores_delays)
            if metadata is None:
                self._events.posted(queue, drafts)
                return WriteResult([draft.id for draft in drafts], ignores_delays=ignores_delays)
            rules = self._rules_cache.remember(queue, metadata)

    def stage(
        self,
        queue: QueueRef,
        client: str,
        raw: bytes,
        stage: str,
        idempotency_key: IdempotencyKey | None = None,
        hops: int = 0,
        trace: Mapping[str, AttributeValue] = NO_TRACE,
    ) -> WriteResult[int]:
        """Add all messages of a JSON body to a stage atomically. Return the number of messages (extensions, section 9).

        Staged messages are invisible until a commit publishes them. The commit creates a missing queue. For ``hops``
        and ``trace``, see ``post``.

        Raises ``StageFull`` if the stage would exceed its limit of bytes or messages. Also raises ``NoPosts`` and the
        errors of ``post``.
        """
        self._modes.check_post()
        posted = wire.parse_post(raw)
        stage = check_free_name("stage", stage)
        check_count("messages", len(posted), self._limits.max_messages_per_post)
        rules = self._rules_cache.recent(queue)
        if rules.posts_paused:
            rules = self._rules_cache.fresh(queue)
        self._quotas.check_targets([queue])
        check_body_size(len(raw), rules.max_messages_post_size)
        now, trace = self._clock.now(), trim_trace(trace, (rules.max_messages_post_size - len(raw)) // len(posted))
        drafts, ignores_delays = self._drafts(posted, client, queue, rules, now, trace)
        try:
            with self._quotas.admit_work(queue.project, Work.STAGE, stage) as refusal:
                self._stage(
                    queue, stage, drafts, now, refusal or self.reserve_storage(queue, drafts, rules), idempotency_key
                )
        except Repeated as first:
            # A server that died after staging the messages may not have staged the copies for followers.
            again, _ = self._drafts(posted, client, queue, rules, now, trace, first.answer)
            self._stage_copies(queue, stage, again, rules, now, hops, idempotency_key)
            return WriteResult(len(first.answer), replayed=True, ignores_delays=ignores_delays)
        self._stage_copies(queue, stage, drafts, rules, now, hops, idempotency_key)
        self._events.posted(queue, drafts)
        return WriteResult(len(drafts), ignores_delays=ignores_delays)

    def _stage_copies(
        self,
        queue: QueueRef,
        stage: str,
        drafts: Sequence[Draft],
        rules: Rules,
        now: Seconds,
        hops: int,
        idempotency_key: IdempotencyKey | None,
    ) -> None:
        """Add copies of the messages for the queue's followers, such as subscriptions, to a stage.

        Staged messages are invisible until a commit publishes them. If an earlier attempt of this request has staged
        the copies, nothing is staged again.
        """
        copies = self.copies(queue, drafts, rules, now, hops)
        if copies is None:
            return
        limits = self._limits
        with suppress(Repeated):
            self._transactions.stage(
                queue.project,
                copies_of(stage),
                copies.queue,
                copies.drafts,
                now,
                limits.stage_ttl,
                COPIES_SIZE * limits.max_stage_bytes,
                idempotency_key,
                limits.max_stage_messages,
            )

    def _stage(
        self,
        queue: QueueRef,
        stage: str,
        drafts: Sequence[Draft],
        now: Seconds,
        refusal: ZqError | None,
        idempotency_key: IdempotencyKey | None,
    ) -> None:
        """Add the drafts to a stage (uncommitted messages). If ``refusal`` is set, add nothing and raise ``refusal``.

        Raises ``Repeated`` instead if an earlier request with the same idempotency key has been applied.
        """
        limits = self._limits
        size = limits.max_stage_bytes if refusal is None else NO_ROOM
        max_messages = limits.max_stage_messages
        try:
            self._transactions.stage(
                queue.project, stage, queue, drafts, now, limits.stage_ttl, size, idempotency_key, max_messages
            )
        except StageFull as full:
            if refusal is not None:
                raise refusal from None
            bounds = f"{max_messages} messages and {limits.max_stage_bytes} bytes of bodies"
            raise StageFull(f"A stage may hold at most {bounds}.") from full

    def list(
        self,
        queue: QueueRef,
        client: str,
        marker: str,
        limit: int | None,
        *,
        echo: bool = False,
        include_claimed: bool = False,
        include_delayed: bool = False,
    ) -> MessagePage:
        """Return a page of messages after the marker. Unless ``echo`` is set, omit messages that the client posted."""
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)
        rules = self._rules_cache.remembered(queue) or self._rules_cache.recent(queue)
        while True:
            now = self._clock.now()
            after = self._after(queue, marker, now)
            if after is None:
                return MessagePage(Page([], None), include_delayed, now)
            delayed = include_delayed or not rules.default_message_delay
            wanted = ListFilter("" if echo else client, include_claimed, delayed)
            max_bytes = self._limits.max_answer_bytes
            page = list_messages(self._messages, queue, after, size, wanted, now, max_bytes, rules.metadata)
            if page.metadata is None:
                shown = self._sealing.decrypt_all(queue, page.items)
                return MessagePage(page if shown is page.items else structs.replace(page, items=shown), delayed, now)
            rules = self._rules_cache.remember(queue, page.metadata)

    def get(self, queue: QueueRef, message: str) -> ReadResult[Message]:
        """Return one message. Raises ``MessageNotFound``, or ``MessageUnreadable`` if decryption fails."""
        now = self._clock.now()
        for found in self._messages.get(queue, [message], now):
            return ReadResult(self._sealing.decrypt(queue, found), now)
        raise MessageNotFound("There is no such message in the queue.")

    def get_many(self, queue: QueueRef, ids: Sequence[str]) -> ReadResult[MessageList]:
        """Return the messages with these ids. Omit missing messages and messages that cannot be decrypted.

        Raises ``MessageNotFound`` if all messages are missing, and ``MessageUnreadable`` if none can be decrypted.
        """
        check_count("ids", len(ids), MAX_IDS)
        now = self._clock.now()
        found = self._messages.get(queue, ids, now)
        if not found:
            raise MessageNotFound("The queue has no message with any of these ids.")
        shown = self._sealing.decrypt_all(queue, found)
        if not shown:
            raise MessageUnreadable(UNREADABLE)
        return ReadResult(shown, now)

    def delete(self, queue: QueueRef, message: str, claim: str) -> None:
        """Delete one message.

        Raises ``MessageClaimed`` if the message is claimed and ``claim`` is "". Raises ``ClaimNotHeld`` if the message
        does not belong to ``claim``.
        """
        claims = (claim,) if claim else ()
        self._messages.delete(queue, (message,), self._clock.now(), claims, self._rules_cache.recent(queue).history_ttl)
        self._events.finished(queue, Outcome.DELETED, 1)

    def delete_many(self, queue: QueueRef, ids: Sequence[str], claims: Sequence[str]) -> None:
        """Delete messages by id.

        If the server does not require claim ids, ``claims`` is ignored and claimed messages are deleted too. Otherwise,
        each message must belong to one of the claims in ``claims``; if not, ``ClaimNotHeld`` is raised. Raises
        ``Invalid`` if there are no ids or too many.
        """
        check_count("ids", len(ids), self._limits.max_messages_per_page)
        if self._delete_with_claim_id and not claims:
            raise Invalid("claim_ids is missing: this server requires claim ids to delete messages.")
        holders = claims if self._delete_with_claim_id else None
        history = self._rules_cache.recent(queue).history_ttl
        # History entries contain bodies, so fewer messages are deleted in a step. With claims, the deletion is atomic.
        step = len(ids) if holders is not None else MAX_IDS if history else SLICE
        try:
            for part in slices(ids, step):
                self._messages.delete(queue, part, self._clock.now(), holders, history)
        except MessageClaimed:  # bulk deletion has one error for both cases (contract 7.7)
            raise ClaimNotHeld from None
        self._events.finished(queue, Outcome.DELETED, len(ids))

    def pop(self, queue: QueueRef, limit: int, claims: Sequence[str]) -> ReadResult[MessageList]:
        """Delete and return up to ``limit`` ready messages. Return fewer if the response would be too large.

        If a popped message cannot be decrypted, the result omits the message. If the queue keeps a history, the message
        can be replayed from the history. Otherwise, the message is posted again.

        Raises ``Invalid`` if ``claims`` is not empty and the server requires claim ids for deletions.
        """
        check_range("pop", limit, 1, self._limits.max_messages_per_claim_or_pop)
        if self._delete_with_claim_id and claims:
            raise Invalid("claim_ids cannot be combined with pop.")
        rules, now, popped = self._popped(queue, limit)
        if popped:
            self._events.popped(queue, popped, now)
        shown = self._sealing.decrypt_all(queue, popped)
        if len(shown) < len(popped) and not rules.history_ttl:
            read = {message.id for message in shown}
            self._put_back(queue, [message for message in popped if message.id not in read], now)
        return ReadResult(shown, now)

    def _popped(self, queue: QueueRef, limit: int) -> tuple[Rules, Seconds, MessageList]:
        rules = self._rules_cache.remembered(queue) or self._rules_cache.recent(queue)
        if rules.claims_paused:
            rules = self._rules_cache.fresh(queue)
        while not rules.claims_paused:
            now, max_bytes = self._clock.now(), self._limits.max_answer_bytes
            try:
                return rules, now, self._messages.pop(queue, limit, now, rules.history_ttl, max_bytes, rules.metadata)
            except OtherMetadata as change:
                rules = self._rules_cache.remember(queue, change.metadata)
        return rules, self._clock.now(), []

    def _put_back(self, queue: QueueRef, messages: MessageList, now: Seconds) -> None:
        """Repost popped messages that cannot be decrypted, delayed so that they are not popped again immediately."""
        drafts = []
        for message in messages:
            ttl = max(1, int(message.expires - now))
            delay = min(UNREADABLE_DELAY, ttl - 1)
            terms = message.client, message.checksum, message.attributes, message.group
            drafts.append(Draft(message.id, message.body, ttl, delay, *terms))
        self._messages.post(queue, drafts, now)

    def _after(self, queue: QueueRef, marker: str, now: Seconds) -> int | None:
        """Convert a page marker to a sequence number. Return ``None`` if the marker is not valid.

        The marker is a sequence number or, in requests of openstacksdk, the id of a message.
        """
        if MESSAGE_ID.fullmatch(marker):
            return next((found.sequence for found in self._messages.get(queue, [marker], now)), None)
        return int(marker[:40]) if marker.isascii() and marker.isdigit() else None

    def _raise_unless_repeated(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        refusal: ZqError,
        idempotency_key: IdempotencyKey | None,
    ) -> NoReturn:
        if idempotency_key is not None:
            self._messages.post(queue, drafts, now, UNMATCHABLE_METADATA, idempotency_key)
        raise refusal

    def reserve_storage(self, queue: QueueRef, drafts: Sequence[Draft], rules: Rules) -> ZqError | None:
        """Reserve storage quota for the drafts. Return the error if posts are paused or the quota is exceeded.

        The error is not raised, so that the caller can look up the idempotency key first. Raises ``NoPosts`` or
        ``ReadOnly`` if the mode of the service forbids posts.
        """
        self._modes.check_post()
        return QueuePaused.of(queue.name) if rules.posts_paused else self._quotas.reserve_storage(queue.project, drafts)

    def copies(self, queue: QueueRef, drafts: Sequence[Draft], rules: Rules, now: Seconds, hops: int) -> Copies | None:
        return self._followers.copies(queue, drafts, rules, now, hops) if rules.subscribed else None

    def _drafts(
        self,
        posted: Sequence[wire.Posted],
        client: str,
        queue: QueueRef,
        rules: Rules,
        now: Seconds,
        trace: Mapping[str, AttributeValue],
        ids: Sequence[str] = (),
    ) -> tuple[Sequence[Draft], bool]:
        """Build the drafts of the posted messages. Also return whether a message has a delay that the queue ignores.

        ``ids`` are the ids of the messages; empty = new ids.
        """
        default_ttl, max_ttl = self._rules_cache.ttl(queue, rules), self._limits.max_message_ttl
        default_delay, max_delay = rules.default_message_delay, self._limits.max_message_delay
        seals = rules.enable_encrypt_messages
        is_plain = not (seals or self._checksum)
        drafts: list[Draft] = []
        ignores_delays = False
        for part in slices(list(zip(posted, ids or new_ids(len(posted), now), strict=True))):
            for message, id in part:
                ttl = default_ttl if message.ttl is UNSET else message.ttl
                if message.ttl is not UNSET and not MIN_TTL <= ttl <= max_ttl:
                    check_range("ttl", ttl, MIN_TTL, max_ttl, unit="seconds")
                delay, body, checksum = default_delay, bytes(message.body), ""
                if message.delay is not UNSET:
                    if default_delay:
                        delay = wire.parse_delay(message.delay)
                        check_range("delay", delay, MIN_DELAY, max_delay, unit="seconds")
                    elif bytes(message.delay) != b"0":
                        ignores_delays = True
                if not is_plain:
                    body, checksum = self._sealing.encode_body(
                        queue.project, id, body, seals=seals, checksum=self._checksum
                    )
                group = "" if message.group is UNSET else check_group_name(message.group)
                attributes = b""
                if trace or message.attributes is not UNSET:
                    attributes = build_attributes(message, trace)
                    attributes = self._sealing.encode_attributes(queue.project, id, attributes, seals=seals)
                drafts.append(Draft(id, body, ttl, delay, client, checksum, attributes, group))
        return drafts, ignores_delays


def build_attributes(posted: wire.Posted, trace: Mapping[str, AttributeValue]) -> bytes:
    """Encode the attributes of a posted message for storage. Raises ``Invalid`` if an attribute is not valid."""
    values: Mapping[str, AttributeValue] = {}
    if posted.attributes is not UNSET:
        values = attribute_values(posted.attributes)
        check_attributes(values)
    return encode_attributes(Attributes({**with_trace(values, trace)}))
