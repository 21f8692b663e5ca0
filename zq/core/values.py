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
        """Whether the value is non-empty."""
        return bool(self.value)


class WriteResult(Struct, Generic[T], frozen=True):
    """The result of a write.

    Attributes:
        replayed: Whether the request repeated an earlier one and ``value`` is the earlier result.
        ignores_delays: Whether the queue ignored the delay of a message.
    """

    value: T
    replayed: bool = False
    ignores_delays: bool = False


class MessagePage(Struct, frozen=True):
    """A page of a queue's messages as of ``now``.

    Attributes:
        delayed: Whether delayed messages are included: the client requested them, or the queue has no default delay.
    """

    page: Page[Message]
    delayed: bool
    now: Seconds

    @property
    def found(self) -> bool:
        """Whether the page contains messages."""
        return bool(self.page.items)
