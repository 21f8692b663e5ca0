# SPDX-License-Identifier: Apache-2.0
"""OpenStack's python-zaqarclient, unchanged, against a real server: it must not notice that the server is zq."""

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from zaqarclient.queues.client import Client
from zaqarclient.queues.v2 import core
from zaqarclient.queues.v2.queues import Queue
from zaqarclient.transport import errors

from tests.servers import ZqServer, wait_for
from tests.sink import CONFIG as SUBSCRIBING
from tests.sink import Sink

pytestmark = pytest.mark.one_store


@pytest.fixture
def server(store_uri: str) -> Iterator[ZqServer]:
    with ZqServer(store_uri) as started:
        yield started


def client_of(server: ZqServer, project: str = "p1") -> Client:
    auth = {"backend": "noauth", "options": {"os_project_id": project}}
    return Client(server.url, version=2, conf={"auth_opts": auth})


@pytest.fixture
def client(server: ZqServer) -> Client:
    return client_of(server)


def events(count: int) -> list[dict[str, object]]:
    return [{"ttl": 300, "body": {"event": "backup", "number": number, "who": "Zoë"}} for number in range(count)]


def numbers(messages: object) -> list[int]:
    return [message.body["number"] for message in messages]


def ids_of(posted: dict[str, list[str]]) -> list[str]:
    return [href.split("/")[-1] for href in posted["resources"]]


def post(queue: Queue, count: int) -> list[str]:
    return ids_of(queue.post(events(count)))


def test_a_queue_lives_from_its_creation_to_its_end(client: Client) -> None:
    """A queue is created, found, its metadata set, replaced and cleared, listed over pages, and deleted."""
    for number in range(12):
        client.queue(f"q{number:02}", force_create=True)
    jobs = client.queue("q00")
    assert jobs.exists()
    jobs.metadata(new_meta={"colour": "blue", "_default_message_ttl": 700})
    assert jobs.metadata(force_reload=True)["colour"] == "blue"
    assert jobs.metadata_dict["_default_message_ttl"] == 700
    jobs.metadata(new_meta={"size": 3})
    reloaded = jobs.metadata(force_reload=True)
    assert reloaded["size"] == 3
    assert "colour" not in reloaded
    assert reloaded["_default_message_ttl"] == 3600

    listed, count = client.queues(limit=5, detailed=True, with_count=True)
    queues = list(listed.stream())
    assert [queue.name for queue in queues] == [f"q{number:02}" for number in range(12)]
    assert queues[0].metadata()["size"] == 3
    assert count == 12
    jobs.delete()
    assert "q00" not in [queue.name for queue in client.queues(limit=20)[0]]


def test_messages_are_posted_in_bulk_listed_over_pages_and_got_by_id(client: Client) -> None:
    """One post has 45 messages, the iterator follows five pages, and ids, single messages and echo work."""
    queue = client.queue("jobs", force_create=True)
    ids = post(queue, 45)
    assert len(ids) == 45
    assert list(queue.messages()) == []
    assert numbers(queue.messages(limit=10, echo=True).stream()) == list(range(45))
    assert [message.id for message in queue.messages(limit=20, echo=True)] == ids[:20]
    assert numbers(queue.messages(*ids[7:10])) == [7, 8, 9]
    message = queue.message(ids[44])
    assert message.body == events(45)[44]["body"]
    assert message.ttl == 300
    assert 0 <= message.age < 60
    assert message.claim_id is None


def test_another_client_sees_what_was_posted_and_another_project_does_not(server: ZqServer) -> None:
    """The echo filter is by client, and isolation is by project."""
    post(client_of(server).queue("jobs", force_create=True), 3)
    assert numbers(client_of(server).queue("jobs").messages()) == [0, 1, 2]
    stranger = client_of(server, "p2").queue("jobs")
    assert list(stranger.messages(echo=True, include_claimed=True)) == []
    assert stranger.stats["messages"]["total"] == 0


def test_messages_leave_by_delete_by_pop_and_by_purge(client: Client) -> None:
    """The stats change with each removal; oldest and newest name the remaining messages."""
    queue = client.queue("jobs", force_create=True)
    ids = post(queue, 12)
    queue.message(ids[0]).delete()
    queue.delete_messages(ids[1], ids[2])
    assert numbers(queue.pop(count=4)) == [3, 4, 5, 6]
    stats = queue.stats["messages"]
    assert (stats["free"], stats["claimed"], stats["total"]) == (5, 0, 5)
    assert stats["oldest"]["href"].endswith(ids[7])
    assert stats["newest"]["href"].endswith(ids[11])
    queue.purge(resource_types=["messages"])
    assert list(queue.messages(echo=True)) == []
    assert queue.stats["messages"]["total"] == 0
    post(queue, 2)
    queue.purge()
    assert list(queue.messages(echo=True)) == []


