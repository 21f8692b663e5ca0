# SPDX-License-Identifier: Apache-2.0
"""Message use cases with SQS semantics.

They differ from those of zq's own API:

- Sending to a missing queue does not create the queue.
- Each message can have its own delay.
- A claim can last 0 seconds and does not extend the ttl of its messages.
- The messages of a claim are deleted or hidden individually.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from msgspec import Struct, structs

from zq.clock import Clock
from zq.core.claims import ClaimAnswer, Claims
from zq.core.encryption import Sealing
from zq.core.messages import Messages
from zq.core.rules import Rules, RulesCache
from zq.errors import ClaimNotFound, DraftsRepeated, QueueNotFound, Repeated
from zq.events import Events
from zq.model import (
    ClaimRequest,
    Draft,
    Grip,
    Handled,
    Holder,
    IdempotencyKey,
    Lease,
    Outcome,
    QueueRef,
    Seconds,
    new_ids,
)
from zq.model.claims import DONE
from zq.sqs.extension import QueueAttributes, attributes_of
from zq.sqs.limits import NUMBERS
from zq.storage.api import Storage

# Deduplication interval of FIFO queues in seconds.
DEDUPLICATION: Final = 300
# Prefix of claim ids that are derived from a receive attempt id. Other claim ids never begin with it.
ATTEMPT: Final = "f" * 12
# Metadata of a missing queue, and of a queue without metadata.
NONE: Final = b"{}"
# Maximum visibility timeout in seconds, including extensions.
MAX_HOLD: Final = NUMBERS["VisibilityTimeout"][1]


class Outgoing(Struct, frozen=True):
    """A validated message to send.

    Args:
        body: The body as JSON.
        size: The size in bytes to compare with the maximum message size.
        delay: The delay in seconds; None = the queue's delay.
        attributes: The encoded ``Attributes``.
        group: The message group; "" = none.
        deduplication_id: The deduplication id; "" in a standard queue.
    """

    body: bytes
    size: int
    delay: int | None = None
    attributes: bytes = b""
    group: str = ""
    deduplication_id: str = ""


class Sent(Struct, frozen=True):
    """The result of a send.

    Args:
        ids: The message ids, in order; None for each message that exceeds ``max_size``.
        max_size: The queue's maximum message size in bytes.
        sequences: The sequences of a FIFO queue's messages, by id. The sequence is unknown for duplicates of messages
            that were stored by earlier versions.
    """

    ids: list[str | None]
    max_size: int
    sequences: Mapping[str, int] = {}


class Messaging:
    """Use cases for sending, receiving, deleting and hiding messages. Each method raises ``QueueNotFound``."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        rules_cache: RulesCache,
        messages: Messages,
        claims: Claims,
        events: Events,
        sealing: Sealing,
        checksum: bool,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._rules_cache = rules_cache
        self._messages = messages
        self._claims = claims
        self._events = events
        self._sealing = sealing
        self._checksum = checksum

    def attributes(self, queue: QueueRef) -> QueueAttributes:
        """Return the queue's attributes from the cache, or from the store on a miss."""
        return attributes_of(self._rules(queue).metadata)

    def send(self, queue: QueueRef, sender: str, outgoing: Sequence[Outgoing]) -> Sent:
        """Atomically store the messages that do not exceed the maximum size, and notify subscribers and waiters.

        In a FIFO queue, duplicates are not stored again. Raises ``QueuePaused`` or ``QuotaExceeded``.
        """
        rules = self._rules(queue)
        if rules.posts_paused or max([each.size for each in outgoing]) > attributes_of(rules.metadata).max_size:
            rules = self._fresh(queue)
        while True:
            now, max_size = self._clock.now(), attributes_of(rules.metadata).max_size
            ids = [
                id if each.size <= max_size else None
                for id, each in zip(new_ids(len(outgoing), now), outgoing, strict=True)
            ]
            drafts = self._drafts(queue, sender, outgoing, ids, rules)
            if attributes_of(rules.metadata).fifo:
                return self._send_once(queue, outgoing, ids, drafts, rules)
            if not drafts or self._post(queue, drafts, now, rules):
                return Sent(ids, max_size)
            rules = self._fresh(queue)

    def _send_once(
        self,
        queue: QueueRef,
        outgoing: Sequence[Outgoing],
        ids: Sequence[str | None],
        drafts: Sequence[Draft],
        rules: Rules,
    ) -> Sent:
        """Atomically store the drafts that are not duplicates. ``drafts`` has one draft for each message with an id."""
        named = [each for id, each in zip(ids, outgoing, strict=True) if id is not None]
        repeats: dict[str, Repeated] = {}
        while True:
            keys = [_idempotency_key(attributes_of(rules.metadata), each) for each in named]
            first: dict[IdempotencyKey, Draft] = {}
            for key, draft in zip(keys, drafts, strict=True):
                first.setdefault(key, structs.replace(draft, once=key))
            fresh = [draft for draft in first.values() if draft.id not in repeats]
            try:
                if not fresh or self._post(queue, fresh, self._clock.now(), rules):
                    break
            except DraftsRepeated as repeated:
                repeats |= repeated.first
            else:
                rules, repeats = self._fresh(queue), {}
        sequences = self._sequences(queue, fresh, rules)
        sequences |= {repeated.answer[0]: repeated.last for repeated in repeats.values() if repeated.last}
        stored = {id: repeats[id].answer[0] if id in repeats else id for id in (one.id for one in first.values())}
        stored_ids = iter([stored[first[key].id] for key in keys])
        return Sent([id and next(stored_ids) for id in ids], attributes_of(rules.metadata).max_size, sequences)

    def _sequences(self, queue: QueueRef, posted: Sequence[Draft], rules: Rules) -> dict[str, int]:
        """Return the sequences of posted messages by id.

        If a message has already been deleted, its sequence comes from the deduplication record, which the store returns
        when the message is posted again.
        """
        now = self._clock.now()
        found = self._storage.messages.get(queue, [draft.id for draft in posted], now) if posted else ()
        sequences = {message.id: message.sequence for message in found}
        if gone := [draft for draft in posted if draft.id not in sequences]:
            try:
                self._storage.messages.post(queue, gone, now, rules.metadata, create=False)
            except DraftsRepeated as repeated:
                sequences |= {id: one.last for id, one in repeated.first.items()}
            except QueueNotFound:  # deleted concurrently
                pass
        return sequences

    def receive(
        self, queue: QueueRef, limit: int, visibility: int | None, holder: Holder, attempt: str = ""
    ) -> ClaimAnswer:
        """Claim up to ``limit`` messages for ``visibility`` seconds; None = the queue's visibility timeout.

        If ``attempt`` is repeated, return the messages that are still claimed, and restart their visibility timeout.
        """
        self._rules(queue)
        claim = _named(queue, attempt) if attempt else new_ids(1, self._clock.now())[0]

        def wanted(rules: Rules) -> ClaimRequest:
            seconds = attributes_of(rules.metadata).visibility if visibility is None else visibility
            return ClaimRequest(Lease(claim, seconds, 0, prolong=False), limit, holder=holder, named=bool(attempt))

        answer = self._claims.claim(queue, wanted)
        if answer.existed:
            with suppress(ClaimNotFound):
                self._storage.claims.renew(queue, wanted(self._rules(queue)).lease, self._clock.now())
        if answer.claim is None:
            self._rules(queue)
        return answer

    def handle(self, queue: QueueRef, grips: Sequence[Grip]) -> Sequence[Handled]:
        """Delete or hide messages unless another consumer has received them since, and return each outcome.

        A FIFO queue also rejects messages whose visibility timeout has expired.
        """
        rules = self._rules_cache.recent(queue)
        late, history = not attributes_of(rules.metadata).fifo, rules.history_ttl
        handled = self._storage.claims.handle(queue, grips, self._clock.now(), late=late, history=history)
        if Handled.GONE in handled:
            self._fresh(queue)
        deleted = [1 for grip, became in zip(grips, handled, strict=True) if became is DONE and grip.hold is None]
        if deleted:
            self._events.finished(queue, Outcome.DELETED, len(deleted))
        return handled

    def _rules(self, queue: QueueRef) -> Rules:
        """Return the queue's rules from the cache. Read the store if the cached rules may belong to a missing queue."""
        rules = self._rules_cache.remembered(queue)
        return self._fresh(queue) if rules is None or rules.metadata == NONE else rules

    def _fresh(self, queue: QueueRef) -> Rules:
        """Read the queue's rules from the store and update the cache. Raises ``QueueNotFound``."""
        stored = self._storage.queues.get(queue)
        if stored is None:
            self._rules_cache.forget(queue)
            raise QueueNotFound(f"There is no queue {queue.name}.")
        return self._rules_cache.remember(queue, stored.metadata)

    def _drafts(
        self, queue: QueueRef, sender: str, outgoing: Sequence[Outgoing], ids: Sequence[str | None], rules: Rules
    ) -> Sequence[Draft]:
        """Return drafts of the messages with an id, encrypted and with checksums if required."""
        project, ttl, sealing = queue.project, self._rules_cache.ttl(queue, rules), self._sealing
        drafts, seals = [], rules.enable_encrypt_messages
        for id, each in zip(ids, outgoing, strict=True):
            if id is None:
                continue
            body, checksum = each.body, ""
            if seals or self._checksum:
                body, checksum = sealing.stored(project, id, body, seals=seals, checksum=self._checksum)
            attributes = sealing.stored_attributes(project, id, each.attributes, seals=seals)
            delay = rules.default_message_delay if each.delay is None else each.delay
            drafts.append(Draft(id, body, ttl, delay, sender, checksum, attributes, each.group))
        return drafts

    def _post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        rules: Rules,
    ) -> bool:
        """Reserve storage quota, and post the drafts with the notices for subscribers.

        Return False without posting if ``rules`` does not match the queue's current metadata. Raises ``QueuePaused`` or
        ``QuotaExceeded``.
        """
        refusal = self._messages.reserve_storage(queue, drafts, rules)
        if refusal is not None:
            raise refusal
        copies = self._messages.copies(queue, drafts, rules, now, 0)
        post = self._storage.messages.post
        if post(queue, drafts, now, rules.metadata, copies=copies, create=False) is not None:
            return False
        self._events.posted(queue, drafts)
        return True


def _idempotency_key(terms: QueueAttributes, outgoing: Outgoing) -> IdempotencyKey:
    """Return the idempotency key of a FIFO queue's message.

    The parts of the key contain no spaces, so joining them with spaces is unambiguous.
    """
    within = f"group {outgoing.group} " if terms.scope != "queue" else ""
    return IdempotencyKey(f"sqs {terms.purged} {within}{outgoing.deduplication_id}", b"", DEDUPLICATION)


def _named(queue: QueueRef, attempt: str) -> str:
    """Derive a claim id from a receive attempt id."""
    named = f"{queue.project}\0{queue.name}\0{attempt}".encode()
    return ATTEMPT + blake2b(named, digest_size=10).hexdigest()
