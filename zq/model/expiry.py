# SPDX-License-Identifier: Apache-2.0
"""Options for the removal of expired data from a store, and limits for each round of removals."""

from typing import Annotated, Final, Protocol

from msgspec import Struct

from zq.model import QueueRef
from zq.model.options import Option

STEP: Final = 1000
ROUND: Final = 100_000


class Expiry(Struct, frozen=True, kw_only=True):
    """The options of the configuration section ``[expiry]``. A driver ignores options that it does not support."""

    sweep: Annotated[bool, Option(reload=True)] = True
    """Remove expired messages in regular sweep rounds."""
    sweep_interval: Annotated[float, Option(0.1, 3600, reload=True)] = 5.0
    """Seconds between sweep rounds, which reclaim the space of expired and purged messages."""
    sweep_batch_size: Annotated[int, Option(1, 100_000, reload=True)] = STEP
    """Maximum number of messages that one step of a sweep round removes."""
    sweep_max_deletes: Annotated[int, Option(1, 100_000_000, reload=True)] = ROUND
    """Maximum number of messages that one sweep round removes; at least sweep_batch_size."""
    delete_on_read: Annotated[bool, Option(reload=True)] = True
    """Remove expired messages that readers find."""
    delete_queue_size: Annotated[int, Option(1, 10_000_000, reload=True)] = 10_000
    """Maximum number of expired messages that readers found and that await removal. The sweep removes further ones."""
    compaction_filter: Annotated[bool, Option(reload=True)] = True
    """Drop expired messages when the embedded store compacts its files."""
    compaction_filter_grace: Annotated[int, Option(0, 86_400, reload=True)] = 60
    """Seconds after expiry before the compaction filter drops a message, so that other expiry layers come first."""
    compaction_interval: Annotated[int, Option(60, 31_536_000, reload=True)] = 3600
    """Seconds after which the embedded store compacts a file even if nothing else requires it."""


class Pace(Protocol):
    """A throttle for one round in which a driver removes expired data.

    The driver removes the data in steps. It calls ``step`` before each step and ``removed`` after it.
    """

    def step(self) -> int:
        """Return the maximum number of items to remove in the next step; 0 ends the round. May sleep first."""
        ...

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        """Record the removal of ``count`` expired items."""
        ...


class Steps:
    """A ``Pace`` that never sleeps: up to ``max_items`` items per round, in steps of up to ``size`` items."""

    def __init__(self, size: int = STEP, max_items: int = ROUND) -> None:
        self._size = size
        self.left = max_items

    def step(self) -> int:
        return min(self._size, self.left)

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        self.left = max(0, self.left - count)
