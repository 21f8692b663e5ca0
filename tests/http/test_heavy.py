# SPDX-License-Identifier: Apache-2.0
"""Heavy requests (``zq.http.weight``): their classification, concurrency limit, cost, and processing in slices."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from wsgiref.util import setup_testing_defaults

import pytest

from tests.http.api import CLIENT, Api
from tests.http.scoped import Scoped
from tests.tables import every_row
from zq import turns
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.rates import MAX_HEAVY, Rates
from zq.http.app import create_app
from zq.http.pending import HANDOVER_KEY, Handover
from zq.model.quotas import Quota
from zq.storage import connect
from zq.storage.api import Storage
from zq.turns import SLICE

QUEUE, TOPIC, PAST = "/v2/queues/jobs", "/v2/topics/news", "/v2/queues/past"
MANY = 5 * SLICE
IDS = ",".join(["0" * 32] * (SLICE + 1))


def posted(count: int) -> dict[str, Any]:
    return {"messages": [{"body": number, "ttl": 300} for number in range(count)]}


# method, path, body, and whether it is heavy
REQUESTS: list[tuple[str, str, Any, bool]] = [
    ("POST", f"{QUEUE}/messages", posted(SLICE), False),
    ("POST", f"{QUEUE}/messages", posted(SLICE + 1), True),
    ("POST", f"{QUEUE}/messages", json.dumps(posted(SLICE + 1)).replace("body", "b\\u006fdy"), True),
    ("POST", f"{QUEUE}/messages", {"messages": [{"body": "x" * 10_000}]}, False),
    ("POST", f"{QUEUE}/messages?stage=s", posted(SLICE + 1), True),
    ("POST", f"{TOPIC}/messages", posted(SLICE + 1), True),
    ("GET", f"{QUEUE}/messages", None, False),
    ("GET", f"{QUEUE}/messages?limit={SLICE}", None, False),
    ("GET", f"{QUEUE}/messages?limit={SLICE + 1}", None, True),
    ("GET", f"{QUEUE}/messages?lim%69t=%3{SLICE + 1}", None, True),
    ("GET", f"{QUEUE}/messages?state=ready&limit={SLICE + 1}", None, True),
    ("DELETE", f"{QUEUE}/messages?pop={SLICE + 1}", None, True),
    ("DELETE", f"{QUEUE}/messages?pop=1", None, False),
    ("DELETE", f"{QUEUE}/messages?ids={IDS}", None, True),
    ("DELETE", f"{QUEUE}/messages?{'&'.join(['ids=' + '0' * 32] * (SLICE + 1))}", None, True),
    ("DELETE", f"{QUEUE}/messages?ids={'0' * 32}", None, False),
    ("POST", f"{QUEUE}/claims?limit={SLICE + 1}", None, True),
    ("POST", f"{QUEUE}/claims", None, False),
    ("GET", f"{QUEUE}/claims/nothere", None, True),
    ("POST", f"{QUEUE}/claims/nothere/settle", {"delete": IDS.split(",")}, True),
    ("POST", f"{QUEUE}/claims/nothere/settle", {"delete": ["0" * 32]}, False),
    ("GET", f"{TOPIC}/messages?limit={SLICE + 1}", None, True),
    ("GET", f"{PAST}/history?limit={SLICE + 1}", None, True),
    ("GET", f"{PAST}/history", None, False),
    ("POST", f"{PAST}/history/replay", {"limit": 10}, True),
    ("POST", f"{QUEUE}/redrive", {"to": "other"}, True),
    ("POST", "/v2/commits", {"producer": "p", "batch": 1, "publish": ["s"]}, True),
    ("GET", "/v2/queues", None, False),
    ("GET", "/v2/queues?limit=20&detailed=true", None, False),
    ("GET", "/v2/queues?name=x", None, True),
    ("GET", "/v2/topics?colour=red", None, True),
]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Return a client of a server on a store in memory, whose threads do not sleep between slices."""
    monkeypatch.setattr(turns, "SHORT_PAUSE", 0.0)
    storage = connect("memory:", {})
    yield Api(create_app(Broker(storage, ManualClock(1_700_000_000.0))), "")
    storage.close()


