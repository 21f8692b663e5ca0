# SPDX-License-Identifier: Apache-2.0
"""Deliveries to a webhook server that fails, hangs, redirects and recovers, by servers that are killed."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Self

import pytest

from tests.campaign.histories.runs import embedded
from tests.rotation import rotated
from tests.servers import CLIENT, PROJECT, Lost, ZqServer, ask, every_message, wait_for
from tests.sink import CONFIG, Sink
from zq.client.webhooks import verify

KILLS = 3
QUICK = {
    "retries_with_no_delay": 1,
    "minimum_delay_retries": 1,
    "minimum_delay": 1,
    "maximum_delay": 11,
    "maximum_delay_retries": 0,
}
"""A policy of four tries: at once, after 0 s, after 1 s, and with exponential delays of 1 and 6 s."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as started:
        yield started


@pytest.fixture
def server(store_uri: str) -> Iterator[ZqServer]:
    with ZqServer(store_uri, config=CONFIG) as started:
        yield started


def post(server: ZqServer, *bodies: object, queue: str = "jobs") -> None:
    document = {"messages": [{"body": body} for body in bodies]}
    assert ask(server.url, "POST", f"/v2/queues/{queue}/messages", document).status == 201


def publish(server: ZqServer, *bodies: object, topic: str = "news") -> None:
    document = {"messages": [{"body": body} for body in bodies]}
    assert ask(server.url, "POST", f"/v2/topics/{topic}/messages", document).status == 201


@pytest.mark.one_store
def test_a_subscriber_gets_what_is_posted_signed(server: ZqServer, sink: Sink) -> None:
    """E5: The webhook library verifies each delivery once."""
    made = sink.subscribe(server.url, "jobs", "/good", options={"post_headers": {"X-Own": "a"}})
    post(server, {"n": 1}, "two")
    wait_for(lambda: len(sink.came("/good")) >= 2, 60, "two deliveries")
    first, second = sorted(sink.came("/good"), key=lambda each: str(each.document["body"]))[::-1]
    assert {verify(made["secret"], each.headers, each.body) for each in (first, second)} == {
        each.headers["webhook-id"] for each in (first, second)
    }
    assert second.document == {
        "ttl": 3600,
        "body": {"n": 1},
        "Message_Type": "Notification",
        "queue_name": "jobs",
    } or first.document["body"] == {"n": 1}
    assert first.headers["X-Own"] == "a"


@pytest.mark.one_store
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_a_notification_has_the_attributes_of_its_message(server: ZqServer, sink: Sink, kind: str) -> None:
    """The notification has the attributes of the message and the trace context of its post, if there are any."""
    sink.subscribe(server.url, "news", "/news", kind=kind)
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    path = f"/v2/{kind}s/news/messages"
    given = {"kind": "invoice", "pages": 12, "digest": {"type": "Binary", "value": "AAEC"}}
    posted = {"messages": [{"body": 1, "attributes": given}]}
    assert ask(server.url, "POST", path, posted, headers={"traceparent": parent}).status == 201
    assert ask(server.url, "POST", path, {"messages": [{"body": 2}]}).status == 201
    wait_for(lambda: len(sink.came("/news")) >= 2, 60, "two deliveries")
    documents = {each.document["body"]: each.document for each in sink.came("/news")}
    assert documents[1]["attributes"] == given | {"traceparent": parent}
    assert "attributes" not in documents[2]


@pytest.mark.one_store
def test_a_template_carries_the_message(server: ZqServer, sink: Sink) -> None:
    sink.subscribe(server.url, "jobs", "/good", options={"post_data": '{"messages": [{"body": "$zaqar_message$"}]}'})
    post(server, "x")
    [came] = wait_for(lambda: sink.came("/good"), 60, "a delivery")
    assert came.document["messages"][0]["body"]["body"] == "x"


