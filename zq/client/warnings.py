# SPDX-License-Identifier: Apache-2.0
"""Requests that a server accepts and that do not do what was meant: warnings in the log ``zq.client``, and refusals."""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from zq.client.calls import UNREADABLE, Answer, Call, path
from zq.errors import Invalid
from zq.wire import QUEUE_RULES, TOPIC_RULES

LOG = logging.getLogger("zq.client")
# The reserved metadata by kind.
RULES: Final = {"queues": QUEUE_RULES, "topics": TOPIC_RULES}


class Warnings:
    """The warnings of one client, each given once, and its refusals of delays that a queue ignores."""

    def __init__(self, check_delays: bool) -> None:
        self._given: set[tuple[str, str]] = set()
        self._checks_delays = check_delays
        self._delayed_queues: set[str] = set()

    def rules(self, kind: str, metadata: Iterable[str]) -> None:
        """Warn of names that begin like a rule and are none of ``kind``."""
        for name in metadata:
            if name.startswith("_") and name not in RULES[kind] and self._first(kind, name):
                LOG.warning("%s is no rule of %s%s", name, kind, did_you_mean(name, RULES[kind]))

    def delay_check(self, queue: str) -> Call[None] | None:
        """Return the call that precedes a post with a delay; None if it is known that the queue does not ignore it.

        Reading its answer raises ``Invalid`` if the queue ignores delays.
        """
        if not self._checks_delays or queue in self._delayed_queues:
            return None

        def read(answer: Answer) -> None:
            try:
                metadata = msgspec.json.decode(answer.body, type=dict[str, Any])
            except UNREADABLE:  # a proxy's own page
                return
            self.check_delay(queue, metadata)

        return Call(method="GET", path=path("queues", queue), read=read)

    def check_delay(self, queue: str, metadata: dict[str, Any]) -> None:
        """Raise ``Invalid`` if a queue with these metadata ignores delays; without metadata this is not known."""
        if not self._checks_delays:
            return
        if metadata.get("_default_message_delay") == 0:
            raise Invalid(
                f"The queue {queue} ignores delays: set its _default_message_delay above 0, or post without a delay."
            )
        self._delayed_queues.add(queue)

    def _first(self, about: str, name: str) -> bool:
        first = (about, name) not in self._given
        self._given.add((about, name))
        return first


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is most like it, if any is."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else "."
