# SPDX-License-Identifier: Apache-2.0
"""Quotas of numbers of objects, stored bytes, waiters and streams over HTTP, and the list of projects (tenancy 5, 6).

The objects are stages, fences, producers, and queues that other queues name. ``test_quota`` covers rates.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs

from tests.http.scoped import Caller, Scoped
from tests.http.test_streams import Reader
from zq.clock import ManualClock, StoreClock
from zq.core import Broker
from zq.core.quotas import Quotas
from zq.core.rates import Rates
from zq.core.usage_quotas import FREE_METADATA, REPORTED_AGE
from zq.http.app import create_app
from zq.model import Draft
from zq.model.quotas import UNBOUNDED, Quota, Work
from zq.serving.features import command_features
from zq.storage import connect
from zq.storage.api import Storage

QUEUE = "/v2/queues/jobs"
POSTED = {"messages": [{"body": 1}]}
ADMIN = frozenset({"admin"})

Bounded = Callable[..., Scoped]


@pytest.fixture
def bounded(storage: Storage, clock: ManualClock, project_suffix: str) -> Bounded:
    """Return a function that builds callers with the given quotas. ``slots`` limits waiters and streams."""

    def build(slots: int = 40, **quota: int) -> Scoped:
        unbounded = dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25}
        own = Quota(**unbounded | quota)
        broker = Broker(storage, clock, quota=own, max_waiters=slots, max_streams=slots, share=own.share)
        scoped = Scoped(
            lambda options: create_app(broker, features=command_features(broker), **options), project_suffix
        )
        scoped.broker = broker
        return scoped

    return build


def stage(caller: Caller, name: str, status: int = 202, **headers: str) -> Any:
    return caller.post(f"{QUEUE}/messages?stage={name}", status, POSTED, headers=headers)


def fence(caller: Caller, name: str, status: int = 200) -> Any:
    return caller.post(f"/v2/fences/{name}", status)


def commit(caller: Caller, name: str, status: int = 200, batch: int = 1, publish: tuple[str, ...] = ()) -> Any:
    return caller.post("/v2/commits", status, {"producer": name, "batch": batch, "publish": list(publish)})


MAKE: dict[Work, Callable[..., Any]] = {Work.STAGE: stage, Work.FENCE: fence, Work.PRODUCER: commit}


@pytest.mark.every_store
@pytest.mark.parametrize("work", MAKE)
def test_one_name_more_than_the_quota_is_403(bounded: Bounded, work: Work) -> None:
    """Existing objects still work and are listed."""
    caller, make = bounded(**{work: 2}).api(), MAKE[work]
    for name in "abab":
        make(caller, name)
    refused = make(caller, "c", 403).json
    assert refused == {"title": "Quota exceeded", "description": f"The project may have at most 2 {work}."}
    make(caller, "a")
    told = caller.get("/v2/quota", 200).json
    assert (told["used"][work], told["limits"][work], told["exact"][work]) == (2, 2, True)


@pytest.mark.one_store
def test_stages_that_are_dropped_or_committed_make_room(bounded: Bounded) -> None:
    caller = bounded(stages=2).api()
    stage(caller, "a"), stage(caller, "b"), stage(caller, "a")
    caller.delete("/v2/stages/a", 204)
    stage(caller, "c")
    stage(caller, "a", 403)
    commit(caller, "etl", publish=("b",))
    stage(caller, "d")
    stage(caller, "b", 403)


@pytest.mark.one_store
def test_a_repeat_of_what_was_staged_is_answered_though_its_stage_has_gone(bounded: Bounded) -> None:
    """The repeat creates no stage."""
    caller = bounded(stages=1).api()
    first = stage(caller, "a", **{"Idempotency-Key": "k"})
    commit(caller, "etl", publish=("a",))
    stage(caller, "b")
    assert stage(caller, "a", **{"Idempotency-Key": "k"}).body == first.body
    stage(caller, "a", 403, **{"Idempotency-Key": "l"})


@pytest.mark.one_store
@pytest.mark.parametrize("work", MAKE)
def test_what_is_there_costs_no_second_question(
    bounded: Bounded, storage: Storage, monkeypatch: pytest.MonkeyPatch, work: Work
) -> None:
    asked: list[str] = []
    count = storage.transactions.count

    def counting(project: str, kind: Work, name: str, now: float) -> Any:
        asked.append(name)
        return count(project, kind, name, now)

    caller = bounded(**{work: 9}).api()
    monkeypatch.setattr(storage.transactions, "count", counting)
    for _ in range(5):
        MAKE[work](caller, "a")
    assert asked == ["a", "a"]  # once at creation and once when it is used


# Queues that other queues name.


@pytest.mark.one_store
def test_targets_of_one_request_are_counted_together(bounded: Bounded) -> None:
    """The server refuses the request before it changes anything; a request within the quota succeeds."""
    caller = bounded(queues=3).api()
    caller.put(QUEUE, 201, {"_dead_letter_queue": "dead"})
    caller.put("/v2/queues/there", 201)
    one, two = caller.send("jobs", 1, 2)
    claim, _ = caller.claim("jobs")
    moves = [{"id": one, "queue": "new"}, {"id": two, "queue": "newer"}]
    caller.post(f"{claim}/settle", 403, {"move": moves})
    caller.post(f"{claim}/settle", 403, {"move": moves[:1], "bury": [{"id": two, "reason": "r"}]})
    assert caller.queues() == ["jobs", "there"]
    moves[1]["queue"] = "new"
    assert caller.post(f"{claim}/settle", 200, {"move": moves}).json["moved"] == 2


@pytest.mark.one_store
def test_a_dead_letter_queue_is_counted_where_it_is_named(bounded: Bounded) -> None:
    """PUT counts it with the new queue, PATCH counts it too.

    An existing queue may be named, and a PUT of an existing queue changes nothing.
    """
    caller = bounded(queues=2).api()
    caller.put("/v2/queues/a", 201)
    refused = caller.put("/v2/queues/b", 403, {"_dead_letter_queue": "dead"})
    assert refused.json["description"] == "The project may have at most 2 queues."
    caller.put("/v2/queues/b", 201, {"_dead_letter_queue": "a"})
    change = [{"op": "add", "path": "/metadata/_dead_letter_queue", "value": "dead"}]
    caller.patch("/v2/queues/a", 403, change)
    caller.put("/v2/queues/a", 204, {"_dead_letter_queue": "dead"})
    change[0]["value"] = "b"
    caller.patch("/v2/queues/a", 200, change)


@pytest.mark.one_store
def test_a_claim_makes_the_dead_letter_queue_whatever_the_quota(bounded: Bounded, clock: ManualClock) -> None:
    """The queue was named while there was room, so no claim fails; from then on the queue counts."""
    caller = bounded(queues=2).api()
    caller.put(QUEUE, 201, {"_dead_letter_queue": "dead", "_max_claim_count": 1})
    caller.put("/v2/queues/there", 201)
    caller.send("jobs", 1)
    claim, _ = caller.claim("jobs")
    caller.delete(claim, 204)
    caller.post(f"{QUEUE}/claims", 204, {"ttl": 60, "grace": 60})
    assert caller.queues() == ["dead", "jobs", "there"]
    assert caller.get("/v2/quota", 200).json["used"]["queues"] == 3
    caller.put("/v2/queues/more", 403)


# Simultaneous requests.


def meeting(count: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the verb so that two callers get their responses together; a single caller waits a second."""
    barrier = threading.Barrier(2)

    def counting(*asked: Any) -> Any:
        found = count(*asked)
        with suppress(threading.BrokenBarrierError):
            barrier.wait(1)
        return found

    return counting


