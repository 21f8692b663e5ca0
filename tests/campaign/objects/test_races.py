# SPDX-License-Identifier: Apache-2.0
"""What is relied on of Swift, and what is not: each by many at once, on one device and on three."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import count
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from tests.object.work import patient
from tests.servers import wait_for
from tests.swift import KEY, USER, Swift
from zq.storage.object.swift import SwiftObjects

pytestmark = pytest.mark.slow

RACERS = 16
PUTS = 50


@pytest.fixture(params=["swift", "three"], ids=["one device", "three devices"])
def server(request: pytest.FixtureRequest) -> Swift:
    found: Swift = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def objects(server: Swift) -> SwiftObjects:
    opened = SwiftObjects(f"swift://zq/{uuid4().hex}?auth=v1", server.environment)
    opened.prepare()
    return patient(opened)


def winners(run: Callable[[], bool]) -> int:
    """How many of those who run at once are told that they have won."""
    with ThreadPoolExecutor(RACERS) as racers:
        return sum(racers.map(lambda _: run(), range(RACERS)))


def test_nobody_is_elected_twice(objects: SwiftObjects, server: Swift, rounds: int) -> None:
    """A container is told to be new to one of its makers at most, and to none who comes later; by three devices often
    to nobody, and always to one who is alone."""
    won = [winners(lambda: objects.elect(number)) for number in range(1, rounds + 1)]  # noqa: B023
    assert max(won) <= 1
    assert server.devices > 1 or max(won) == 1
    assert objects.elect(rounds + 1)
    assert not any(objects.elect(number) for number in range(1, rounds + 1))
    assert all(objects.has_election(number) for number in range(1, rounds + 1))


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_nobody_is_elected_twice_though_a_device_is_broken(objects: SwiftObjects, server: Swift, rounds: int) -> None:
    """Nor does the device, once it is whole, let a second one win."""
    with server.broken_device(1):
        won = [winners(lambda: objects.elect(number)) for number in range(1, rounds + 1)]  # noqa: B023
    assert max(won) <= 1
    assert not any(objects.elect(number) for number in range(1, rounds + 1))


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_of_three_devices_one_may_be_broken(objects: SwiftObjects, server: Swift) -> None:
    """All puts are taken, the newest is read, what is missing or removed is not there; and the device, once it is
    whole, with what is old, changes nothing of that."""
    for number in range(PUTS):
        objects.put(f"kept/{number}", b"old")
    with server.broken_device(2):
        assert all(objects.put(f"{kind}/{number}", b"new") for number in range(PUTS // 2) for kind in ("kept", "fresh"))
        for number in range(PUTS // 2, PUTS):
            objects.delete(f"kept/{number}")
        read(objects)
    read(objects)


def read(objects: SwiftObjects) -> None:
    """What there is to be read once one device was broken."""
    for number in range(0, PUTS // 2, 5):
        assert objects.get(f"kept/{number}") == b"new"
        assert objects.get(f"fresh/{number}") == b"new"
        assert objects.exists(f"fresh/{number}")
        assert not objects.exists(f"missing/{number}")
        assert not objects.exists(f"kept/{number + PUTS // 2}")


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_only_the_newest_is_read_after_a_device_was_broken(objects: SwiftObjects, server: Swift) -> None:
    """A read that does not ask for the newest may find what is old: once this fails, reads can be cheaper."""

    def found_old() -> bool:
        """Not while Swift's proxy, after an error of that device, asks the other two alone."""
        name = uuid4().hex
        objects.put(name, b"old")
        with server.broken_device(0):
            objects.put(name, b"new")
        assert all(objects.get(name) == b"new" for _ in range(10))
        return any(objects.ask("GET", objects.path(name)).body == b"old" for _ in range(10))

    wait_for(found_old, 120, "a read of what is old")


def test_of_two_puts_the_one_that_began_later_stays(objects: SwiftObjects, server: Swift) -> None:
    """Though the other one ends later, and is told that it was stored, with the condition that nothing be there."""
    signing_in = Request(server.auth_url, headers={"X-Auth-User": USER, "X-Auth-Key": KEY})
    with urlopen(signing_in, timeout=20) as answer:
        token, place = answer.headers["X-Auth-Token"], urlsplit(answer.headers["X-Storage-Url"])
    headers = {"X-Auth-Token": token, "Content-Length": "4", "If-None-Match": "*", "Expect": "100-continue"}
    slow = HTTPConnection(place.netloc, timeout=20)
    slow.putrequest("PUT", f"{place.path}/{objects.path('thing')}")
    for name, value in headers.items():
        slow.putheader(name, value)
    slow.endheaders()
    assert slow.sock.recv(1000).startswith(b"HTTP/1.1 100"), "it has begun"
    assert objects.put("thing", b"quick")
    slow.send(b"slow")
    status = slow.getresponse().status
    slow.close()
    assert status == 201
    assert objects.get("thing") == b"quick"


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
        assert number < 1000, "Swift told one winner only in 1,000 rounds"
