# SPDX-License-Identifier: Apache-2.0
"""Topics whose log has lost its end: readers with a later marker continue as if at the end of the log (A.4).

A restart of a Redis without persistence loses all data; a power failure loses unsynced data of the embedded store.
MongoDB keeps acknowledged data (extensions 3), so there a marker after the end belongs to another log.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.http.api import Api
from tests.http.test_publishing import TOPIC, URL, bodies, publish
from tests.http.test_streams import Reader
from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.storage import connect
from zq.storage.api import Storage

pytestmark = pytest.mark.slow

Lose = Callable[[], Api]
"""A function that removes the end of every log and returns a client of the server afterwards."""


def served(storage: Storage, project_suffix: str, clock: ManualClock | None = None) -> Api:
    broker = Broker(storage, clock or ManualClock(storage.now()))
    return Api(create_app(broker, strict_client_id=True, admin_mode=False), project_suffix)


@pytest.fixture
def emptied(project_suffix: str) -> Iterator[tuple[Api, Lose]]:
    """Yield a Redis without persistence: the same zq continues after Redis was killed and restarted."""
    with RedisServer() as server:
        storage = connect(server.uri)
        clock = ManualClock(storage.now())
        api = served(storage, project_suffix, clock)

        def lose() -> Api:
            server.kill()
            server.start()
            clock.advance(1)
            return api

        yield api, lose
        storage.close()


@pytest.fixture
def powerless(tmp_path: Path, project_suffix: str) -> Iterator[tuple[Api, Lose]]:
    """Yield the embedded store in the state of a disk that kept only the number of starts."""
    path, spare = tmp_path / "store", tmp_path / "spare"
    connect(f"rocksdb://{path}", {"max_clock_jump": 0}).close()
    opened = [connect(f"rocksdb://{path}", {"max_clock_jump": 0, "sync": "never"})]
    shutil.copytree(path, spare)
    api = served(opened[0], project_suffix)

    def lose() -> Api:
        opened.pop().close()
        shutil.rmtree(path)
        spare.rename(path)
        opened.append(connect(f"rocksdb://{path}", {"max_clock_jump": 0}))
        return served(opened[0], project_suffix)

    yield api, lose
    opened.pop().close()


@pytest.fixture(params=["emptied", "powerless"], ids=["redis", "rocksdb"])
def losing(request: pytest.FixtureRequest) -> tuple[Api, Lose]:
    found: tuple[Api, Lose] = request.getfixturevalue(request.param)
    return found


def test_a_page_goes_on_behind_a_lost_end(losing: tuple[Api, Lose]) -> None:
    """The server answers 200 with the gap, then the next message. A long poll waits as usual."""
    api, lose = losing
    *_, last = publish(api, 1, 2, 3)
    api = lose()
    page = api.get(f"{URL}?marker={last}", 200)
    assert bodies(page) == []
    assert page.json["gap"]["resumes"] == last + 1
    began = time.monotonic()
    assert bodies(api.get(f"{URL}?marker={last}&wait=1", 200)) == []
    assert time.monotonic() - began > 0.9
    (following,) = publish(api, "new")
    assert following > last
    assert bodies(api.get(f"{URL}?marker={last}", 200)) == ["new"]


def test_a_stream_goes_on_behind_a_lost_end(losing: tuple[Api, Lose]) -> None:
    """The stream has one gap, then new messages; a reader that resumes after the gap gets no other gap."""
    api, lose = losing
    *_, last = publish(api, 1, 2, 3)
    api = lose()
    with closing(Reader(api, f"{TOPIC}/stream", last_event_id=str(last))) as reader:
        assert reader.status == "200 OK"
        ((identity, kind, data),) = reader.events(1)
        assert (identity, kind, data["resumes"]) == (str(last), "gap", last + 1)
        (new,) = publish(api, "new")
        assert reader.bodies(1) == ["new"]
    with closing(Reader(api, f"{TOPIC}/stream", last_event_id=str(new))) as reader:
        publish(api, "newer")
        ((_, kind, _),) = reader.events(1)
        assert kind == "message"


def test_an_open_stream_gets_a_gap_for_a_lost_end(emptied: tuple[Api, Lose]) -> None:
    """The gap comes once, before the next message. (The embedded store loses no data while it is open.)"""
    api, lose = emptied
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        *_, last = publish(api, 1, 2, 3)
        assert reader.bodies(3) == [1, 2, 3]
        lose()
        ((identity, kind, _),) = reader.events(1)
        assert (identity, kind) == (str(last), "gap")
        publish(api, "new")
        ((_, kind, data),) = reader.events(1)
        assert (kind, data["body"]) == ("message", "new")


def test_a_log_that_was_forgotten_refuses_what_it_cannot_have_given(emptied: tuple[Api, Lose]) -> None:
    """The marker is an hour in the future: a reader that continued there would miss messages for an hour."""
    api, lose = emptied
    (last,) = publish(api, 1)
    api = lose()
    marker = last + 3600 * 512_000
    for path in (f"{URL}?marker={marker}", f"{TOPIC}/stream?marker={marker}"):
        assert "after the end of the log" in api.get(path, 400).json["description"]
