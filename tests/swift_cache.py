# SPDX-License-Identifier: Apache-2.0
"""What stands in for memcached in the Swift of tests: a dictionary in its proxy.

Without one the proxy asks an account server and a container server before each request, as no Swift that is in use
does: half of what a put costs, and most of what a look does.
"""

import json
import time
from collections.abc import Callable
from typing import Any


class Cache:
    """As much of Swift's own client of memcached as its proxy asks for. Always true, also while it is empty."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, float]] = {}

    def get(self, key: str, **_: object) -> Any:
        value, until = self._kept.get(key, ("null", 0.0))
        return json.loads(value) if time.time() < until else None

    def set(self, key: str, value: object, serialize: bool = True, time: float = 0, **_: object) -> None:
        """``time``: seconds, 0 = for ever."""
        self._kept[key] = json.dumps(value), _end(time)

    def delete(self, key: str, **_: object) -> None:
        self._kept.pop(key, None)


def _end(seconds: float) -> float:
    return time.time() + seconds if seconds else float("inf")


def filter_factory(*_: object, **__: object) -> Callable[[Any], Any]:
    """For Paste: the proxy's servers find the cache in their environment."""
    cache = Cache()

    def wrap(application: Any) -> Any:
        def remembering(environment: dict[str, Any], begin: Any) -> Any:
            environment["swift.cache"] = cache
            return application(environment, begin)

        return remembering

    return wrap
