# SPDX-License-Identifier: Apache-2.0
"""Short requests, which the edge may run on the event loop's thread if the store is embedded.

A resource lists its short methods in ``short``. Requests with a large body, a large page or many ids are not short,
because they would block the event loop.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

# Maximum body size in bytes. All limits in this module are below those of heavy requests (``zq.http.weight``).
MAX_BODY: Final = 16 << 10
# Maximum number of JSON objects in the body.
MAX_OBJECTS: Final = 24
# Maximum number of commas in the body. They separate ids.
MAX_COMMAS: Final = 99
# Maximum query size in bytes, because a query may contain message ids.
MAX_QUERY: Final = 1024
# A parameter that requests more than 20 messages. An encoded query also matches, because it may hide such a parameter.
LARGE_LIMIT: Final = re.compile(r"(?:limit|pop)=([0-9]{3,}|[3-9][0-9]|2[1-9])|%|\+")
# A path parameter of a Falcon template, escaped for a regular expression.
PARAMETER: Final = re.compile(r"\\\{\w+\\\}")


class ShortRoutes:
    """The routes with short methods."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._pattern = re.compile(r"(?!)")

    def add(self, template: str, methods: Collection[str]) -> None:
        """Add the short methods of a route, such as ``/v2/queues/{queue}/messages``."""
        if methods:
            path = PARAMETER.sub("[^/]+", re.escape(template))
            self._lines.append(f"(?:{'|'.join(sorted(methods))}) {path}")
            self._pattern = re.compile("|".join(self._lines))

    def includes(self, environ: Mapping[str, Any], body: bytes) -> bool:
        """Return whether the request is short."""
        query: str = environ["QUERY_STRING"]
        return (
            self._pattern.fullmatch(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}") is not None
            and (not query or (len(query) <= MAX_QUERY and LARGE_LIMIT.search(query) is None))
            and (not body or _is_short(body))
        )


def _is_short(body: bytes) -> bool:
    return len(body) <= MAX_BODY and body.count(b"{") <= MAX_OBJECTS and body.count(b",") <= MAX_COMMAS