@pytest.mark.one_store
def test_what_fails_is_tried_again_until_it_succeeds(server: ZqServer, sink: Sink) -> None:
    """9.8: All tries have the same id."""
    sink.subscribe(server.url, "jobs", "/bad", options={"_retry_policy": QUICK})
    sink.answers["/bad"] = 500
    post(server, "x")
    wait_for(lambda: len(sink.came("/bad")) >= 2, 60, "a second try")
    sink.answers.pop("/bad")
    wait_for(lambda: len(sink.came("/bad")) >= 3, 60, "a third try")
    post(server, "y")
    wait_for(lambda: "y" in sink.bodies("/bad"), 60, "the next delivery")
    assert sink.bodies("/bad") == ["x", "x", "x", "y"]
    assert len({each.headers["webhook-id"] for each in sink.came("/bad")[:3]}) == 1


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.one_store
def test_a_test_reaches_its_subscriber_and_a_refusal_is_told(server: ZqServer, sink: Sink, kind: str) -> None:
    """No other subscriber gets the test. The reason has the status and the start of the response."""
    made = sink.subscribe(server.url, "jobs", "/test", kind)
    sink.subscribe(server.url, "jobs", "/other", kind)
    path = f"/v2/{kind}s/jobs/subscriptions/{made['subscription_id']}/deliveries"
    told = ask(server.url, "POST", path)
    assert told.status == 202
    [came] = wait_for(lambda: sink.came("/test"), 60, "the test")
    assert (came.document["body"], came.headers["webhook-id"]) == ({"test": True}, told.document["message_id"])
    sink.answers["/test"] = 302
    ask(server.url, "POST", path)
    [dead] = wait_for(lambda: ask(server.url, "GET", path).document["deliveries"], 60, "a refusal")
    assert dead["reason"] == "status 302: <img src=x onerror=alert(1)>"
    assert sink.came("/other") == []


