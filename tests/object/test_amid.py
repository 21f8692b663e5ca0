# SPDX-License-Identifier: Apache-2.0
"""An owner that is deposed between two of its requests, as if its machine was suspended there."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.object.between import Between
from tests.object.conftest import Open
from tests.object.work import bodies, patient, post
from tests.rotation import rotated
from tests.servers import wait_for
from tests.swift import Swift
from zq.errors import Deposed
from zq.storage.object import objects_of
from zq.storage.object.epochs import log_name

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("uri", ["swift"], indirect=True)]


class Asleep:
    """Requests that are delayed until ``wake``."""

    def __init__(self, before: str) -> None:
        """Delay the "put" of a record, or the "look" after it."""
        self.before = before
        self._awake = threading.Event()
        self.record = 0
        """The position of the record."""

    def __call__(self, method: str, path: str) -> int:
        of_the_log = method == "PUT" and "/log/1/" in path
        if of_the_log:
            self.record = int(path.rpartition("/")[2])
        if self.before == "put" or not of_the_log:
            self._awake.wait(180)
        return 0

    def wake(self) -> None:
        self._awake.set()


@pytest.fixture(params=rotated(["put", "look"], 1))
def asleep(request: pytest.FixtureRequest) -> Iterator[Asleep]:
    made = Asleep(request.param)
    yield made
    made.wake()


def test_an_owner_that_is_deposed_amid_a_commit(
    machine: Open, swift: Swift, uri: str, asleep: Asleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is not acknowledged.

    The next owner has the record if it was stored before the takeover; otherwise no later owner ever has it.
    """
    objects = patient(objects_of(uri))

    def landed() -> bool:
        return objects.exists(log_name(1, asleep.record))

    with Between(swift) as between, ThreadPoolExecutor(1) as client:
        with monkeypatch.context() as first:
            for name, value in between.environment.items():
                first.setenv(name, value)
            storage = machine("first", patience=180)
        post(storage, "before")
        with between.doing(asleep):
            posted = client.submit(post, storage, "amid")
            wait_for(lambda: asleep.record, 60, "the record")
            if asleep.before == "look":
                wait_for(landed, 60, "it is there")
            second = machine("second")
            there = bodies(second)
            assert there == (["before", "amid"] if landed() else ["before"])
            asleep.wake()
            with pytest.raises(Deposed):
                posted.result(60)
            wait_for(landed, 60, "it lands")
        post(second, "after")
        second.close()
        assert bodies(machine("third")) == [*there, "after"]
        storage.close()
