# SPDX-License-Identifier: Apache-2.0
"""A message of the reference model."""

from dataclasses import dataclass

from zq.model import Draft, Message


@dataclass
class Entry:
    """A message.

    ``claim`` is valid until ``ends``; ``former`` is the message's available-at before that claim. ``wait``: seconds for
    which the message is unavailable after the claim.
    """

    draft: Draft
    sequence: int
    ttl: int
    created: float
    expires: float
    available: float
    former: float = 0
    claim: str = ""
    claimed: float = 0
    lease: int = 0
    ends: float = 0
    wait: int = 0
    count: int = 0
    origin: str = ""
    origin_count: int = 0
    reason: str = ""
    first: float = 0

    def held(self, now: float) -> bool:
        return self.claim != "" and self.ends > now

    def message(self, now: float) -> Message:
        draft, claim = self.draft, self.claim if self.held(now) else ""
        seen = (self.created, self.expires, self.available, self.sequence, draft.client, claim, self.count)
        origin = (self.origin, self.origin_count, self.reason)
        return Message(draft.id, draft.body, self.ttl, *seen, draft.checksum, *origin, draft.attributes, self.first)

    def give_back(self, now: float, delay: int | None) -> None:
        """Make the message available after ``delay``, otherwise after its wait, otherwise at its former time."""
        self.claim = ""
        seconds = self.wait if delay is None else delay
        self.available = self.former if delay is None and not seconds else round(now + seconds, 3)
