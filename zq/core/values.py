# SPDX-License-Identifier: Apache-2.0
"""The answers of use cases that no value of the model expresses."""

from typing import Generic, TypeVar

from msgspec import Struct

from zq.model import Message, Page, Seconds

T = TypeVar("T")


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
