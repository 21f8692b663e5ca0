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


class CommitTerms(Struct):
    """The body of a commit."""

    producer: str
    batch: int
    publish: list[str] = []
    settle: list[HeldClaim] = []


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
