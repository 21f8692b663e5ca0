# SPDX-License-Identifier: Apache-2.0
"""Warnings in the log ``zq.client``: requests that a server accepts and that do not do what was meant."""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from zq.client.calls import Answer, Call, path
from zq.wire import QUEUE_RULES, TOPIC_RULES

LOG = logging.getLogger("zq.client")
# The reserved metadata by kind.
RULES: Final = {"queues": QUEUE_RULES, "topics": TOPIC_RULES}


class Warnings:
    """The warnings of one client, each given once."""

    def __init__(self) -> None:
        self._given: set[tuple[str, str]] = set()

    def rules(self, kind: str, metadata: Iterable[str]) -> None:
        """Warn of names that begin like a rule and are none of ``kind``."""
        for name in metadata:
            if name.startswith("_") and name not in RULES[kind] and self._first(kind, name):
                LOG.warning("%s is no rule of %s%s", name, kind, did_you_mean(name, RULES[kind]))

    def check_delays(self, queue: str) -> Call[None] | None:
        """The call that reads a queue's metadata, once, when a message with a delay goes to it; reading them warns."""

        def read(answer: Answer) -> None:
            self.delay(queue, msgspec.json.decode(answer.body, type=dict[str, Any]))

        return Call(method="GET", path=path("queues", queue), read=read) if self._first("asked", queue) else None

    def delay(self, queue: str, metadata: dict[str, Any]) -> None:
        """Warn of a delay that a queue with these metadata ignores."""
        if not metadata.get("_default_message_delay") and self._first("ignored", queue):
            LOG.warning("%s ignores delays, since it has no _default_message_delay.", queue)

    def _first(self, about: str, name: str) -> bool:
        first = (about, name) not in self._given
        self._given.add((about, name))
        return first


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is most like it, if any is."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else "."