def test_a_claim_is_taken_renewed_worked_off_and_released(client: Client) -> None:
    """The claim's messages have its id, so that delete works; the other messages are ready after the release."""
    queue = client.queue("jobs", force_create=True)
    post(queue, 8)
    claim = queue.claim(ttl=120, grace=60, limit=5)
    held = list(claim)
    assert numbers(held) == [0, 1, 2, 3, 4]
    assert {message.claim_id for message in held} == {claim.id}
    assert numbers(queue.messages(echo=True)) == [5, 6, 7]
    claim.update(ttl=500, grace=100)
    again = queue.claim(id=claim.id)
    assert again.ttl == 500
    assert 0 <= again.age < 60
    for message in held[:2]:
        message.delete()
    assert queue.stats["messages"]["claimed"] == 3
    assert numbers(queue.claim(id=claim.id)) == [2, 3, 4]
    claim.delete()
    assert numbers(queue.messages(echo=True)) == [2, 3, 4, 5, 6, 7]
    rest = queue.claim(ttl=60, grace=60, limit=20)
    assert numbers(rest) == [2, 3, 4, 5, 6, 7]
    nothing = queue.claim(ttl=60, grace=60)
    assert (nothing.id, list(nothing)) == (None, [])


def test_a_delayed_queue_hides_messages_until_their_moment(client: Client) -> None:
    """The queue's default delay, a message's own delay, no delay, and a short delay that ends are covered."""
    queue = client.queue("later", force_create=True)
    queue.metadata(new_meta={"_default_message_delay": 600})
    hidden, soon, now = ids_of(
        queue.post([{"body": {"number": 0}}, {"body": {"number": 1}, "delay": 1}, {"body": {"number": 2}, "delay": 0}])
    )
    assert numbers(queue.messages(hidden, soon, now)) == [0, 1, 2]
    assert queue.stats["messages"]["free"] == 3
    assert numbers(queue.messages(echo=True, include_delayed=True)) == [0, 1, 2]
    assert numbers(queue.claim(ttl=60, grace=60))[0] == 2
    late = wait_for(lambda: numbers(queue.claim(ttl=60, grace=60)), 60, "the delay of a second has passed")
    assert late == [1]
    assert numbers(queue.messages(echo=True, include_claimed=True)) == [1, 2]


def test_a_message_that_was_claimed_often_enough_goes_to_the_dead_letters(client: Client) -> None:
    """After two claims, the third attempt moves the message with its body, its id and the dead-letter queue's ttl."""
    queue = client.queue("jobs", force_create=True)
    # Queue.metadata() cannot do this: it removes the keys that were null before.
    rules = {"_max_claim_count": 2, "_dead_letter_queue": "dead", "_dead_letter_queue_messages_ttl": 9999}
    patch = [{"op": "add", "path": f"/metadata/{key}", "value": value} for key, value in rules.items()]
    core.queue_update(*reversed(client._request_and_transport()), "jobs", patch)
    ids = post(queue, 1)
    for _ in range(2):
        claim = queue.claim(ttl=60, grace=60)
        assert numbers(claim) == [0]
        claim.delete()
    assert list(queue.claim(ttl=60, grace=60)) == []
    assert list(queue.messages(echo=True, include_claimed=True)) == []
    (dead,) = client.queue("dead").messages(echo=True, include_claimed=True)
    assert (dead.id, dead.ttl, dead.body["number"]) == (ids[0], 9999, 0)


def test_the_client_finds_the_service_alive_and_described(client: Client) -> None:
    """Ping and the home document work."""
    assert client.ping()
    resources = client.homedoc()["resources"]
    assert resources["rel/queue"]["href-template"] == "/v2/queues/{queue_name}"


def test_each_refusal_raises_the_clients_own_error(client: Client) -> None:
    """The client raises its errors for 400, 403, 404 and 409, with the server's message."""
    queue = client.queue("jobs", force_create=True)
    ids = post(queue, 2)
    with pytest.raises(errors.MalformedRequest, match="ttl"):
        queue.post([{"ttl": 59, "body": 1}])
    with pytest.raises(errors.MalformedRequest, match="ttl"):
        queue.claim()
    with pytest.raises(errors.MalformedRequest, match="limit"):
        queue.messages(limit=1001)
    with pytest.raises(errors.MalformedRequest, match="pop"):
        queue.pop(count=0)
    with pytest.raises(errors.ResourceNotFound):
        queue.message("0" * 32)
    with pytest.raises(errors.ResourceNotFound):
        queue.messages("0" * 32)
    claim = queue.claim(ttl=60, grace=60, limit=1)
    with pytest.raises(errors.ForbiddenError, match="claim"):
        core.message_delete(*reversed(client._request_and_transport()), "jobs", ids[0])
    claim.delete()
    with pytest.raises(errors.ResourceNotFound):
        claim.update(ttl=60, grace=60)
    patch = [{"op": "replace", "path": "/metadata/absent", "value": 1}]
    with pytest.raises(errors.ConflictError, match="absent"):
        core.queue_update(*reversed(client._request_and_transport()), "jobs", patch)
    assert numbers(queue.messages(echo=True)) == [0, 1]