@pytest.mark.one_store
@pytest.mark.parametrize("made", ["queue", "post", "topic", "stage", "fence", "producer"])
def test_requests_at_the_same_moment_make_none_too_many(
    bounded: Bounded, storage: Storage, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    """Within a process, each check of a quota includes the creations that other requests have been granted."""
    caller = bounded(**dict.fromkeys(("queues", "topics", "stages", "fences", "producers"), 1)).api()
    if made == "stage":
        caller.put(QUEUE, 201)
    verbs = [(storage.queues, "count"), (storage.transactions, "count"), (storage.documents, "list")]
    for controller, verb in verbs:
        monkeypatch.setattr(controller, verb, meeting(getattr(controller, verb)))
    requests = {
        "queue": ("PUT", "/v2/queues/{}", None),
        "post": ("POST", "/v2/queues/{}/messages", POSTED),
        "topic": ("PUT", "/v2/topics/{}", None),
        "stage": ("POST", QUEUE + "/messages?stage={}", POSTED),
        "fence": ("POST", "/v2/fences/{}", None),
        "producer": ("POST", "/v2/commits", {"producer": "{}", "batch": 1, "publish": []}),
    }
    method, path, body = requests[made]

    def make(name: str) -> int:
        own = {**body, "producer": name} if made == "producer" and body else body
        return caller.call(method, path.format(name), None, own).status_int

    with ThreadPoolExecutor(2) as pool:
        statuses = sorted(pool.map(make, "ab"))
    assert statuses[0] < 300
    assert statuses[1] == 403


# Stored messages.


@pytest.mark.every_store
@pytest.mark.parametrize("bound", [{"stored_messages": 1}, {"stored_bytes": 300}])
def test_a_quota_lowered_below_use_stops_posts_and_nothing_else(
    bounded: Bounded, storage: Storage, clock: ManualClock, bound: dict[str, int]
) -> None:
    """Stores that do not know their usage refuse nothing."""
    scoped = bounded()
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    caller.send("jobs", 1, 2, 3, 4)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"limits": bound})
    knows = storage.usage(caller.project, clock.now()) is not None
    caller.post(f"{QUEUE}/messages", 403 if knows else 201, POSTED)
    caller.post(f"{QUEUE}/messages?stage=s", 403 if knows else 202, POSTED)
    assert len(caller.get(f"{QUEUE}/messages?echo=true", 200).json["messages"]) >= 4
    claim, messages = caller.claim("jobs", limit=3)
    first, second, _ = (message["id"] for message in messages)
    caller.patch(claim, 204, {"ttl": 300, "grace": 60})
    caller.post(f"{claim}/settle", 200, {"move": [{"id": first, "queue": "there"}], "delete": [second]})
    caller.delete(claim, 204)
    assert len(caller.delete(f"{QUEUE}/messages?pop=1", 200).json["messages"]) == 1
    caller.post("/v2/queues/there/purge", 204, {"resource_types": ["messages"]})


