# SPDX-License-Identifier: Apache-2.0
"""The concurrency properties of Swift that zq relies on or must not rely on, with one and three devices."""

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
    """Run the function in all racers at once and return the number of winners."""
    with ThreadPoolExecutor(RACERS) as racers:
        return sum(racers.map(lambda _: run(), range(RACERS)))


def test_nobody_is_elected_twice(objects: SwiftObjects, server: Swift, rounds: int) -> None:
    """At most one concurrent creator of a container learns that it is new, and no later creator does.

    With three devices often none of them does, but a single creator always does.
    """
    won = [winners(lambda: objects.elect(number)) for number in range(1, rounds + 1)]  # noqa: B023
    assert max(won) <= 1
    assert server.devices > 1 or max(won) == 1
    assert objects.elect(rounds + 1)
    assert not any(objects.elect(number) for number in range(1, rounds + 1))
    assert all(objects.has_election(number) for number in range(1, rounds + 1))


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_nobody_is_elected_twice_though_a_device_is_broken(objects: SwiftObjects, server: Swift, rounds: int) -> None:
    """The device does not allow a second winner after its repair, either."""
    with server.broken_device(1):
        won = [winners(lambda: objects.elect(number)) for number in range(1, rounds + 1)]  # noqa: B023
    assert max(won) <= 1
    assert not any(objects.elect(number) for number in range(1, rounds + 1))


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_of_three_devices_one_may_be_broken(objects: SwiftObjects, server: Swift) -> None:
    """With a broken device, puts succeed, the newest value is read, and missing or removed objects are not found.

    After the repair, the old data of the device have no effect.
    """
    for number in range(PUTS):
        objects.put(f"kept/{number}", b"old")
    with server.broken_device(2):
        assert all(objects.put(f"{kind}/{number}", b"new") for number in range(PUTS // 2) for kind in ("kept", "fresh"))
        for number in range(PUTS // 2, PUTS):
            objects.delete(f"kept/{number}")
        read(objects)
    read(objects)


def read(objects: SwiftObjects) -> None:
    """Check the values after a device was broken."""
    for number in range(0, PUTS // 2, 5):
        assert objects.get(f"kept/{number}") == b"new"
        assert objects.get(f"fresh/{number}") == b"new"
        assert objects.exists(f"fresh/{number}")
        assert not objects.exists(f"missing/{number}")
        assert not objects.exists(f"kept/{number + PUTS // 2}")


@pytest.mark.parametrize("server", ["three"], indirect=True)
def test_only_the_newest_is_read_after_a_device_was_broken(objects: SwiftObjects, server: Swift) -> None:
    """A read without the newest flag may return old data. If this test fails, reads can be cheaper."""

    def found_old() -> bool:
        """Return whether a plain read returned old data; after an error, the proxy avoids the device for a while."""
        name = uuid4().hex
        objects.put(name, b"old")
        with server.broken_device(0):
            objects.put(name, b"new")
        assert all(objects.get(name) == b"new" for _ in range(10))
        return any(objects.send("GET", objects.path(name)).body == b"old" for _ in range(10))

    wait_for(found_old, 120, "a read of what is old")


def test_of_two_puts_the_one_that_began_later_stays(objects: SwiftObjects, server: Swift) -> None:
    """The put that began later wins although the conditional put ends later and is reported as stored."""
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
    """All other connections read the value, also after a replacement or a deletion."""
    with ThreadPoolExecutor(RACERS) as readers:
        for number in range(rounds):
            for value in (b"%d" % number, b"%d again" % number):
                objects.put("thing", value)
                assert set(readers.map(objects.get, ["thing"] * RACERS)) == {value}
            objects.delete("thing")
            assert not any(readers.map(objects.exists, ["thing"] * RACERS))


def test_objects_elect_nobody(objects: SwiftObjects) -> None:
    """No lock protects the condition that an object must not exist. If this test fails, elections can be cheaper."""
    for number in count():
        headers = {"If-None-Match": "*"}

        def run(path: str = objects.path(f"prize/{number}"), headers: dict[str, str] = headers) -> bool:
            return objects.send("PUT", path, headers, b"x" * 100_000).status == 201

        if winners(run) > 1:
            return
        assert number < 1000, "Swift told one winner only in 1,000 rounds"