@every_row(("method", "path", "body", "is_heavy"), REQUESTS)
def test_requests_of_many_messages_are_heavy(
    monkeypatch: pytest.MonkeyPatch, own: Api, method: str, path: str, body: Any, is_heavy: bool
) -> None:
    """The application classifies a request by its parsed content. No request that may run on the I/O loop is heavy."""
    begun: list[object] = []
    monkeypatch.setattr(turns, "begin", begun.append)
    raw = None if body is None else body if isinstance(body, str) else json.dumps(body)
    own.call(method, path, None, None if raw is None else raw.encode())
    assert bool(begun) is is_heavy
    url = urlsplit(path)
    environ = {"REQUEST_METHOD": method, "PATH_INFO": url.path, "QUERY_STRING": url.query}
    assert not (is_heavy and own.app.is_short(environ, (raw or "").encode()))


@pytest.fixture
def bounded() -> Iterator[Callable[..., Scoped]]:
    """Return a function that builds callers of a server with the given quotas."""
    storage = connect("memory:", {})

    def build(**quota: int) -> Scoped:
        clock = ManualClock(1_700_000_000.0)
        unbounded = dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25}
        broker = Broker(storage, clock, quota=Quota(**unbounded | quota), rates=Rates(64, clock.now))
        scoped = Scoped(lambda options: create_app(broker, **options), "")
        scoped.broker = broker
        return scoped

    yield build
    storage.close()


def test_beyond_two_heavy_requests_the_next_is_refused(
    monkeypatch: pytest.MonkeyPatch, bounded: Callable[..., Scoped]
) -> None:
    """The server answers 429 after a short wait and names the limit. Other requests and projects are not affected."""
    monkeypatch.setattr("zq.core.rates.HEAVY_WAIT", 0.01)
    scoped = bounded()
    caller, account = scoped.api(), scoped.broker.quotas.allotment("acme").account
    for _ in range(MAX_HEAVY):
        account.enter(0.0)
        account.begin_heavy(float, 0, 0)
    refused = caller.get(f"{QUEUE}/messages?limit=1000", 429)
    assert refused.headers["Retry-After"] == "1"
    assert refused.json == {
        "title": "Too many requests",
        "description": "The project may have at most 2 concurrent heavy requests in one server process. "
        "Retry the request, or request fewer messages.",
        "limit": "heavy",
    }
    caller.get(f"{QUEUE}/messages", 200)
    scoped.api(project="other").get(f"{QUEUE}/messages?limit=1000", 200)
    account.end_heavy(0.0, 0, 0)
    for _ in range(3):
        caller.get(f"{QUEUE}/messages?limit=1000", 200)


@pytest.mark.parametrize("status", [200, 400])
def test_a_heavy_request_pays_for_what_it_was(bounded: Callable[..., Scoped], status: int) -> None:
    """The estimate is refunded once the request is answered, even with an error."""
    scoped = bounded(bytes=10_000)
    caller, account = scoped.api(), scoped.broker.quotas.allotment("acme").account
    caller.get(f"{QUEUE}/messages?limit={1000 if status == 200 else 1001}", status)
    assert account.owes(1_700_000_000.0) < -1.9, "next to nothing of a burst of two seconds is used"


