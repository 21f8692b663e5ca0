# SPDX-License-Identifier: Apache-2.0
"""Short requests: those that the server's edge may run on its event loop's thread, if the store is in this process.

A resource declares with ``short`` for which methods its requests are short as a rule. One that is about many messages
is not: a large body, a large page or a long list of ids takes the loop's time from all others.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

# Bytes of a body, objects in it, and commas, which separate ids: a heavy request (``zq.http.weight``) has more.
MAX_BODY: Final = 16 << 10
MAX_OBJECTS: Final = 24
MAX_COMMAS: Final = 99
# Bytes of a query, which may name messages by their ids.
MAX_QUERY: Final = 1024
# A parameter that asks for more than 20 messages, or that may be one in another spelling.
MANY: Final = re.compile(r"(?:limit|pop)=([0-9]{3,}|[3-9][0-9]|2[1-9])|%|\+")
# A parameter of a path, as Falcon writes it.
PARAMETER: Final = re.compile(r"\\\{\w+\\\}")


class ShortRoutes:
    """The routes whose resources declare short methods."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._pattern = re.compile(r"(?!)")

    def add(self, template: str, methods: Collection[str]) -> None:
        """Add a route by its template, as ``/v2/queues/{queue}/messages``, for these methods."""
        if methods:
            path = PARAMETER.sub("[^/]+", re.escape(template))
            self._lines.append(f"(?:{'|'.join(sorted(methods))}) {path}")
            self._pattern = re.compile("|".join(self._lines))

    def has(self, environ: Mapping[str, Any], body: bytes) -> bool:
        """Return whether a request is short, by its environment and its body."""
        query: str = environ["QUERY_STRING"]
        return (
            self._pattern.fullmatch(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}") is not None
            and (not query or (len(query) <= MAX_QUERY and MANY.search(query) is None))
            and (not body or _is_short(body))
        )


def _is_short(body: bytes) -> bool:
    return len(body) <= MAX_BODY and body.count(b"{") <= MAX_OBJECTS and body.count(b",") <= MAX_COMMAS
