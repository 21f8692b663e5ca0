# SPDX-License-Identifier: Apache-2.0
"""What loops over messages have in common, whether threads or tasks drive them."""

import logging
from collections.abc import Callable

from zq.client.desk import Desk, Habits
from zq.client.values import Decision, Delivery
from zq.errors import ClaimLapsed, ZqError

LOG = logging.getLogger("zq.client")
Lost = Callable[[list[Delivery]], object]


class Loop:
    """A loop with its desk. ``on_lost`` hears of messages whose claim was over before they were settled."""

    def __init__(self, habits: Habits, on_lost: Lost | None) -> None:
        self._habits = habits
        self._desk = Desk(habits)
        self._on_lost = on_lost
        self._stopping = False

    def stop(self) -> None:
        """Let the loop end after the messages in hand. Any thread may ask for it, and a handler of signals."""
        self._stopping = True

    def _after(self, delivery: Delivery, error: BaseException | None) -> Decision:
        """What becomes of a message whose handler has ended and did not say."""
        if error is None:
            return delivery.id
        LOG.warning("The handler failed; message %s goes back.", delivery.id, exc_info=error)
        return self._desk.habits.after_failure(delivery)

    def _tell(self, *, raises: bool = True) -> None:
        """Raise what the consumer must know of: lost messages, unless ``on_lost`` hears of them, and failed errands.

        ``raises`` False: log it, since the loop has been left.
        """
        desk, errors = self._desk, list[ZqError]()
        if desk.lost:
            lost, desk.lost = desk.lost, []
            if self._on_lost is not None:
                self._on_lost(lost)
            else:
                ids = ", ".join(delivery.id for delivery in lost[:3]) + (", …" if len(lost) > 3 else "")
                errors.append(
                    ClaimLapsed(f"The claim was over before {len(lost)} of its messages were settled: {ids}.")
                )
        errors += desk.failures
        desk.failures = []
        for error in errors:
            if raises:
                raise error
            LOG.warning("%s", error)
