# SPDX-License-Identifier: Apache-2.0
"""One caller's claim or pop of ready messages: its terms, the messages that it takes of those found, its outcome."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from zq.model import UNBOUNDED, Claim, Claimed, ClaimRequest, portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import BsonDocument, QueueKey, body_of


class Choice(NamedTuple):
    """The found messages that an attempt takes.

    ``candidates`` are all of them, ``spent`` were claimed as often as the queue allows, ``eligible`` are the others.
    """

    candidates: Sequence[BsonDocument]
    eligible: Sequence[BsonDocument]
    spent: Sequence[BsonDocument]

    @property
    def doc_ids(self) -> list[str]:
        """``_id`` of the eligible messages."""
        return [found["_id"] for found in self.eligible]


class ClaimOutcome(NamedTuple):
    """The outcome of an attempt at the moment ``now``.

    ``messages`` are the documents of the claim, as they are now, or of the pop. ``lapsed`` counts messages whose former
    claim had lapsed. ``spent`` are messages that were claimed too often. ``metadata`` is the queue's if the attempt
    expects another one.
    """

    now: int
    messages: Sequence[BsonDocument] = ()
    lapsed: int = 0
    spent: Sequence[BsonDocument] = ()
    metadata: bytes | None = None

    @property
    def is_answered(self) -> bool:
        """Whether the request needs no further search."""
        return bool(self.messages or self.spent) or self.metadata is not None

    def claimed(self, key: QueueKey, request: ClaimRequest) -> Claimed:
        """Return the model's value."""
        spent = [layout.message_id(key, found) for found in self.spent]
        if not self.messages:
            return Claimed(spent=spent, metadata=self.metadata)
        messages = [layout.message(key, found, self.now) for found in self.messages]
        lease = request.lease
        return Claimed(Claim(lease.claim, lease.ttl, self.now / 1000, messages, self.lapsed), spent=spent)


class ClaimAttempt(Struct, frozen=True):
    """The terms of one caller's claim, or of its pop if there is no ``request``."""

    limit: int
    now: int
    request: ClaimRequest | None = None
    most_bytes: int = UNBOUNDED
    history: int = 0
    expected: bytes | None = None

    def fits(self, metadata: bytes) -> bool:
        """Return whether the caller expects this metadata."""
        return self.expected in (None, metadata)

    def choose(self, ready: Sequence[BsonDocument]) -> Choice:
        """Choose the first of the ready messages, as many as the caller wants."""
        candidates = list(portion(ready[: self.limit], self.most_bytes, body_of))
        max_claims = None if self.request is None else self.request.max_claims
        if max_claims is None:
            return Choice(candidates, candidates, [])
        eligible = [found for found in candidates if layout.claim_count(found) < max_claims]
        spent = [found for found in candidates if layout.claim_count(found) >= max_claims]
        return Choice(candidates, eligible, spent)

    def outcome(self, choice: Choice, taken: Collection[str]) -> ClaimOutcome:
        """Return the outcome after the messages with these ``_id`` were claimed or popped."""
        messages = [found for found in choice.eligible if found["_id"] in taken]
        if self.request is None:
            return ClaimOutcome(self.now, messages, spent=choice.spent)
        claimed = [layout.claimed(found, self.request, self.now) for found in messages]
        return ClaimOutcome(self.now, claimed, sum(map(layout.names_claim, messages)), choice.spent)