def test_a_poll_holds_no_place_while_it_waits(monkeypatch: pytest.MonkeyPatch, bounded: Callable[..., Scoped]) -> None:
    monkeypatch.setattr("zq.core.rates.HEAVY_WAIT", 0.01)
    scoped = bounded()
    caller = scoped.api()
    for path in (f"{QUEUE}/messages?limit=1000&wait=1", f"{TOPIC}/messages?limit=1000&wait=1"):
        for _ in range(MAX_HEAVY + 1):
            path_info, _, query = path.partition("?")
            environ: dict[str, Any] = {"PATH_INFO": path_info, "QUERY_STRING": query, "HTTP_CLIENT_ID": CLIENT}
            environ |= {"HTTP_X_AUTH_TOKEN": caller.token, HANDOVER_KEY: Handover()}
            setup_testing_defaults(environ)
            caller.app(environ, lambda *_: None)
            environ[HANDOVER_KEY].pending.close()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of steps of requests, in order: reads of the store with their limits, and yields."""
    taken: list[str] = []
    monkeypatch.setattr(turns, "give_way", lambda: taken.append("way"))
    return taken


def watch(monkeypatch: pytest.MonkeyPatch, controller: object, verb: str, place: int, steps: list[str]) -> None:
    """Record the limit of each call of a verb of the store: the argument at index ``place``."""
    kind, plain = type(controller), getattr(type(controller), verb)

    def noted(self: object, *arguments: Any, **named: Any) -> Any:
        steps.append(f"{verb} {arguments[place]}")
        return plain(self, *arguments, **named)

    monkeypatch.setattr(kind, verb, noted)


@pytest.mark.parametrize(
    ("path", "verb", "place"),
    [
        (f"{QUEUE}/messages?limit={MANY}&echo=true", "list", 2),
        (f"{QUEUE}/messages?limit={MANY}&state=ready&detailed=true", "browse", 3),
        (f"{PAST}/history?limit={MANY}", "list", 2),
        (f"{PAST}/history?limit={MANY}&state=all", "list", 2),
    ],
)
def test_a_page_is_read_and_rendered_in_slices(
    monkeypatch: pytest.MonkeyPatch,
    storage: Storage,
    project_suffix: str,
    steps: list[str],
    path: str,
    verb: str,
    place: int,
) -> None:
    """No step handles more messages than a slice; the page has every message once, in order."""
    api = Api(create_app(Broker(storage, ManualClock(1_700_000_000.0))), project_suffix)
    api.put(PAST, 201, {"_history_ttl": 3600})
    for queue in (QUEUE, PAST):
        api.post(f"{queue}/messages", 201, posted(MANY))
    api.call("DELETE", f"{PAST}/messages?pop={MANY}", None)
    steps.clear()
    watch(monkeypatch, storage.history if "history" in path else storage.messages, verb, place, steps)
    page = api.get(path, 200).json["messages"]
    assert [message["body"] for message in page] == list(range(MANY))
    reads, renders = steps[: 2 * MANY // SLICE - 1], steps[2 * MANY // SLICE - 1 :]
    assert reads == [f"{verb} {SLICE}", "way"] * (MANY // SLICE - 1) + [f"{verb} {SLICE}"]
    assert renders.count("way") >= MANY // SLICE - 1
    assert set(renders) == {"way"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{QUEUE}/messages", posted(MANY)),
        ("POST", f"{QUEUE}/messages?stage=s", posted(MANY)),
        ("POST", f"{TOPIC}/messages", posted(MANY)),
        ("POST", f"{PAST}/history/replay", {"limit": MANY}),
        ("POST", f"{PAST}/redrive", {"to": "jobs", "limit": MANY}),
        ("DELETE", f"{QUEUE}/messages?pop={MANY}", None),
        ("DELETE", f"{QUEUE}/messages?ids={','.join(['0' * 32] * MANY)}", None),
        ("GET", f"{TOPIC}/messages?limit={MANY}&marker=0", None),
        ("GET", "/v2/queues?text=none", None),
    ],
)
def test_work_on_many_messages_gives_way(own: Api, steps: list[str], method: str, path: str, body: Any) -> None:
    """The work yields to other requests before every slice except the first."""
    own.put(PAST, 201, {"_history_ttl": 3600})
    for queue in (QUEUE, PAST, TOPIC):
        own.post(f"{queue}/messages", 201, posted(MANY))
    own.call("DELETE", f"{PAST}/messages?pop={MANY}", None)
    own.post(f"{PAST}/messages", 201, posted(MANY))
    for number in range(2 * MANY // SLICE):
        own.put(f"/v2/queues/large{number}", 201, {"text": "x" * 65_000})
    steps.clear()
    assert own.call(method, path, None, body).status_int < 300
    assert steps.count("way") >= MANY // SLICE - 1
