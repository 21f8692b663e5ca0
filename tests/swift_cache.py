# SPDX-License-Identifier: Apache-2.0
"""A dictionary in the Swift proxy that replaces memcached.

Without a cache the proxy queries an account server and a container server before each request, unlike in production.
These queries are half of the cost of a put and most of the cost of a lookup.
"""

import json
import time
from collections.abc import Callable
from typing import Any


class Cache:
    """The part of Swift's memcached client that the proxy uses.

    An empty cache is true, too, because it has no length.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, float]] = {}

    def get(self, key: str, **_: object) -> Any:
        value, until = self._kept.get(key, ("null", 0.0))
        return json.loads(value) if time.time() < until else None

    def set(self, key: str, value: object, serialize: bool = True, time: float = 0, **_: object) -> None:
        """Store a value for ``time`` seconds; 0 means forever."""
        self._kept[key] = json.dumps(value), _end(time)

    def delete(self, key: str, **_: object) -> None:
        self._kept.pop(key, None)


def _end(seconds: float) -> float:
    return time.time() + seconds if seconds else float("inf")


def filter_factory(*_: object, **__: object) -> Callable[[Any], Any]:
    """Return a filter for Paste that adds the cache to the environment of requests."""
    cache = Cache()

    def wrap(application: Any) -> Any:
        def remembering(environment: dict[str, Any], begin: Any) -> Any:
            environment["swift.cache"] = cache
            return application(environment, begin)

        return remembering

    return wrap
