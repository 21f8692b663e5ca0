# SPDX-License-Identifier: Apache-2.0
"""Extensions 8: streams of Server-Sent Events as the application produces them; ``tests/faults`` covers engines."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from tests.http.api import CLIENT, Api
from tests.http.test_publishing import TOPIC, URL, publish
from tests.tables import every_row
from zq.core import streams as broker_streams
from zq.http import streams

SOON = 60


class Reader:
    """A request whose response body the test reads portion by portion, as an engine does."""

    def __init__(self, api: Api, path: str, engine: dict[str, Any] | None = None, **headers: str) -> None:
        path, _, query = path.partition("?")
        environ: dict[str, Any] = {"PATH_INFO": path, "QUERY_STRING": query, "HTTP_CLIENT_ID": CLIENT}
        environ |= {"HTTP_X_PROJECT_ID": api.project, "HTTP_ACCEPT": streams.MEDIA}
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        environ |= engine or {}
        setup_testing_defaults(environ)
        self.status, self.headers = "", dict[str, str]()
        self._body = api.app(environ, self._start)
        self.portions = iter(self._body)
        self._rest = b""

    def _start(self, status: str, headers: list[tuple[str, str]], _exception: object = None) -> None:
        self.status, self.headers = status, {name.lower(): value for name, value in headers}

    def blocks(self) -> Iterator[str]:
        """Yield the blocks between empty lines as they arrive, until none arrives for a while."""
        deadline = time.monotonic() + SOON
        for portion in self._body:
            *whole, self._rest = (self._rest + portion).split(b"\n\n")
            for block in whole:
                yield block.decode()
                deadline = time.monotonic() + SOON
            if time.monotonic() > deadline:
                return

    def events(self, count: int) -> list[tuple[str, str, Any]]:
        """Return the next events as id, kind and data."""
        found: list[tuple[str, str, Any]] = []
        for block in self.blocks() if count else ():
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in fields:
                found.append((fields["id"], fields["event"], json.loads(fields["data"])))
            if len(found) == count:
                break
        return found

    def bodies(self, count: int) -> list[Any]:
        return [data["body"] for _, kind, data in self.events(count) if kind == "message"]

    def close(self) -> None:
        if hasattr(self._body, "close"):
            self._body.close()


def test_a_stream_sends_what_is_published_from_then_on(api: Api) -> None:
    """Each message is one event with its sequence, the representation and the topic."""
    (before,) = publish(api, "before")
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        assert (reader.status, reader.headers["content-type"]) == ("200 OK", "text/event-stream")
        assert next(reader.blocks()) == f": zq\nid: {before}", "at once, so that a reader can resume at any time"
        publish(api, "other", topic="other")
        (sequence,) = publish(api, {"a": [1]}, ttl=77)
        ((identity, kind, data),) = reader.events(1)
    assert (identity, kind) == (str(sequence), "message")
    assert 0 <= data.pop("age") < 60
    href = f"{URL}/{sequence}"
    assert data == {"id": identity, "href": href, "ttl": 77, "body": {"a": [1]}, "topic": "news"}


def test_an_event_has_the_attributes_of_its_message(api: Api) -> None:
    """This holds for attributes with characters that some readers treat as line ends."""
    attributes = {"a": "x\u2028\ny", "n": 1.5}
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        publish(api, 1, attributes=attributes)
        publish(api, 2)
        (_, _, first), (_, _, second) = reader.events(2)
    assert first["attributes"] == attributes
    assert "attributes" not in second


@pytest.mark.parametrize(
    ("match", "seen"),
    [
        ("*", ["a"]),
        ("**", ["a", "a.b", "a.b.c", "d.b"]),
        ("a.*", ["a.b"]),
        ("a.**", ["a.b", "a.b.c"]),
        ("*.b", ["a.b", "d.b"]),
        ("a.b", ["a.b"]),
        ("", ["a", "a.b", "a.b.c", "d.b"]),
    ],
)
def test_a_pattern_chooses_topics(api: Api, match: str, seen: list[str]) -> None:
    """A pattern matches within or across parts of a name, and only topics of the caller's project."""
    for topic in ("a", "a.b", "a.b.c", "d.b"):
        publish(api, topic, topic=topic)
        publish(api.tenant("other"), "not yours", topic=topic)
    with closing(Reader(api, f"/v2/stream?match={match}&marker=0")) as reader:
        assert reader.bodies(len(seen)) == seen
        publish(api.tenant("other"), "not yours", topic="a")
        publish(api, "last", topic=seen[-1])
        assert reader.bodies(1) == ["last"]


