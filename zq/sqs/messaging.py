# SPDX-License-Identifier: Apache-2.0
"""Message use cases with SQS semantics.

Differences from zq's own API:

- Sending a message does not create a missing queue.
- Each message can have its own delay.
- A claim can last 0 seconds, and does not extend the ttl of its messages.
- A consumer deletes each message of a claim separately, and changes the visibility timeout of each message
  separately.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from msgspec import Struct, structs

from zq.clock import Clock
from zq.core.claims import ClaimReply, Claims
from zq.core.encryption import Sealing
from zq.core.messages import Messages
from zq.core.rules import Rules, RulesCache
from zq.errors import ClaimNotFound, DraftsRepeated, QueueNotFound, Repeated
from zq.events import Events
from zq.model import (
    ClaimRequest,
    Draft,
    HandleOutcome,
    Holder,
    IdempotencyKey,
    Lease,
    MessageHandle,
    Outcome,
    QueueRef,
    Seconds,
    new_ids,
)
from zq.model.claims import DONE
from zq.sqs.extension import QueueAttributes, read_attributes
from zq.sqs.limits import NUMBERS
from zq.storage.api import Storage

# Deduplication interval of FIFO queues in seconds.
DEDUPLICATION: Final = 300
# Prefix of claim ids that are derived from a receive attempt id. No other claim id begins with it.
ATTEMPT_PREFIX: Final = "f" * 12
# The cached metadata of a queue that is missing or has no metadata.
NO_METADATA: Final = b"{}"
# Maximum visibility timeout in seconds, including extensions.
MAX_HOLD: Final = NUMBERS["VisibilityTimeout"][1]


class OutgoingMessage(Struct, frozen=True):
    """A message of a send request, after validation.

    Args:
        size: The total size of the body and the attributes in bytes, compared with the queue's maximum message size.
        delay: The delay in seconds. If it is None, the queue's delay applies.
    """

    body: bytes
    size: int
    delay: int | None = None
    attributes: bytes = b""
    group: str = ""
    deduplication_id: str = ""


class SendResult(Struct, frozen=True):
    """The result of sending messages.

    Args:
        ids: The message ids, in order. The id of a message that exceeds ``max_size`` is None.
        sequences: The sequence numbers of a FIFO queue's messages, by id. A duplicate may have none.
    """

    ids: list[str | None]
    max_size: int
    sequences: Mapping[str, int] = {}


class Messaging:
    """The use cases that send, receive and delete messages, or change their visibility timeout."""

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

    def get_attributes(self, queue: QueueRef) -> QueueAttributes:
        """Return the queue's attributes, which can come from the cache."""
        return read_attributes(self._get_rules(queue).metadata)

    def send(self, queue: QueueRef, sender: str, outgoing: Sequence[OutgoingMessage]) -> SendResult:
        """Store the messages in one atomic change, and notify subscribers and waiting consumers.

        Skip messages that exceed the queue's maximum size, and duplicates in a FIFO queue. Raises ``QueuePaused``
        or ``QuotaExceeded``.
        """
        rules = self._get_rules(queue)
        if rules.posts_paused or max([each.size for each in outgoing]) > read_attributes(rules.metadata).max_size:
            rules = self._read_rules(queue)
        while True:
            now, max_size = self._clock.now(), read_attributes(rules.metadata).max_size
            ids = [
                id if each.size <= max_size else None
                for id, each in zip(new_ids(len(outgoing), now), outgoing, strict=True)
            ]
            drafts = self._make_drafts(queue, sender, outgoing, ids, rules)
            if read_attributes(rules.metadata).fifo:
                return self._send_once(queue, outgoing, ids, drafts, rules)
            if not drafts or self._post(queue, drafts, now, rules):
                return SendResult(ids, max_size)
            rules = self._read_rules(queue)

    def _send_once(
        self,
        queue: QueueRef,
        outgoing: Sequence[OutgoingMessage],
        ids: Sequence[str | None],
        drafts: Sequence[Draft],
        rules: Rules,
    ) -> SendResult:
        """Store the messages of a FIFO queue in one atomic change, and skip duplicates.

        ``ids`` are the ids of ``outgoing``, with None for each oversized message. ``drafts`` contains the messages that
        are not oversized.
        """
        named = [each for id, each in zip(ids, outgoing, strict=True) if id is not None]
        repeats: dict[str, Repeated] = {}
        while True:
            keys = [_make_idempotency_key(read_attributes(rules.metadata), each) for each in named]
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
                rules, repeats = self._read_rules(queue), {}
        sequences = self._get_sequences(queue, fresh, rules)
        sequences |= {repeated.answer[0]: repeated.last for repeated in repeats.values() if repeated.last}
        stored = {id: repeats[id].answer[0] if id in repeats else id for id in (one.id for one in first.values())}
        stored_ids = iter([stored[first[key].id] for key in keys])
        return SendResult([id and next(stored_ids) for id in ids], read_attributes(rules.metadata).max_size, sequences)

    def _get_sequences(self, queue: QueueRef, posted: Sequence[Draft], rules: Rules) -> dict[str, int]:
        """Return a mapping from message id to sequence number for messages that were just posted.

        If a consumer has already deleted a message, its sequence number cannot be read from the queue. In this case,
        post the message again. The store rejects the duplicate, and its error contains the sequence number.
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
    ) -> ClaimReply:
        """Claim messages.

        Args:
            visibility: The visibility timeout in seconds. If it is None, the queue's visibility timeout applies.
            attempt: The receive attempt id, or "" if the request has none. If an earlier request had this id, return
                the messages that the earlier claim still holds, and restart their visibility timeout.
        """
        self._get_rules(queue)
        claim = _derive_claim_id(queue, attempt) if attempt else new_ids(1, self._clock.now())[0]

        def make_request(rules: Rules) -> ClaimRequest:
            seconds = read_attributes(rules.metadata).visibility if visibility is None else visibility
            return ClaimRequest(Lease(claim, seconds, 0, prolong=False), limit, holder=holder, named=bool(attempt))

        answer = self._claims.claim(queue, make_request)
        if answer.existed:
            with suppress(ClaimNotFound):
                self._storage.claims.renew(queue, make_request(self._get_rules(queue)).lease, self._clock.now())
        if answer.claim is None:
            self._get_rules(queue)
        return answer

    def handle(self, queue: QueueRef, handles: Sequence[MessageHandle]) -> Sequence[HandleOutcome]:
        """Delete received messages or change their visibility timeouts, and return the outcomes in order.

        In these cases, a message stays unchanged:

        - Another consumer has received the message in the meantime.
        - The new visibility timeout is too long.
        - The queue is a FIFO queue, and the message's visibility timeout has expired.
        """
        rules = self._rules_cache.recent(queue)
        accepts_expired, history = not read_attributes(rules.metadata).fifo, rules.history_ttl
        handled = self._storage.claims.handle(
            queue, handles, self._clock.now(), accepts_expired=accepts_expired, history=history
        )
        if HandleOutcome.GONE in handled:
            self._read_rules(queue)
        deleted = [1 for handle, became in zip(handles, handled, strict=True) if became is DONE and handle.hold is None]
        if deleted:
            self._events.finished(queue, Outcome.DELETED, len(deleted))
        return handled

    def _get_rules(self, queue: QueueRef) -> Rules:
        """Return the queue's rules (its parsed metadata) from the cache or from the store.

        Raises ``QueueNotFound`` if the rules are not cached and the queue does not exist.
        """
        # Default rules without metadata are also cached for a queue that does not exist.
        rules = self._rules_cache.remembered(queue)
        return self._read_rules(queue) if rules is None or rules.metadata == NO_METADATA else rules

    def _read_rules(self, queue: QueueRef) -> Rules:
        stored = self._storage.queues.get(queue)
        if stored is None:
            self._rules_cache.forget(queue)
            raise QueueNotFound(f"There is no queue {queue.name}.")
        return self._rules_cache.remember(queue, stored.metadata)

    def _make_drafts(
        self, queue: QueueRef, sender: str, outgoing: Sequence[OutgoingMessage], ids: Sequence[str | None], rules: Rules
    ) -> Sequence[Draft]:
        project, ttl, sealing = queue.project, self._rules_cache.ttl(queue, rules), self._sealing
        drafts, seals = [], rules.enable_encrypt_messages
        for id, each in zip(ids, outgoing, strict=True):
            if id is None:
                continue
            body, checksum = each.body, ""
            if seals or self._checksum:
                body, checksum = sealing.encode_body(project, id, body, seals=seals, checksum=self._checksum)
            attributes = sealing.encode_attributes(project, id, each.attributes, seals=seals)
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
        """Reserve storage quota, and post the drafts together with the notifications for subscribers.

        If the queue's metadata has changed since ``rules`` was read, post nothing and return False.
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


def _make_idempotency_key(terms: QueueAttributes, outgoing: OutgoingMessage) -> IdempotencyKey:
    """Return the idempotency key of a FIFO queue's message.

    Spaces separate the parts of the key, such as the group and the deduplication id. No part contains a space, so keys
    with different parts differ.
    """
    within = f"group {outgoing.group} " if terms.scope != "queue" else ""
    return IdempotencyKey(f"sqs {terms.purged} {within}{outgoing.deduplication_id}", b"", DEDUPLICATION)


def _derive_claim_id(queue: QueueRef, attempt: str) -> str:
    named = f"{queue.project}\0{queue.name}\0{attempt}".encode()
    return ATTEMPT_PREFIX + blake2b(named, digest_size=10).hexdigest()