def test_the_other_engine_serves_the_same_life(store_uri: str) -> None:
    """With Granian instead of gunicorn, create, post, list, claim, delete, pop and stats work."""
    with ZqServer(store_uri, engine="granian") as server:
        queue = client_of(server).queue("jobs", force_create=True)
        post(queue, 15)
        assert numbers(queue.messages(limit=6, echo=True).stream()) == list(range(15))
        (first,) = queue.claim(ttl=60, grace=60, limit=1)
        first.delete()
        assert numbers(queue.pop(count=2)) == [1, 2]
        assert queue.stats["messages"]["total"] == 12
        queue.delete()
        assert list(queue.messages(echo=True)) == []
        assert server.terminate() == 0


@pytest.mark.every_store
def test_a_signed_url_opens_a_queue_for_others(store_uri: str) -> None:
    """A client of the backend signed-url can read and post where the URL allows it, and nothing else (contract 17)."""
    with ZqServer(store_uri, config=f"[signed_url]\nsecret_key = {'k' * 32}\n") as server:
        jobs = client_of(server).queue("jobs", force_create=True)
        post(jobs, 2)
        given = jobs.signed_url(paths=["messages"], ttl_seconds=600, methods=["GET", "POST", "DELETE"])
        options = {name: given[name] for name in ("signature", "expires", "methods", "paths")}
        options["os_project_id"] = given["project"]
        conf = {"auth_opts": {"backend": "signed-url", "options": options}}
        guest = Client(server.url, version=2, conf=conf)
        queue = guest.queue("jobs", auto_create=False)
        assert numbers(queue.messages(echo=True)) == [0, 1]
        post(queue, 1)
        assert numbers(queue.pop(count=3)) == [0, 1, 0]
        with pytest.raises(errors.ResourceNotFound):
            guest.queue("other", auto_create=False).post(events(1))
        with pytest.raises(errors.ResourceNotFound):
            queue.delete()


@pytest.mark.every_store
def test_a_subscription_lives_and_is_delivered_to(store_uri: str) -> None:
    """A subscription is created, shown, listed, confirmed, delivered to, changed and deleted (contract 9)."""
    with Sink() as sink, ZqServer(store_uri, config=SUBSCRIBING) as server:
        client = client_of(server)
        hook = client.subscription("jobs", subscriber=f"{sink.url}/hook", ttl=600, options={"colour": "blue"})
        assert (hook.ttl, hook.options, hook.confirmed) == (600, {"colour": "blue"}, False)
        asked = wait_for(lambda: sink.came("/hook", "SubscriptionConfirmation"), 60, "the question")[0].document
        again = client.subscription("jobs", subscriber=f"{sink.url}/hook", ttl=600)
        assert again.id == hook.id
        sink.agree(server.url, asked)
        with pytest.raises(errors.ConflictError):
            client.subscription("jobs", subscriber=f"{sink.url}/hook", ttl=600)
        assert client.subscription("jobs", id=hook.id).confirmed

        post(client.queue("jobs"), 2)
        wait_for(lambda: len(sink.came("/hook")) == 2, 60, "both messages")
        assert {body["number"] for body in sink.bodies("/hook")} == {0, 1}

        hook.update({"subscriber": f"{sink.url}/other", "ttl": 700, "options": {}})
        shown = client.subscription("jobs", id=hook.id)
        assert (shown.subscriber, shown.ttl, shown.confirmed) == (f"{sink.url}/other", 700, False)
        for number in range(3):
            client.subscription("jobs", subscriber=f"{sink.url}/{number}", ttl=600)
        assert len(list(client.subscriptions("jobs", limit=2))) == 2
        assert {each.id for each in client.subscriptions("jobs")} > {hook.id}
        hook.delete()
        with pytest.raises(errors.ResourceNotFound):
            client.subscription("jobs", id=hook.id)
        with pytest.raises(errors.MalformedRequest, match="its address is not allowed"):
            client.subscription("jobs", subscriber="http://169.254.169.254/hook", ttl=600)


