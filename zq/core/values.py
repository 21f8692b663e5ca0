# SPDX-License-Identifier: Apache-2.0
"""Result types of the operations in ``zq.core``."""

from typing import Generic, TypeVar

from msgspec import Struct

from zq.model import Message, Page, Seconds

T = TypeVar("T")


class ReadResult(Struct, Generic[T], frozen=True):
    """A value read from the store, and the time of the read."""

    value: T
    now: Seconds

    @property
    def found(self) -> bool:
        return bool(self.value)


class WriteResult(Struct, Generic[T], frozen=True):
    """The result of a write. If ``replayed`` is true, ``value`` is the result of an earlier, identical request."""

    value: T
    replayed: bool = False
    ignores_delays: bool = False


class MessagePage(Struct, frozen=True):
    """A page of a queue's messages as of ``now``.

    ``delayed``: whether the listing includes delayed messages. They are included if the client requests them, or if the
    queue has no default delay.
    """

    page: Page[Message]
    delayed: bool
    now: Seconds

    @property
    def found(self) -> bool:
        return bool(self.page.items)
