# SPDX-License-Identifier: Apache-2.0
"""Who sweeps: of all servers on a store one at a time, as a document of ``clock`` says.

``{_id: "sweeper", round: whose turn it is, until: when it ends}``. A server that dies in its turn holds up the others
until then, some seconds of MongoDB's own clock. Two that sweep side by side would only do the same work twice.
"""

import time
from types import TracebackType
from typing import Final
from uuid import uuid4

from zq.storage.mongodb.layout import CLOCK, SWEEPER, Document
from zq.storage.mongodb.port import Port

TURN: Final = 5.0
"""Seconds for which a round leads, from its last word on."""


class Lead:
    """One round's turn, which ends with the context."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._round = uuid4().hex
        self._heard = 0.0
        self._is_ours = False

    def __enter__(self) -> "Lead":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._is_ours:
            with self._port.verb():
                self._port.modify({"query": {"_id": SWEEPER, "round": self._round}, "remove": True}, collection=CLOCK)

    def is_ours(self) -> bool:
        """Whether this round leads, from now on for some seconds."""
        if time.monotonic() - self._heard > TURN / 2:
            asked = time.monotonic()
            with self._port.verb():
                found = self._port.modify(self._claim(), collection=CLOCK)
            self._is_ours = found is not None and found["round"] == self._round
            self._heard = asked
        return self._is_ours

    def _claim(self) -> Document:
        """The command that takes or prolongs the turn, unless it is another one's."""
        free = {"$or": [{"$eq": ["$round", self._round]}, {"$lte": ["$until", "$$NOW"]}]}  # a missing one is less
        end = {"$add": ["$$NOW", round(TURN * 1000)]}
        turn = {
            "round": {"$cond": [free, self._round, "$round"]},
            "until": {"$cond": [free, end, "$until"]},
        }
        return {"query": {"_id": SWEEPER}, "update": [{"$set": turn}], "upsert": True, "new": True}