@pytest.mark.store_of_the_day
@pytest.mark.parametrize("kind", rotated(["queue", "topic"], 1))
def test_what_was_given_up_is_shown_tried_again_and_dropped(server: ZqServer, sink: Sink, kind: str) -> None:
    """A redrive keeps the id and restarts the attempts. Two concurrent redrives deliver each message once."""
    made = sink.subscribe(server.url, "jobs", "/dead", kind)
    sink.answers["/dead"] = 302  # a failure without retries
    path = f"/v2/{kind}s/jobs/subscriptions/{made['subscription_id']}/deliveries"
    (post if kind == "queue" else partial(publish, topic="jobs"))(server, *range(3))

    def dead(query: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(server.url, "GET", path + query).document["deliveries"]
        return found

    wait_for(lambda: len(dead()) == 3, 60, "three dead deliveries")
    assert sorted(each["body"] for each in dead()) == [0, 1, 2]
    tried = {each.headers["webhook-id"] for each in sink.came("/dead")}
    assert {each["message_id"] for each in dead()} == tried
    assert {(each["Message_Type"], each["attempts"], "302" in each["reason"]) for each in dead()} == {
        ("Notification", 1, True)
    }
    page = ask(server.url, "GET", f"{path}?limit=2").document
    assert len(page["deliveries"]) == 2
    assert ask(server.url, "GET", page["links"][0]["href"]).document["deliveries"] == dead()[2:]

    gone = dead()[0]
    assert ask(server.url, "DELETE", f"{path}?ids={gone['id']}").status == 204
    assert gone not in dead()
    before, sink.answers["/dead"] = len(sink.came("/dead")), 200
    with ThreadPoolExecutor(2) as threads:
        moved = threads.map(lambda _: ask(server.url, "POST", f"{path}/redrive").document["moved"], range(2))
    assert sum(moved) == 2
    wait_for(lambda: len(sink.came("/dead")) >= before + 2, 60, "both again")
    assert {each.headers["webhook-id"] for each in sink.came("/dead")[before:]} == tried - {gone["message_id"]}
    assert dead() == []
    assert ask(server.url, "DELETE", path).status == 204
    assert ask(server.url, "GET", path.replace(made["subscription_id"], "none")).status == 404


@pytest.mark.one_store
def test_a_redirection_is_not_followed(server: ZqServer, sink: Sink) -> None:
    """E1: The delivery is not tried again."""
    sink.subscribe(server.url, "jobs", "/moved")
    sink.answers["/moved"] = 302
    post(server, "x")
    wait_for(lambda: sink.came("/moved"), 60, "a delivery")
    sink.answers["/moved"] = 200
    post(server, "y")
    wait_for(lambda: "y" in sink.bodies("/moved"), 60, "the next delivery")
    assert sink.bodies("/moved") == ["x", "y"]
    assert sink.came("/elsewhere") == []


@pytest.mark.one_store
def test_nothing_goes_to_who_has_not_agreed_or_left(server: ZqServer, sink: Sink) -> None:
    source = "/v2/queues/jobs/subscriptions"
    assert ask(server.url, "POST", source, {"subscriber": f"{sink.url}/silent"}).status == 201
    gone = sink.subscribe(server.url, "jobs", "/gone")
    assert ask(server.url, "DELETE", f"{source}/{gone['subscription_id']}").status == 204
    sink.subscribe(server.url, "jobs", "/good")
    post(server, "x")
    wait_for(lambda: sink.came("/good"), 60, "a delivery")  # of the notification that the others would get too
    assert ask(server.url, "POST", source, {"subscriber": f"{sink.url}/silent"}).status == 201
    wait_for(lambda: len(sink.came("/silent", "SubscriptionConfirmation")) == 2, 60, "the second question")
    assert sink.came("/silent") == sink.came("/gone") == []


@pytest.mark.one_store
def test_a_circle_ends(store_uri: str, sink: Sink) -> None:
    """E4: A message that is delivered to its own queue arrives five times."""
    with ZqServer(store_uri, config=f"{CONFIG}require_confirmation = false\n") as server:
        options = {
            "post_headers": {"X-Project-ID": PROJECT, "Client-ID": CLIENT},
            "post_data": '{"messages": [{"body": "$zaqar_message$"}]}',
        }
        circle = {"subscriber": f"{server.url}/v2/queues/jobs/messages", "options": options}
        for terms in ({"subscriber": f"{sink.url}/good"}, circle):
            assert ask(server.url, "POST", "/v2/queues/jobs/subscriptions", terms).status == 201
        post(server, "x")
        wait_for(lambda: len(every_message(server.url, "jobs")) == 6, 60, "five deliveries of its own")
        last = {"messages": [{"body": "end"}]}
        for hops, status in ((4, 201), (5, 201), (1000, 400)):
            answer = ask(server.url, "POST", "/v2/queues/jobs/messages", last, headers={"Zq-Hops": str(hops)})
            assert answer.status == status
        wait_for(lambda: "end" in sink.bodies("/good"), 60, "the last delivery")
        assert [each.headers["Zq-Hops"] for each in sink.came("/good")] == ["1", "2", "3", "4", "5", "5"]


@pytest.mark.one_store
def test_subscribers_of_topics_get_what_is_published_after_they_agreed(server: ZqServer, sink: Sink) -> None:
    """Each subscriber gets the messages of its topic in order, each with a unique id."""
    publish(server, "before")
    sink.subscribe(server.url, "news", "/news", kind="topic")
    sink.subscribe(server.url, "other", "/other", kind="topic")
    publish(server, {"n": 1}, "two")
    publish(server, "else", topic="other")
    publish(server, "nobody's", topic="third")
    publish(server, "three")
    wait_for(lambda: len(sink.came("/news")) >= 3 and sink.came("/other"), 60, "the deliveries")
    sink.subscribe(server.url, "news", "/late", kind="topic")
    publish(server, "last")
    wait_for(lambda: len(sink.came("/news")) >= 4 and sink.came("/late"), 60, "the last deliveries")
    assert sink.bodies("/news") == [{"n": 1}, "two", "three", "last"]
    assert (sink.bodies("/other"), sink.bodies("/late")) == (["else"], ["last"])
    assert len({each.headers["webhook-id"] for each in sink.came("/news")}) == 4
    told = {"ttl": 3600, "body": "last", "Message_Type": "Notification", "topic_name": "news"}
    assert sink.came("/late")[0].document == told


@pytest.mark.store_of_the_day
@pytest.mark.parametrize("kind", rotated(["queue", "topic"], 1))
def test_killed_servers_deliver_all_that_they_accepted(store_uri: str, sink: Sink, kind: str) -> None:
    """While servers are killed, each confirmed subscriber gets each message at least once.

    Other subscribers get none.
    """
    with contextlib.ExitStack() as stack:
        count = 1 if embedded(store_uri) else 2
        servers = [stack.enter_context(ZqServer(store_uri, config=CONFIG)) for _ in range(count)]
        for path in ("/good", "/also"):
            sink.subscribe(servers[0].url, "jobs", path, kind)
        sink.subscribe(servers[-1].url, "others", "/others", kind)
        silent = {"subscriber": f"{sink.url}/silent"}
        assert ask(servers[0].url, "POST", f"/v2/{kind}s/jobs/subscriptions", silent).status == 201
        with Poster([server.url for server in servers], f"/v2/{kind}s/jobs/messages") as poster:
            for victim in (servers * KILLS)[:KILLS]:
                before = len(poster.accepted)
                wait_for(lambda before=before: len(poster.accepted) >= before + 20, 60, "some posts")  # type: ignore[misc]
                victim.kill()
                victim.start()
        accepted = set(poster.accepted)
        for path in ("/good", "/also"):
            wait_for(lambda path=path: accepted <= set(sink.bodies(path)), 60, "all deliveries")  # type: ignore[misc]
            assert set(sink.bodies(path)) <= set(poster.sent)
        assert sink.came("/others") == sink.came("/silent") == []


class Poster:
    """A producer that posts ascending numbers to each server in turn until the end of the context."""

    def __init__(self, urls: list[str], path: str) -> None:
        self._urls = urls
        self._path = path
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._post, daemon=True)
        self.sent: list[int] = []
        self.accepted: list[int] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _post(self) -> None:
        while not self._ending.wait(0.02):
            number = len(self.sent)
            self.sent.append(number)
            document = {"messages": [{"body": number}]}
            with contextlib.suppress(Lost):
                url = self._urls[number % len(self._urls)]
                if ask(url, "POST", self._path, document).status == 201:
                    self.accepted.append(number)


