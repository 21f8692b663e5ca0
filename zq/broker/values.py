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
    """What a verb did. ``replayed``: a request with the same idempotency key had done it before."""

    value: T
    replayed: bool = False


class Listed(Struct, frozen=True):
    """A page of a queue as of ``now``. ``delayed``: whether it shows delayed messages (always on a normal queue)."""

    page: Page[Message]
    delayed: bool
    now: Seconds

    @property
    def found(self) -> bool:
        """Whether there was anything."""
        return bool(self.page.items)
