# SPDX-License-Identifier: Apache-2.0
"""Warnings and errors for valid requests that probably do not do what the caller intends."""

import logging
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from zq.client.calls import READ_ERRORS, Call, Response, path
from zq.errors import Invalid
from zq.wire.metadata import KNOWN_KEYS

T = TypeVar("T")
LOG = logging.getLogger("zq.client")
# Start of the ``Warning`` header in the response to a post whose delay was ignored.
DELAY_IGNORED: Final = '299 - "delay is ignored'


class Warnings:
    """A logger of a client's warnings, which logs each warning once.

    The class also checks whether a queue ignores the delays of messages.
    """

    def __init__(self, check_delays: bool) -> None:
        self._given: set[tuple[str, str]] = set()
        self._checks_delays = check_delays
        self._delayed_queues: set[str] = set()

    def warn_of_unknown_keys(self, kind: str, metadata: Iterable[str]) -> None:
        """Log a warning for each key that looks reserved (leading underscore) but is unknown."""
        known = KNOWN_KEYS[kind]
        for name in metadata:
            if name.startswith("_") and name not in known and self._first(kind, name):
                LOG.warning("%s is not a reserved metadata key of %s%s", name, kind, did_you_mean(name, known))

    def with_delay_check(self, queue: str, post: Call[T]) -> Call[T]:
        """Return a copy of a post call that checks first whether the queue ignores delays.

        If the queue ignores delays, the copy raises ``Invalid``. Only the first post with a delay to a queue sends the
        check request. If a later response reports that the queue has ignored a delay, the next post checks again.
        """
        if not self._checks_delays:
            return post

        def read(response: Response) -> T:
            if response.headers.get("Warning", "").startswith(DELAY_IGNORED):
                self._delayed_queues.discard(queue)
                LOG.warning("The queue %s ignores delays: messages posted with a delay are ready at once.", queue)
            return post.read(response)

        check = None if queue in self._delayed_queues else self._delay_check(queue)
        checked: Call[Any] = replace(post, read=read, check=check)
        return checked

    def _delay_check(self, queue: str) -> Call[None]:
        def read(response: Response) -> None:
            try:
                metadata = msgspec.json.decode(response.body, type=dict[str, Any])
            except READ_ERRORS:  # a proxy's error page
                return
            self.check_delay(queue, metadata)

        return Call(method="GET", path=path("queues", queue), read=read)

    def check_delay(self, queue: str, metadata: dict[str, Any]) -> None:
        """Raise ``Invalid`` if the queue's metadata disables delays. Unknown metadata (``{}``) raises no error.

        If the check succeeds, later posts to the queue skip it.
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
    """Return the end of an error message: ``; did you mean NAME?``, or a period if no known name is similar."""
    close = get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else "."