@pytest.mark.store_of_the_day
def test_what_a_commit_publishes_is_delivered_once_it_is(server: ZqServer, sink: Sink) -> None:
    """Staged messages are delivered when a commit publishes them, each once even if it was staged twice under its key.

    Messages of a dropped stage are never delivered.
    """
    sink.subscribe(server.url, "jobs", "/staged")

    def stage(name: str, *bodies: object, key: str = "") -> None:
        document = {"messages": [{"body": body} for body in bodies]}
        headers = {"Idempotency-Key": key} if key else {}
        path = f"/v2/queues/jobs/messages?stage={name}"
        assert ask(server.url, "POST", path, document, headers=headers).status == 202

    for _ in range(2):
        stage("night.1", *range(50), key="night.1")
    stage("night.2", "dropped")
    assert ask(server.url, "DELETE", "/v2/stages/night.2").status == 204
    ask(server.url, "POST", "/v2/queues/jobs/messages", {"messages": [{"body": "posted"}]})
    wait_for(lambda: sink.bodies("/staged") == ["posted"], 60, "what was posted")
    stage("night.2", "later")
    commit = {"producer": "etl", "batch": 1, "publish": [{"stage": "night.1", "messages": 50}]}
    done = ask(server.url, "POST", "/v2/commits", commit)
    assert (done.status, done.document["published"]) == (200, 50)
    wait_for(lambda: len(sink.bodies("/staged")) >= 51, 60, "what was published")
    commit = {"producer": "etl", "batch": 2, "publish": ["night.2"]}
    assert ask(server.url, "POST", "/v2/commits", commit).document["published"] == 1
    wait_for(lambda: "later" in sink.bodies("/staged"), 60, "what the second commit published")
    assert sorted(map(str, sink.bodies("/staged"))) == sorted(["posted", "later", *map(str, range(50))])
