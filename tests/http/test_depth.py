# SPDX-License-Identifier: Apache-2.0
"""``GET /v2/queues/{queue}/depth``, which autoscalers such as KEDA query."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest

from tests.commands import new_token
from tests.http.api import Api
from tests.http.scoped import Scoped
from tests.servers import ZqServer, ask
from zq.cache import ReadThroughCache
from zq.clock import ManualClock
from zq.core import queues
from zq.core.rules import CACHE_TTL

QUEUE = "/v2/queues/jobs"
DEPTH = f"{QUEUE}/depth"
NOTHING = {"ready": 0, "claimed": 0, "delayed": 0, "backlog": 0, "oldest_ready_seconds": 0}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, compose: Callable[..., Api]) -> Api:
    """Return a client of a server that does not cache the depth."""
    monkeypatch.setattr(queues, "CACHE_TTL", 0.0)
    return compose()


@pytest.mark.every_store
def test_each_state_is_counted(asked: Api, clock: ManualClock) -> None:
    """The backlog includes ready and claimed messages, so that an autoscaler does not stop busy workers."""
    asked.put(QUEUE, 201, {"_default_message_delay": 30})
    asked.send("jobs", 1, 2, delay=0)
    asked.send("jobs", 3, delay=60)
    clock.advance(2)
    asked.claim("jobs", 1)
    told = asked.get(DEPTH, 200).json
    assert {**told, "oldest_ready_seconds": 0} == {
        "ready": 1,
        "claimed": 1,
        "delayed": 1,
        "backlog": 2,
        "oldest_ready_seconds": 0,
    }
    assert told["oldest_ready_seconds"] == pytest.approx(2, abs=0.01)


def test_a_missing_and_an_empty_queue_are_zeros(asked: Api) -> None:
    """A queue without messages needs no workers; the request does not create the queue."""
    assert asked.get(DEPTH, 200).json == NOTHING
    assert asked.queues() == []
    asked.put(QUEUE, 201)
    asked.send("jobs", 1)
    asked.delete(f"{QUEUE}/messages?pop=1", 200)
    assert asked.get(DEPTH, 200).json == NOTHING
    asked.get("/v2/queues/a b/depth", 400)


@pytest.mark.every_store
def test_what_is_counted_is_bounded(compose: Callable[..., Api]) -> None:
    """The option ``max_counted`` limits the count of each state."""
    bounded = compose(max_counted=3)
    bounded.put(QUEUE, 201, {"_default_message_delay": 30})
    bounded.send("jobs", *range(10), delay=0)
    bounded.claim("jobs", 5)
    bounded.send("jobs", *range(5), delay=60)
    told = bounded.get(DEPTH, 200).json
    assert (told["ready"], told["claimed"], told["backlog"]) == (3, 3, 6)
    assert told["delayed"] <= 3


def test_an_answer_is_remembered_for_a_second(compose: Callable[..., Api], monkeypatch: pytest.MonkeyPatch) -> None:
    """The store counts at most once a second, however many clients request the depth."""
    now = [7.0]
    monkeypatch.setattr(queues, "ReadThroughCache", partial(ReadThroughCache, monotonic=lambda: now[0]))
    api = compose()
    assert api.get(DEPTH, 200).json["ready"] == 0
    api.send("jobs", 1)
    assert api.get(DEPTH, 200).json["ready"] == 0
    now[0] += CACHE_TTL
    assert api.get(DEPTH, 200).json["ready"] == 1


def test_keda_asks_with_a_project_alone(api: Api) -> None:
    """Without authentication the project header suffices and Client-ID is optional.

    Without a project the server answers 400.
    """
    api.send("jobs", 1)
    alone = {"Client-ID": None}
    assert api.get(DEPTH, 200, alone).json["backlog"] == 1
    for malformed in ("x", ""):
        assert api.get(DEPTH, 200, {"Client-ID": malformed}).json["backlog"] == 1
    api.get(DEPTH, 400, alone | {"X-Project-ID": None})
    api.get(f"{QUEUE}/stats", 400, alone)


def test_keda_asks_with_a_credential_alone(scoped: Scoped) -> None:
    """The credential determines the project; only the scope to observe the queue is required."""
    scoped.api().send("jobs", 1)
    alone: dict[str, Any] = {"Client-ID": None}
    assert scoped.api("observe:jobs").get(DEPTH, 200, alone).json["backlog"] == 1
    for scope in ("observe:others", "produce:jobs", "consume:jobs"):
        scoped.api(scope).get(DEPTH, 403, alone)
    scoped.api().get(DEPTH, 401, alone | {"X-Auth-Token": None})


def test_keda_asks_a_real_server_with_only_a_bearer_token(tmp_path: Path) -> None:
    """``authMode: bearer`` of KEDA's trigger sends no header of zq. The scope of the token is the queue."""
    uri = f"rocksdb://{tmp_path}/store"
    with ZqServer(uri, config="[DEFAULT]\nauth_strategy = token\n") as server:
        post = {"Authorization": f"Bearer {new_token(uri, 'acme')}"}
        assert ask(server.url, "POST", f"{QUEUE}/messages", {"messages": [{"body": 1}]}, headers=post).status == 201
        token = new_token(uri, "acme", "--scope", "observe:jobs")
        bare = Request(f"{server.url}{DEPTH}", headers={"Authorization": f"Bearer {token}"})
        with urlopen(bare, timeout=20) as answer:
            assert msgspec.json.decode(answer.read())["backlog"] == 1


def test_tenants_see_their_own_queues(api: Api) -> None:
    """Queues of the same name in two projects are separate."""
    api.send("jobs", 1)
    assert api.tenant("other").get(DEPTH, 200, {"Client-ID": None}).json == NOTHING