@every_row("match", ["a b", "***", "a/b", "x" * 65, "[ab]", "a?"])
def test_an_invalid_pattern_is_refused(api: Api, match: str) -> None:
    """The error is JSON, sent before any event."""
    answer = api.get(f"/v2/stream?match={match.replace(' ', '%20')}", 400, {"Accept": streams.MEDIA})
    assert "match" in answer.json["description"]


def test_a_stream_resumes_where_its_reader_was(api: Api) -> None:
    """A Last-Event-ID header or a marker resumes without loss or repeat, even in the middle of a batch."""
    first, *_ = publish(api, 1, 2, 3)
    with closing(Reader(api, f"{TOPIC}/stream", last_event_id=str(first))) as reader:
        assert reader.bodies(2) == [2, 3]
        publish(api, 4)
        assert reader.bodies(1) == [4]
    with closing(Reader(api, f"{TOPIC}/stream?marker={first + 1}")) as reader:
        assert reader.bodies(2) == [3, 4]


def test_a_long_way_is_read_in_portions(api: Api) -> None:
    """The stream needs more than one read of the store, and repeats nothing where live messages take over."""
    for at in range(0, 1500, 100):
        publish(api, *range(at, at + 100))
    with closing(Reader(api, f"{TOPIC}/stream?marker=0")) as reader:
        assert reader.bodies(1500) == list(range(1500))
        publish(api, "live")
        assert reader.bodies(1) == ["live"]


@pytest.mark.parametrize("marker", ["x", "-1", "99999999999999999999", "9999999999999999"])
def test_an_invalid_marker_is_refused(api: Api, marker: str) -> None:
    """The marker may be malformed or in the future."""
    publish(api, 1)
    for path, headers in ((f"{TOPIC}/stream?marker={marker}", {}), (f"{TOPIC}/stream", {"Last-Event-ID": marker})):
        assert "marker" in api.get(path, 400, headers).json["description"]


def test_a_gap_of_trimmed_messages_comes_first(compose: Any) -> None:
    """The stream has one gap and then the rest; a reader that resumes after the gap gets no other gap."""
    api = compose(retention=(1 << 20, 16))
    first, *_ = [publish(api, at)[0] for at in range(40)]
    with closing(Reader(api, f"{TOPIC}/stream?marker={first}")) as reader:
        (identity, kind, data), (_, following, message) = reader.events(2)
    assert (kind, data["after"], following) == ("gap", first, "message")
    assert int(message["id"]) == data["resumes"] == int(identity) + 1
    with closing(Reader(api, f"{TOPIC}/stream", last_event_id=identity)) as reader:
        assert reader.events(1)[0][2]["id"] == message["id"]


