# SPDX-License-Identifier: Apache-2.0
"""What is relied on of Swift, and what is not: each by many at once, on one device and on three."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from uuid import uuid4

import pytest

from tests.swift import Swift
from zq.storage.object.swift import SwiftObjects

pytestmark = pytest.mark.slow

RACERS = 16


@pytest.fixture(params=["swift", "three"], ids=["one device", "three devices"])
def server(request: pytest.FixtureRequest) -> Swift:
    found: Swift = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def objects(server: Swift) -> SwiftObjects:
    opened = SwiftObjects(f"swift://zq/{uuid4().hex}?auth=v1", server.environment)
    opened.prepare()
    return opened


def winners(run: Callable[[], bool]) -> int:
    """How many of those who run at once are told that they have won."""
    with ThreadPoolExecutor(RACERS) as racers:
        return sum(racers.map(lambda _: run(), range(RACERS)))


def test_nobody_is_elected_twice(objects: SwiftObjects, rounds: int) -> None:
    """A container is told to be new to one of its makers at most, and to none who comes later."""
    won = [winners(lambda: objects.elect(number)) for number in range(1, rounds + 1)]  # noqa: B023
    assert max(won) == 1
    assert not any(objects.elect(number) for number in range(1, rounds + 1))
    assert all(objects.elected(number) for number in range(1, rounds + 1))


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_nobody_is_elected_twice_though_a_device_is_broken(objects: SwiftObjects, server: Swift, rounds: int) -> None:
    """Nor does the device, once it is whole, let a second one win."""
    with server.broken_device(1):
        won = [winners(lambda: objects.elect(number)) for number in range(1, rounds + 1)]  # noqa: B023
    assert max(won) <= 1
    assert not any(objects.elect(number) for number in range(1, rounds + 1))


def test_a_put_that_was_answered_is_read(objects: SwiftObjects, rounds: int) -> None:
    """By every other connection: what is put in the place of something else too, and what is removed."""
    with ThreadPoolExecutor(RACERS) as readers:
        for number in range(rounds):
            for value in (b"%d" % number, b"%d again" % number):
                objects.put("thing", value)
                assert set(readers.map(objects.get, ["thing"] * RACERS)) == {value}
            objects.delete("thing")
            assert not any(readers.map(objects.exists, ["thing"] * RACERS))


def test_objects_elect_nobody(objects: SwiftObjects) -> None:
    """The condition that nothing be there is kept by no lock: once this fails, elections can be cheaper."""
    for number in count():
        headers = {"If-None-Match": "*"}

        def run(path: str = objects.path(f"prize/{number}"), headers: dict[str, str] = headers) -> bool:
            return objects.ask("PUT", path, headers, b"x" * 100_000).status == 201

        if winners(run) > 1:
            return
        assert number < 100, "Swift told one winner only in 100 rounds"
