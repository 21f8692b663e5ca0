# SPDX-License-Identifier: Apache-2.0
"""A request to claim or pop ready messages."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from zq.model import UNBOUNDED, Claim, ClaimRequest, ClaimResult, take_portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import BsonDocument, QueueKey, size_of


class Choice(NamedTuple):
    """The ready messages that an attempt to claim or pop messages has chosen.

    ``eligible`` messages can be claimed or popped. ``spent`` messages have reached the request's maximum claim count.
    ``candidates`` contains both.
    """

    candidates: Sequence[BsonDocument]
    eligible: Sequence[BsonDocument]
    spent: Sequence[BsonDocument]

    @property
    def doc_ids(self) -> list[str]:
        return [found["_id"] for found in self.eligible]


class ClaimOutcome(NamedTuple):
    """The outcome of an attempt to claim messages. ``now`` is the time of the attempt in milliseconds.

    ``lapsed`` counts claimed messages whose previous claim had expired. ``spent`` messages have reached the maximum
    claim count. ``metadata`` is the queue's metadata if it differs from the expected value.
    """

    now: int
    messages: Sequence[BsonDocument] = ()
    lapsed: int = 0
    spent: Sequence[BsonDocument] = ()
    metadata: bytes | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the request is complete and needs no further search."""
        return bool(self.messages or self.spent) or self.metadata is not None

    def claimed(self, key: QueueKey, request: ClaimRequest) -> ClaimResult:
        spent = [layout.message_id(key, found) for found in self.spent]
        if not self.messages:
            return ClaimResult(spent=spent, metadata=self.metadata)
        messages = [layout.to_message(key, found, self.now) for found in self.messages]
        lease = request.lease
        return ClaimResult(Claim(lease.claim, lease.ttl, self.now / 1000, messages, self.lapsed), spent=spent)


class ClaimAttempt(Struct, frozen=True):
    """A request to claim messages, or to pop messages if ``request`` is None.

    ``now`` is in milliseconds, and ``history`` in seconds (0 = no history entries).
    """

    limit: int
    now: int
    request: ClaimRequest | None = None
    max_bytes: int = UNBOUNDED
    history: int = 0
    expected: bytes | None = None

    def accepts(self, metadata: bytes) -> bool:
        return self.expected in (None, metadata)

    def choose(self, ready: Sequence[BsonDocument]) -> Choice:
        """Choose the first ready messages, up to the limits of the attempt."""
        candidates = list(take_portion(ready[: self.limit], self.max_bytes, size_of))
        max_claims = None if self.request is None else self.request.max_claims
        if max_claims is None:
            return Choice(candidates, candidates, [])
        eligible = [found for found in candidates if layout.claim_count(found) < max_claims]
        spent = [found for found in candidates if layout.claim_count(found) >= max_claims]
        return Choice(candidates, eligible, spent)

    def outcome(self, choice: Choice, taken: Collection[str]) -> ClaimOutcome:
        """Return the outcome of the attempt. ``taken`` has the ``_id`` values of the claimed or popped messages."""
        messages = [found for found in choice.eligible if found["_id"] in taken]
        if self.request is None:
            return ClaimOutcome(self.now, messages, spent=choice.spent)
        claimed = [layout.claimed_document(found, self.request, self.now) for found in messages]
        return ClaimOutcome(self.now, claimed, sum(map(layout.has_claim, messages)), choice.spent)
