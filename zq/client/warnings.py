# SPDX-License-Identifier: Apache-2.0
"""Warnings and refusals for requests that the server accepts but that have an unexpected effect.

Warnings are written to the log ``zq.client``.
"""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from zq.client.calls import UNREADABLE, Answer, Call, path
from zq.errors import Invalid
from zq.wire.metadata import KNOWN_KEYS

T = TypeVar("T")
LOG = logging.getLogger("zq.client")
# Start of the server's Warning header for a post whose delay has no effect.
DELAY_IGNORED: Final = '299 - "delay is ignored'


class Warnings:
    """The warnings of one client, each logged once, and its refusals of delays that a queue ignores."""

    def __init__(self, check_delays: bool) -> None:
        self._given: set[tuple[str, str]] = set()
        self._checks_delays = check_delays
        self._delayed_queues: set[str] = set()

    def rules(self, kind: str, metadata: Iterable[str]) -> None:
        """Log a warning for each key that begins with an underscore but is not a reserved metadata key of ``kind``."""
        known = KNOWN_KEYS[kind]
        for name in metadata:
            if name.startswith("_") and name not in known and self._first(kind, name):
                LOG.warning("%s is not a reserved metadata key of %s%s", name, kind, did_you_mean(name, known))

    def delay_checked(self, queue: str, post: Call[T]) -> Call[T]:
        """Return a post that is preceded by a request, which raises ``Invalid`` if the queue ignores delays.

        After the request has succeeded once, it is skipped until a post's answer reports an ignored delay, because the
        queue may be updated or recreated.
        """
        if not self._checks_delays:
            return post

        def read(answer: Answer) -> T:
            if answer.headers.get("Warning", "").startswith(DELAY_IGNORED):
                self._delayed_queues.discard(queue)
                LOG.warning("The queue %s ignores delays: messages posted with a delay are ready at once.", queue)
            return post.read(answer)

        check = None if queue in self._delayed_queues else self._delay_check(queue)
        checked: Call[Any] = replace(post, read=read, check=check)
        return checked

    def _delay_check(self, queue: str) -> Call[None]:
        def read(answer: Answer) -> None:
            try:
                metadata = msgspec.json.decode(answer.body, type=dict[str, Any])
            except UNREADABLE:  # an error page of a proxy
                return
            self.check_delay(queue, metadata)

        return Call(method="GET", path=path("queues", queue), read=read)

    def check_delay(self, queue: str, metadata: dict[str, Any]) -> None:
        """Raise ``Invalid`` if a queue with this metadata ignores delays.

        Empty metadata passes, because it is unknown.
        """
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
    """Return the end of a sentence about an unknown name, with the most similar known name if there is one."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else "."
