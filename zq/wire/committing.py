# SPDX-License-Identifier: Apache-2.0
"""Commits and fences on the wire (extensions 9)."""

from typing import Final

import msgspec
from msgspec import Struct

from zq import wire
from zq.model import Committed


class HeldClaim(Struct):
    """One claim that a commit settles."""

    queue: str
    claim: str


class CountedStage(Struct):
    """A stage that a commit publishes, and how many messages it is to hold."""

    stage: str
    messages: int


class CommitTerms(Struct):
    """The body of a commit. A stage may stand there by its name alone, or with the messages that it is to hold."""

    producer: str
    batch: int
    publish: list[str | CountedStage] = []
    settle: list[HeldClaim] = []

    @property
    def stages(self) -> list[str]:
        """The names of the stages."""
        return [stage if isinstance(stage, str) else stage.stage for stage in self.publish]

    @property
    def expected(self) -> dict[str, int]:
        """How many messages stages are to hold, of those of which that is told."""
        return {stage.stage: stage.messages for stage in self.publish if isinstance(stage, CountedStage)}


_decoder: Final = msgspec.json.Decoder(CommitTerms)


def terms(raw: bytes) -> CommitTerms:
    """The terms of a commit. Raises ``InvalidBody``."""
    return wire.decode(_decoder, raw)


def committed(done: Committed) -> bytes:
    """What a commit answers."""
    return wire.encode({"published": done.published, "deleted": done.deleted, "replayed": done.replayed})


def last(done: Committed) -> bytes:
    """A producer's last batch."""
    return wire.encode({"batch": done.batch, "published": done.published, "deleted": done.deleted})


def epoch(number: int) -> bytes:
    """A fence's new epoch."""
    return wire.encode({"epoch": number})


def staged(count: int) -> bytes:
    """How many messages a staged post stored."""
    return wire.encode({"staged": count})
