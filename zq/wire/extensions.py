# SPDX-License-Identifier: Apache-2.0
"""Request bodies for settle, redrive, replay and transactions (extensions contract, sections 3, 4, 5 and 9)."""

from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from zq.model import Seconds
from zq.wire import decode


class ReleaseTerms(Struct):
    """A message to release."""

    id: str
    delay: int | UnsetType = UNSET


class MoveTerms(Struct):
    """A message to move to another queue. If ``body`` is set, it replaces the message's body."""

    id: str
    queue: str
    body: Raw | UnsetType = UNSET
    ttl: int | UnsetType = UNSET
    delay: int | UnsetType = UNSET


class BuryTerms(Struct):
    """A message to move to the dead-letter queue."""

    id: str
    reason: str


class SettleTerms(Struct):
    """The body of a settle request.

    If ``delete`` is ``"*"``, the request deletes all messages of the claim that ``release``, ``move`` and ``bury`` do
    not name.
    """

    delete: list[str] | Literal["*"] = []
    release: list[ReleaseTerms] = []
    move: list[MoveTerms] = []
    bury: list[BuryTerms] = []


class RedriveTerms(Struct):
    """The body of a redrive."""

    to: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    ids: list[str] | UnsetType = UNSET
    dry_run: bool = False
    origin: str | UnsetType = UNSET


_settle_decoder: Final = msgspec.json.Decoder(SettleTerms)
_redrive_decoder: Final = msgspec.json.Decoder(RedriveTerms)


def settle_terms(raw: bytes) -> SettleTerms:
    """Parse the body of a settle request. Raises ``InvalidBody`` if it is not valid."""
    return decode(_settle_decoder, raw)


def redrive_terms(raw: bytes) -> RedriveTerms:
    """Parse the body of a redrive. Raises ``InvalidBody`` if it is not valid."""
    return decode(_redrive_decoder, raw)


class ReplayTerms(Struct):
    """The body of a replay. It has either ``ids``, or at least one of ``since``, ``until`` and ``limit``."""

    ids: list[str] | UnsetType = UNSET
    since: str | UnsetType = UNSET
    until: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET
    dry_run: bool = False


_replay_decoder: Final = msgspec.json.Decoder(ReplayTerms)


def replay_terms(raw: bytes) -> ReplayTerms:
    """Parse the body of a replay. Raises ``InvalidBody`` if it is not valid."""
    return decode(_replay_decoder, raw)


def parse_time(text: str) -> Seconds | None:
    """Parse a time in ISO 8601, and round it to milliseconds. Return ``None`` if the text is not valid.

    A time without a time zone is in UTC.
    """
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = named if named.tzinfo else named.replace(tzinfo=UTC)
    return max(0.0, round((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds(), 3))


class HeldClaim(Struct):
    """A claim whose messages a commit deletes."""

    queue: str
    claim: str


class CountedStage(Struct):
    """A stage that a commit publishes, with the number of messages that it must have."""

    stage: str
    messages: int


class CommitTerms(Struct):
    """The body of a commit. Each item of ``publish`` is a stage's name, or a stage with its required message count."""

    producer: str
    batch: int
    publish: list[str | CountedStage] = []
    settle: list[HeldClaim] = []

    @property
    def stages(self) -> list[str]:
        """The names of the stages to publish."""
        return [stage if isinstance(stage, str) else stage.stage for stage in self.publish]

    @property
    def expected(self) -> dict[str, int]:
        """Required message counts by stage name."""
        return {stage.stage: stage.messages for stage in self.publish if isinstance(stage, CountedStage)}


_commit_decoder: Final = msgspec.json.Decoder(CommitTerms)


def commit_terms(raw: bytes) -> CommitTerms:
    """Parse the body of a commit. Raises ``InvalidBody`` if it is not valid."""
    return decode(_commit_decoder, raw)
