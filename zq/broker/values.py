# SPDX-License-Identifier: Apache-2.0
"""What the use cases are given and what they answer, where no value of the model says it."""

from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

from zq.model import IdempotencyKey, Message, Page, Seconds

T = TypeVar("T")


class Upload(Struct, frozen=True):
    """A post's body that nobody has read yet, since its queue's rules say how much of it is read.

    ``size``: how many bytes it may have, as far as its caller has told. ``read`` returns it, and raises ``Invalid`` if
    it has more bytes than the argument. ``idempotency_key`` returns what a repeat of this body is known by, or None.
    ``hops``: by how many deliveries of zq it has come, each of which made the next.
    """

    size: int
    read: Callable[[int], bytes]
    idempotency_key: Callable[[bytes], IdempotencyKey | None]
    hops: int = 0


class Seen(Struct, Generic[T], frozen=True):
    """What a verb found, as of the moment ``now``."""

    value: T
    now: Seconds

    @property
    def found(self) -> bool:
        """Whether there was anything."""
        return bool(self.value)


class Applied(Struct, Generic[T], frozen=True):
    """The result of a verb.

    ``replayed``: an earlier request with the same idempotency key had this result. ``ignores_delays``: a message of
    the request names a delay, which its queue ignores.
    """

    value: T
    replayed: bool = False
    ignores_delays: bool = False


class Listed(Struct, frozen=True):
    """A page of a queue as of ``now``. ``delayed``: whether it shows delayed messages (always on a normal queue)."""

    page: Page[Message]
    delayed: bool
    now: Seconds

    @property
    def found(self) -> bool:
        """Whether there was anything."""
        return bool(self.page.items)