@pytest.mark.one_store
def test_history_and_remembered_answers_take_room(bounded: Bounded) -> None:
    """Consumed messages that are kept count towards the quota."""
    scoped = bounded()
    caller, administrator = scoped.api(), scoped.api(project="operators", roles=ADMIN)
    caller.put(QUEUE, 201, {"_history_ttl": 600})
    caller.send("jobs", 1)
    caller.delete(f"{QUEUE}/messages?pop=1", 200)
    assert caller.get("/v2/quota", 200).json["used"]["stored_bytes"] == 257
    caller.post(f"{QUEUE}/messages", 201, POSTED, headers={"Idempotency-Key": "k"})
    caller.delete(f"{QUEUE}/messages?pop=1", 200)
    used = caller.get("/v2/quota", 200).json["used"]
    assert used["stored_messages"] == 0
    assert used["stored_bytes"] > 3 * 256
    limits = {"limits": {"stored_bytes": used["stored_bytes"] + 200}}
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, limits)
    caller.post(f"{QUEUE}/messages", 403, POSTED)
    caller.delete(QUEUE, 204)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, limits)
    caller.send("jobs", 1)


# Shares.


@pytest.mark.one_store
def test_a_waiter_beyond_the_share_is_answered_at_once(bounded: Bounded) -> None:
    """The server answers with Retry-After: 1; others still wait. A project's own share takes precedence."""
    scoped = bounded(slots=8)
    caller, other = scoped.api(), scoped.api(project="other")
    third = scoped.api(project="third")
    administrator = scoped.api(project="operators", roles=ADMIN)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"limits": {"share": 12}})
    with waiting(scoped, caller), waiting(scoped, other):
        answer = caller.post(f"{QUEUE}/claims?wait=20", 204, {"ttl": 60, "grace": 60})
        assert answer.headers["Retry-After"] == "1"
        with waiting(scoped, other):
            answer = other.post(f"{QUEUE}/claims?wait=20", 204, {"ttl": 60, "grace": 60})
            assert answer.headers["Retry-After"] == "1"
            with waiting(scoped, third):
                pass


def waiting(scoped: Scoped, caller: Caller) -> ExitStack:
    """Return a context in which a claim waits; the claim gets a message at the end."""
    answers: list[int] = []
    queue = f"wait-{uuid4()}"
    thread = threading.Thread(
        target=lambda: answers.append(
            caller.call("POST", f"/v2/queues/{queue}/claims?wait=20", None, {"ttl": 60, "grace": 60}).status_int
        )
    )
    taken = scoped.broker.waiters._slots._taken
    before = taken[caller.project]
    thread.start()
    while taken[caller.project] == before:
        thread.join(0.01)
        assert thread.is_alive()
    stack = ExitStack()

    def end() -> None:
        caller.send(queue, 1)
        thread.join(20)
        assert answers == [201]

    stack.callback(end)
    return stack


@pytest.mark.one_store
def test_a_stream_beyond_the_share_is_refused(bounded: Bounded) -> None:
    scoped = bounded(slots=8)
    caller, other = scoped.api(), scoped.api(project="other")
    administrator = scoped.api(project="operators", roles=ADMIN)
    administrator.put(f"/v2/admin/project?project={caller.project}", 200, {"limits": {"share": 12}})
    with ExitStack() as stack:
        for each in (caller, other, other):
            stack.enter_context(closing(Reader(each, "/v2/stream", x_auth_token=each.token)))
        for each, share in ((caller, 1), (other, 2)):
            said = each.get("/v2/stream", 503).json["description"]
            assert f"at most 8 concurrent streams, and {share} for one project" in said


