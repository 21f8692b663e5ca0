# SPDX-License-Identifier: Apache-2.0
"""What a claim holds: the filter that everybody uses who works under a claim, or for its holder."""

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimNotFound
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port


def held(port: Port, key: QueueKey, claim: str, now: int) -> Document:
    """A filter on what the claim holds, if it lives."""
    return port.where(key, **under(claim, now), e={"$gt": DatetimeMS(now)})


def under(claim: str, now: int) -> Document:
    """The condition that a message is held by the claim."""
    return {"c.i": layout.text(claim), "c.e": {"$gt": now}}


def pinned(claim: str) -> Binary:
    """What stands in ``c.i`` of what a commit has pinned under the claim."""
    return Binary(layout.text(claim).encode())


def every_held(port: Port, key: QueueKey, claim: str, now: int, step: list[Document]) -> Document:
    """The statement that updates all that the claim holds."""
    return {"q": held(port, key, claim, now), "u": step, "multi": True, "hint": layout.HELD}


def no_claim() -> ClaimNotFound:
    return ClaimNotFound("There is no live claim of this id in the queue.")
