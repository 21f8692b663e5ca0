# SPDX-License-Identifier: Apache-2.0
"""The read-through cache: expiry, eviction, invalidation and single flight."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from zq.cache import ReadThroughCache
from zq.errors import Unavailable


class Source:
    """A source of values by key. ``during_load`` runs in each load, after the value is read."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.loads: list[str] = []
        self.during_load: Callable[[], None] = lambda: None

    def __call__(self, key: str) -> int:
        self.loads.append(key)
        value = self.values.get(key, 0)
        self.during_load()
        return value


class CountingKey(str):
    """A key that counts how often it is hashed. A third hash shows that a lookup has found the load that it shares."""

    hashed = 0

    def __hash__(self) -> int:
        self.hashed += 1
        return super().__hash__()


class Gate:
    """A load that waits until the test opens the gate."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.opened.wait(60)


@pytest.fixture
def source() -> Source:
    return Source()


def test_get_within_the_ttl_loads_once_and_afterwards_again(source: Source) -> None:
    """The TTL counts from the start of the load."""
    now = [100.0]

    def delay() -> None:
        now[0] += 0.5

    source.during_load = delay
    cache = ReadThroughCache(source, 10, 1.0, lambda: now[0])
    source.values["a"] = 1
    assert cache.get("a") == 1
    source.values["a"] = 2
    now[0] = 100.9
    assert cache.get("a") == 1
    now[0] = 101.0
    assert cache.get("a") == 2
    assert source.loads == ["a", "a"]


def test_ttl_as_a_function_decides_per_value_and_zero_prevents_caching(source: Source) -> None:
    """For example, only existing values are cached."""
    now = [0.0]
    cache = ReadThroughCache(source, 10, float, lambda: now[0])
    assert [cache.get("a"), cache.get("a")] == [0, 0]
    assert len(source.loads) == 2
    source.values |= {"a": 2, "b": 5}
    for now[0] in (0.0, 1.9, 2.0, 4.9):
        cache.get("a"), cache.get("b")
    assert source.loads.count("a") == 2 + 3
    assert source.loads.count("b") == 1


def test_peek_never_loads_and_returns_an_expired_value_only_on_request(source: Source) -> None:
    """`peek` returns its default for a missing key."""
    now = [0.0]
    cache = ReadThroughCache(source, 10, 1.0, lambda: now[0])
    assert cache.peek("a", None) is None
    assert cache.peek("a", None, expired=True) is None
    cache.get("a")
    assert cache.peek("a", None) == 0
    now[0] = 1.0
    assert cache.peek("a", "none") == "none"
    assert cache.peek("a", None, expired=True) == 0
    assert source.loads == ["a"]


def test_a_full_cache_evicts_the_oldest_loads(source: Source) -> None:
    """Loading a value again makes it the newest."""
    now = [0.0]
    cache = ReadThroughCache(source, 16, 10.0, lambda: now[0])
    for number in range(16):
        cache.get(str(number))
    now[0] = 10.0
    cache.get("0")
    cache.get("new")
    kept = [number for number in range(16) if cache.peek(str(number), None, expired=True) is not None]
    assert kept == [0, *range(4, 16)]


def test_clear_and_forget_load_again(source: Source) -> None:
    """The other keys stay cached after ``forget``."""
    cache = ReadThroughCache(source, 10, 60.0)
    for key in ("a", "b"):
        cache.get(key)
    cache.forget("a")
    assert [cache.peek("a", None), cache.peek("b", None)] == [None, 0]
    cache.clear()
    assert cache.peek("b", None) is None


@pytest.mark.parametrize("change", ["forget", "clear"])
def test_a_value_that_was_read_before_a_change_is_not_cached(source: Source, change: str) -> None:
    """The lookup that began before the change may still return the old value."""
    cache = ReadThroughCache(source, 10, 60.0)

    def change_value() -> None:
        source.values["a"] = 2
        cache.forget("a") if change == "forget" else cache.clear()

    source.values["a"], source.during_load = 1, change_value
    assert cache.get("a") == 1
    source.during_load = lambda: None
    assert cache.get("a") == 2


def test_concurrent_lookups_of_a_missing_key_share_one_load(source: Source) -> None:
    """Lookups of another key do not wait for that load."""
    source.values |= {"a": 7, "b": 8}
    source.during_load = gate = Gate()
    cache = ReadThroughCache(source, 10, 60.0)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "a")
        assert gate.reached.wait(60)
        source.during_load = lambda: None
        others = [pool.submit(cache.get, "a") for _ in range(3)]
        assert cache.get("b") == 8
        assert not any(future.done() for future in (first, *others))
        gate.opened.set()
        assert [future.result(60) for future in (first, *others)] == [7] * 4
    assert source.loads == ["a", "b"]


def test_a_lookup_after_a_change_does_not_share_an_older_load(source: Source) -> None:
    """The older load would return a value from before the change."""
    source.values["a"] = 1
    source.during_load = gate = Gate()
    cache = ReadThroughCache(source, 10, 60.0)
    with ThreadPoolExecutor(1) as pool:
        older = pool.submit(cache.get, "a")
        assert gate.reached.wait(60)
        source.values["a"], source.during_load = 2, lambda: None
        cache.forget("a")
        assert cache.get("a") == 2
        gate.opened.set()
        assert older.result(60) == 1
    assert cache.get("a") == 2
    assert source.loads == ["a", "a"]


def test_a_failed_load_fails_all_lookups_that_share_it_and_is_not_cached(source: Source) -> None:
    """If the store is unavailable, waiting threads do not retry one after the other."""
    gate = Gate()

    def fail() -> None:
        gate()
        raise Unavailable("down")

    source.during_load = fail
    cache = ReadThroughCache(source, 10, 60.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "a")
        assert gate.reached.wait(60)
        key = CountingKey("a")
        second = pool.submit(cache.get, key)
        while key.hashed < 3:
            time.sleep(0.001)
        gate.opened.set()
        for future in (first, second):
            with pytest.raises(Unavailable):
                future.result(60)
    assert source.loads == ["a"]
    source.during_load = lambda: None
    assert cache.get("a") == 0


def test_a_failed_load_keeps_the_expired_value(source: Source) -> None:
    """The caller may fall back to the expired value."""
    now = [0.0]
    cache = ReadThroughCache(source, 10, 1.0, lambda: now[0])
    cache.get("a")

    def fail() -> None:
        raise Unavailable("down")

    now[0], source.during_load = 1.0, fail
    with pytest.raises(Unavailable):
        cache.get("a")
    assert cache.peek("a", None, expired=True) == 0


def test_after_an_unexpected_error_a_waiting_thread_loads_by_itself(source: Source) -> None:
    """The error may concern only the thread that loads, for example the event loop's thread."""
    gate = Gate()

    def fail() -> None:
        gate()
        source.during_load = lambda: None
        raise RuntimeError

    source.during_load = fail
    cache = ReadThroughCache(source, 10, 60.0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "a")
        assert gate.reached.wait(60)
        second = pool.submit(cache.get, "a")
        gate.opened.set()
        with pytest.raises(RuntimeError):
            first.result(60)
        assert second.result(60) == 0
    assert source.loads == ["a", "a"]


def test_a_thread_with_an_event_loop_does_not_wait_for_another_load(source: Source) -> None:
    cache, gate = ReadThroughCache(source, 10, 60), Gate()
    source.during_load = gate

    async def look_up() -> int:
        source.during_load = lambda: None
        return await asyncio.wait_for(asyncio.sleep(0, cache.get("a")), 60)

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(cache.get, "a")
        assert gate.reached.wait(60)
        assert asyncio.run(look_up()) == 0
        gate.opened.set()
        assert slow.result(60) == 0
    assert source.loads == ["a", "a"]


def test_a_late_lookup_does_not_take_the_value_of_a_load_that_began_a_ttl_ago(source: Source) -> None:
    now = [100.0]
    cache, gate = ReadThroughCache(source, 10, 1.0, lambda: now[0]), Gate()
    source.during_load = gate
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(cache.get, "a")
        assert gate.reached.wait(60)
        now[0], source.values["a"] = 101.5, 1
        late = threads.submit(cache.get, "a")
        source.during_load = lambda: None
        gate.opened.set()
        assert (early.result(60), late.result(60)) == (0, 1)