# The list of projects.


def listed(administrator: Caller, marker: str = "", limit: int = 5) -> dict[str, Any]:
    """Return all projects after the marker, read page by page."""
    found, path = {}, f"/v2/admin/projects?limit={limit}&marker={marker}"
    while True:
        page = administrator.get(path, 200).json
        assert len(page["projects"]) <= limit
        found |= {each["project"]: each for each in page["projects"]}
        if not page["links"]:
            return found
        path = page["links"][0]["href"]


MAKERS: dict[str, Callable[[Caller], Any]] = {
    "queue": lambda caller: caller.put(QUEUE, 201),
    "post": lambda caller: caller.send("jobs", 1),
    "topic": lambda caller: caller.post("/v2/topics/news/messages", 201, POSTED),
    "stage": lambda caller: stage(caller, "s"),
    "fence": lambda caller: fence(caller, "f"),
    "producer": lambda caller: commit(caller, "p"),
}


@pytest.mark.one_store
@pytest.mark.parametrize("bound", [0, 1000])
def test_all_projects_that_have_something_are_listed(bounded: Bounded, bound: int) -> None:
    """The list has their usage, whether or not a quota applies. Projects that only read are not listed."""
    scoped = bounded(**dict.fromkeys(("queues", "topics", "stages", "fences", "producers"), bound))
    administrator = scoped.api(project="operators", roles=ADMIN)
    callers = {name: scoped.api(project=f"list-{bound}-{name}") for name in MAKERS}
    for name, make in MAKERS.items():
        make(callers[name])
    scoped.api(project=f"list-{bound}-reader").get("/v2/queues", 200)
    administrator.put(f"/v2/admin/project?project=list-{bound}-said", 200, {"limits": {"queues": 1}})
    found = {
        name: each
        for name, each in listed(administrator, f"list-{bound}-").items()
        if name.startswith(f"list-{bound}-")
    }
    assert list(found) == sorted([f"list-{bound}-said", *(caller.project for caller in callers.values())])
    post = found[callers["post"].project]
    assert (post["state"], post["used"]["queues"], post["used"]["stored_bytes"]) == ("active", 1, 257)
    assert post["exact"]["stored_bytes"] is True
    assert found[callers["fence"].project]["used"]["fences"] == 1
    assert found[f"list-{bound}-said"]["limits"] == {"queues": 1}
    administrator.delete(f"/v2/admin/project?project=list-{bound}-said", 202)


@pytest.mark.one_store
def test_a_deleted_project_is_listed_no_more_until_it_makes_something(bounded: Bounded) -> None:
    scoped = bounded()
    caller, administrator = scoped.api(project="list-gone"), scoped.api(project="operators", roles=ADMIN)
    caller.send("jobs", 1)
    path = f"/v2/admin/project?project={caller.project}"
    while administrator.delete(path, 202).json["deleting"]:
        pass
    assert caller.project not in listed(administrator, "list-g")
    caller.send("jobs", 1)
    assert caller.project in listed(administrator, "list-g")


def test_the_largest_recent_uses_are_known_without_reading_the_store() -> None:
    """The list has usage of storage and metadata checked within ``REPORTED_AGE``, and creates no rate limiters."""
    store, moment = connect("memory:"), [1000.0]
    rates = Rates(1, lambda: moment[0])
    quota = structs.replace(UNBOUNDED, stored_messages=4, stored_bytes=10_000, metadata_bytes=1000, queues=4)
    quotas = Quotas(store, StoreClock(store.now), quota, rates)
    assert quotas.largest_uses() == {}
    for project, count in (("a", 1), ("b", 3), ("c", 2)):
        drafts = [Draft(str(number), b"1" * 244, 60, 0, "c") for number in range(count)]
        assert quotas.reserve_storage(project, drafts) is None
    quotas.admit_metadata("c", FREE_METADATA + 100, 0)
    uses = {"stored_messages": (0.75, "b"), "stored_bytes": (0.15, "b"), "metadata_bytes": (0.1, "c")}
    store.close()
    assert quotas.largest_uses() == uses
    assert set(rates.accounts()) == {"a", "b", "c"}
    moment[0] += REPORTED_AGE
    assert quotas.largest_uses() == uses
    moment[0] += 0.1
    assert quotas.largest_uses() == {}
