# SPDX-License-Identifier: Apache-2.0
"""What loops over messages have in common, whether threads or tasks drive them."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from zq.client.calls import Call
from zq.client.claims import Taken
from zq.client.desk import Desk, Errand
from zq.client.habits import Habits, Limits
from zq.client.values import Decision, Delivery, Worked
from zq.errors import ClaimLapsed

LOG = logging.getLogger("zq.client")
Lost = Callable[[list[Delivery]], object]
FAREWELL: Final = 5.0
"""Seconds in which whoever was told to stop tries to settle what was decided."""


class Loop:
    """A loop with its desk. ``on_lost`` hears of messages whose claim was over before they were settled.

    ``stopped``: a signal, or ``stop``, has ended the loop, not a lack of messages. ``guard``: held around the desk.
    """

    def __init__(self, habits: Habits, on_lost: Lost | None, guard: AbstractContextManager[Any]) -> None:
        self.stopped = False
        self._habits = habits
        self._desk = Desk(habits)
        self._on_lost = on_lost
        self._guard = guard
        self._running = False
        self._left_at = inf
        self._done = self._failed = 0

    def stop(self) -> None:
        """Let the loop end after the messages in hand. Any thread may ask for it, and a handler of signals."""
        self.stopped = True

    def _begin(self, limits: Limits) -> None:
        if self._running:
            raise RuntimeError("This consumer is in a loop already; each loop needs a consume() of its own.")
        self._running, self.stopped, self._left_at = True, False, inf
        self._done = self._failed = 0
        self._desk = Desk(self._habits.within(limits))

    def _over(self) -> bool:
        return self.stopped or self._left_at < inf

    def _claiming(self) -> Call[Taken]:
        """The call for the next claim; not repeated for those who want no more."""
        return replace(self._desk.ask(), patience=self._interest)

    def _carrying(self, errand: Errand) -> Call[Any]:
        """The call of an errand; renewals are not repeated for those who have left."""
        return replace(errand.call, patience=self._farewell if errand.decided else self._interest)

    def _carried(self, errand: Errand, answer: Any, error: Exception | None, asked: float) -> None:
        """Note how an errand ended."""
        if error is None:
            self._desk.went(errand, answer, asked)
        else:
            self._desk.failed(errand, error, time.monotonic())

    def _interest(self) -> float:
        return 0.0 if self._over() else inf

    def _farewell(self) -> float:
        return self._left_at + FAREWELL - time.monotonic() if self.stopped else inf

    def _after(self, delivery: Delivery, error: BaseException | None) -> Decision:
        """What becomes of a message whose handler has ended and did not say."""
        if error is None:
            self._done += 1
            return delivery.id
        self._failed += 1
        LOG.warning("The handler failed; message %s goes back.", delivery.id, exc_info=error)
        return self._desk.habits.after_failure(delivery)

    def _worked(self) -> Worked:
        return Worked(self._done, self._failed, self._desk.unstarted)

    def _tell(self, *, raises: bool = True) -> None:
        """Raise what the consumer must know of: lost messages, unless ``on_lost`` hears of them, and failed errands.

        All but the first are logged; with ``raises`` False, since the loop has been left, all.
        """
        with self._guard:
            lost, errors = self._desk.news()
        if lost and self._on_lost is not None:
            self._on_lost(lost)
        elif lost:
            ids = ", ".join(delivery.id for delivery in lost[:3]) + (", …" if len(lost) > 3 else "")
            errors.insert(0, ClaimLapsed(f"The claim was over before {len(lost)} of its messages were settled: {ids}."))
        for error in errors[1 if raises else 0 :]:
            LOG.warning("%s", error)
        if errors and raises:
            raise errors[0]