@pytest.mark.every_store
def test_heat_resources_work(store_uri: str) -> None:
    """Heat creates, updates and deletes its Zaqar resources in its own order.

    The resources are ``OS::Zaqar::Queue``, ``Subscription`` with an unlimited ttl and a template, and
    ``SignedQueueURL``, which a deployed server uses to send signals.
    """
    forever = 220367260800
    with Sink() as sink, ZqServer(store_uri, config=SUBSCRIBING) as server:
        client = client_of(server)
        queue = client.queue("stack-queue", force_create=True)
        queue.metadata(new_meta={"owner": "stack"})
        options = {
            "post_data": '{"workflow_id": "w1", "input": {"event": "$zaqar_message$"}}',
            "post_headers": {"A": "b"},
        }
        hook = client.subscription("stack-queue", subscriber=f"{sink.url}/hook", ttl=forever, options=options)
        assert hook.id
        sink.agree(server.url, wait_for(lambda: sink.asked("/hook"), 60, "the question")[0])
        shown = client.subscription("stack-queue", id=hook.id)
        assert (shown.subscriber, shown.ttl) == (f"{sink.url}/hook", forever)
        signal = queue.signed_url(paths=["messages"], ttl_seconds=86400, methods=["GET", "POST", "DELETE"])
        given = {name: signal[name] for name in ("signature", "expires", "methods", "paths")}
        conf = {"auth_opts": {"backend": "signed-url", "options": given | {"os_project_id": signal["project"]}}}
        deployed = Client(server.url, version=2, conf=conf).queue("stack-queue", auto_create=False)
        deployed.post([{"body": {"deploy_status_code": 0}, "ttl": 600}])
        told = wait_for(lambda: sink.came("/hook"), 60, "the template")[0].document
        assert (told["workflow_id"], told["input"]["event"]["body"]) == ("w1", {"deploy_status_code": 0})
        assert [message.body for message in deployed.pop()] == [{"deploy_status_code": 0}]
        hook.update({"options": {}, "ttl": 3600})
        hook.delete()
        queue.delete()
        with pytest.raises(errors.ResourceNotFound):
            client.subscription("stack-queue", id=hook.id)


def test_encryption_without_support_is_rejected(tmp_path: Path) -> None:
    """Enabling encryption is rejected with 400, because the client would treat 501 as success."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        client = client_of(server)
        jobs = client.queue("jobs", force_create=True)
        with pytest.raises(errors.MalformedRequest, match="Not implemented"):
            jobs.metadata(new_meta={"_enable_encrypt_messages": True})
        assert jobs.metadata(force_reload=True)["_enable_encrypt_messages"] is False


def test_the_report_on_health_is_an_object(store_uri: str) -> None:
    """``health()`` needs the admin role, which the client's noauth backend does not send (contracts 5, 17)."""
    config = "[DEFAULT]\nadmin_mode = true\n[server]\ntrust_network = true\n"
    with ZqServer(store_uri, config=config) as started:
        request, transport = client_of(started)._request_and_transport()
        request.headers["X-Roles"] = "admin"
        report = core.health(transport, request)
    assert report["message_volume"] == {"free": 0, "claimed": 0, "total": 0}
    assert all(status["succeeded"] for status in report["operation_status"].values())


def test_pools_and_flavors_are_administered(tmp_path: Path) -> None:
    """All calls for pools and flavors work, and so do queues in such a pool."""
    config = """
        [DEFAULT]
        admin_mode = true
        pooling = true
        [server]
        trust_network = true
        [pooling:catalog]
        allowed_hosts = rocksdb:
    """
    uri = f"rocksdb://{tmp_path}/pool"
    with ZqServer("memory:", config=dedent(config)) as server:
        admin, client = client_of(server), client_of(server)
        plain = admin._request_and_transport

        def as_admin() -> tuple[Any, Any]:
            request, transport = plain()
            request.headers["X-Roles"] = "admin"
            return request, transport

        admin._request_and_transport = as_admin
        pool = admin.pool("p", weight=10, uri=uri)
        pool.update({"weight": 20})
        assert (pool.get()["weight"], pool.get()["uri"]) == (20, uri)
        assert [found.name for found in admin.pools(limit=5)] == ["p"]
        flavor = admin.flavor("f", pool_list=["p"])
        flavor.update({"pool_list": ["p"]})
        assert flavor.get()["pool_list"] == ["p"]
        assert [found.name for found in admin.flavors(limit=5)] == ["f"]
        jobs = client.queue("jobs", force_create=False)
        request, transport = client._request_and_transport()
        core.queue_create(transport, request, "jobs", metadata={"_flavor": "f"})
        post(jobs, 3)
        assert numbers(jobs.messages(echo=True)) == [0, 1, 2]
        with pytest.raises(errors.ForbiddenError):
            pool.delete()
        flavor.delete()
        assert list(admin.flavors()) == []
        with pytest.raises(errors.ForbiddenError):
            client.pool("q", weight=1, uri=uri)
