# SPDX-License-Identifier: Apache-2.0
"""What one caller wants of the messages that are ready, and what becomes of it."""

from collections.abc import Sequence

from msgspec import Struct

from zq.model import UNBOUNDED, ClaimRequest, portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import BsonDocument, body_of


class ClaimAttempt(Struct):
    """One caller's claim, or its pop if there is no ``request``, and what has become of it.

    ``messages``: the documents that it got; ``lapsed``: how many of these were under claims that had lapsed. ``spent``:
    ids of messages that it met and must not hand out. ``metadata``: the queue's, if they are not the expected ones.
    """

    limit: int
    now: int
    request: ClaimRequest | None = None
    most_bytes: int = UNBOUNDED
    history: int = 0
    expected: bytes | None = None
    messages: list[BsonDocument] = []
    lapsed: int = 0
    spent: list[BsonDocument] = []
    metadata: bytes | None = None

    def candidates(self, ready: Sequence[BsonDocument]) -> list[BsonDocument]:
        """What it may get of what was found."""
        return list(portion(ready[: self.limit], self.most_bytes, body_of))

    def living(self, candidates: list[BsonDocument]) -> list[BsonDocument]:
        """Those that may be handed out once more; the others are ``spent``."""
        if self.request is None or self.request.max_claims is None:
            return candidates
        most = self.request.max_claims
        self.spent = [found for found in candidates if layout.claim_count(found) >= most]
        return [found for found in candidates if layout.claim_count(found) < most]

    @property
    def is_answered(self) -> bool:
        return bool(self.messages or self.spent)

    def clear(self) -> None:
        """Nothing has become of it yet."""
        self.messages, self.lapsed, self.spent = [], 0, []

    def take(self, living: Sequence[BsonDocument]) -> None:
        """It claims these, each as it was found: they are under its claim from now on."""
        assert self.request is not None
        self.lapsed = sum(map(layout.names_claim, living))
        self.messages = [dict(one) for one in living]
        for one in self.messages:
            layout.put_under(one, self.request, self.now)
