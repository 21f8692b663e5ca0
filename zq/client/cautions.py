# SPDX-License-Identifier: Apache-2.0
"""What a client warns of, in the log ``zq.client``: requests that a server takes and that do not do what was meant."""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from zq.client.calls import Answer, Call, path
from zq.wire import QUEUE_RULES, TOPIC_RULES

LOG = logging.getLogger("zq.client")
RULES: Final = {"queues": QUEUE_RULES, "topics": TOPIC_RULES}


class Cautions:
    """Those of one client, which tells each once."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def rules(self, kind: str, metadata: Iterable[str]) -> None:
        """Warn of names that begin like a rule and are none of ``kind``."""
        for name in metadata:
            if name.startswith("_") and name not in RULES[kind] and self._first(kind, name):
                LOG.warning("%s is no rule of %s%s", name, kind, did_you_mean(name, RULES[kind]))

    def delays(self, queue: str) -> Call[None] | None:
        """What to ask when a message with a delay goes to a queue: its metadata, once; reading them warns."""

        def read(answer: Answer) -> None:
            self.delay(queue, msgspec.json.decode(answer.body, type=dict[str, Any]))

        return Call(method="GET", path=path("queues", queue), read=read) if self._first("asked", queue) else None

    def delay(self, queue: str, metadata: dict[str, Any]) -> None:
        """Warn of a delay that a queue with these metadata ignores."""
        if not metadata.get("_default_message_delay") and self._first("ignored", queue):
            LOG.warning("%s ignores delays, since it has no _default_message_delay.", queue)

    def _first(self, about: str, name: str) -> bool:
        first = (about, name) not in self._told
        self._told.add((about, name))
        return first


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known: the one that is most like it, if one is."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else "."
