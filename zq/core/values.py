# SPDX-License-Identifier: Apache-2.0
"""Results of use cases that are not values of the model."""

from typing import Generic, TypeVar

from msgspec import Struct

from zq.model import Message, Page, Seconds

T = TypeVar("T")


class Seen(Struct, Generic[T], frozen=True):
    """A value read from the store, and the time ``now`` at which it was read."""

    value: T
    now: Seconds

    @property
    def found(self) -> bool:
        """Whether the value is not empty."""
        return bool(self.value)


class Applied(Struct, Generic[T], frozen=True):
    """The result of a change.

    Attributes:
        replayed: Whether an earlier request with the same idempotency key produced this result.
        ignores_delays: Whether a message of the request has a delay that its queue ignores.
    """

    value: T
    replayed: bool = False
    ignores_delays: bool = False


class Listed(Struct, frozen=True):
    """A page of a queue's messages as of ``now``.

    ``delayed``: whether the page includes delayed messages; always true if the queue has no default delay.
    """

    page: Page[Message]
    delayed: bool
    now: Seconds

    @property
    def found(self) -> bool:
        """Whether the page has messages."""
        return bool(self.page.items)