def test_a_heartbeat_moves_the_place_to_resume(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a silent topic in a busy project does not fall behind: heartbeats carry an id without an event."""
    monkeypatch.setattr(streams, "HEARTBEAT", 0.1)
    monkeypatch.setattr(streams, "CHECK_INTERVAL", 0.05)
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        (other,) = publish(api, "x", topic="other")
        assert any(block == f": heartbeat\nid: {other}" for block in reader.blocks())


def test_a_body_of_several_lines_is_one_line_of_the_event(api: Api) -> None:
    """Line ends between JSON tokens become spaces; line ends in strings are escapes anyway."""
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        api.post(URL, 201, b'{"messages": [{"body": {\r\n "a":\n"x\\ny"}}]}')
        assert reader.bodies(1) == [{"a": "x\ny"}]


def test_what_some_take_for_line_ends_is_escaped(api: Api) -> None:
    """Readers that split text into lines like Python would cut the event there."""
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        publish(api, "é")
        api.post(URL, 201, '{"messages": [{"body": "\u2028|\u2029|\x85|\u2027"}]}'.encode())
        _opening, *blocks = islice(reader.blocks(), 3)
        assert [len(block.splitlines()) for block in blocks] == [3, 3]
        assert json.loads(blocks[1].split("data: ")[1])["body"] == "\u2028|\u2029|\x85|\u2027"


def test_a_large_portion_is_sent_in_pieces(api: Api) -> None:
    """Pieces distinguish a slow reader from a reader that reads nothing."""
    publish(api, *["x" * 1000] * 100)
    publish(api, "y" * 100_000)
    with closing(Reader(api, f"{TOPIC}/stream?marker=0")) as reader:
        pieces = [next(reader.portions) for _ in range(5)]
    assert [len(piece) > 60_000 for piece in pieces] == [False, True, False, True, False]
    assert max(map(len, pieces)) == streams.PIECE_SIZE
    assert [piece.endswith(b"\n\n") for piece in pieces] == [True, True, True, False, True], "whole events, if they fit"


def test_expired_messages_are_not_sent(api: Api, clock: Any) -> None:
    """The ttl is checked when the message is sent."""
    publish(api, "short", ttl=60)
    publish(api, "long", ttl=600)
    clock.advance(61)
    with closing(Reader(api, f"{TOPIC}/stream?marker=0")) as reader:
        assert reader.bodies(1) == ["long"]


def test_beyond_max_streams_there_is_no_place(compose: Any) -> None:
    """The server answers 503 with Retry-After. A closed stream frees its slot, even if it was sent nothing."""
    api = compose(max_streams=1)
    with closing(Reader(api, f"{TOPIC}/stream")):
        answer = api.get(f"{TOPIC}/stream", 503)
        assert (answer.headers["Retry-After"], answer.json["title"]) == ("1", "Too many streams")
        publish(api, "work goes on")
    for _ in range(3):
        Reader(api, f"{TOPIC}/stream").close()
    with closing(Reader(api, f"{TOPIC}/stream?marker=0")) as reader:
        assert reader.bodies(1) == ["work goes on"]


def test_one_project_gets_a_quarter_of_the_streams(compose: Any) -> None:
    """S7: With a quarter of the slots in use, a project gets no more, but another project does."""
    api = compose(max_streams=8)
    own = [Reader(api, f"{TOPIC}/stream") for _ in range(2)]
    try:
        assert "2 for one project" in api.get(f"{TOPIC}/stream", 503).json["description"]
        with closing(Reader(api.tenant("rival"), f"{TOPIC}/stream")) as reader:
            assert reader.status == "200 OK"
    finally:
        for one in own:
            one.close()


def test_a_refused_stream_takes_no_place(compose: Any) -> None:
    """This holds for any reason of the refusal."""
    api = compose(max_streams=1)
    for _ in range(2):
        api.get(f"{TOPIC}/stream?marker=9999999999999999", 400)
    with closing(Reader(api, f"{TOPIC}/stream")) as reader:
        assert reader.status == "200 OK"


def test_a_reader_that_does_not_accept_events_gets_406(api: Api) -> None:
    """A stream has no other media type."""
    api.get(f"{TOPIC}/stream", 406, {"Accept": "application/json"})
    api.get("/v2/topics", 406, {"Accept": streams.MEDIA})


def test_a_reader_that_takes_nothing_is_hung_up_on(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is shut down from outside, because its own thread is blocked in a send."""
    monkeypatch.setattr(broker_streams, "STALL_TIMEOUT", 0.1)
    monkeypatch.setattr(broker_streams, "CHECK_INTERVAL", 0.05)

    class Connection:
        ended = False

        def shutdown(self, _how: int) -> None:
            self.ended = True

        def fileno(self) -> int:
            return 0

    connection = Connection()
    with closing(Reader(api, f"{TOPIC}/stream", {"gunicorn.socket": connection})) as reader:
        next(reader.blocks())
        deadline = time.monotonic() + SOON
        while not connection.ended and time.monotonic() < deadline:
            time.sleep(0.02)
        assert connection.ended
