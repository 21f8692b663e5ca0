# SPDX-License-Identifier: Apache-2.0
"""Modes of a service: all servers of a store refuse posts or changes within seconds (operations 9)."""

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from tests.commands import run, run_apart
from tests.faults.disks import SmallFileSystem
from tests.faults.refusal import sentence_of
from tests.servers import Answer, ZqServer, ask, every_message, wait_for
from tests.stores import MongoServer, RedisServer
from zq.core.modes import LOW_SPACE
from zq.serving import control
from zq.storage import connect

QUEUE = "/v2/queues/jobs"
POST = {"messages": [{"body": 1, "ttl": 600}]}
# Seconds within which every server obeys a new mode.
WITHIN = 5
POSTS = [
    ("POST", f"{QUEUE}/messages", POST),
    ("POST", f"{QUEUE}/messages?stage=s", POST),
    ("POST", "/v2/queues/missing/messages", POST),
    ("POST", "/v2/topics/news/messages", POST),
    ("POST", f"{QUEUE}/history/replay", {"limit": 1}),
]
CHANGES = [
    ("PUT", "/v2/queues/new", {}),
    ("DELETE", QUEUE, None),
    ("POST", f"{QUEUE}/claims", {}),
    ("DELETE", f"{QUEUE}/messages?pop=1", None),
    ("POST", f"{QUEUE}/purge", None),
    ("POST", "/v2/commits", {}),
    ("POST", "/v2/admin/rekey", None),
]
READS = [QUEUE, f"{QUEUE}/messages", f"{QUEUE}/stats", "/v2/queues", "/v2/topics/news/messages", "/readyz", "/healthz"]
SQS = "[sqs]\nenabled = true\nauth = none\n"


@pytest.fixture(params=["mongodb", "redis"])
def shared(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URI of a store that several servers share."""
    if request.param == "mongodb":
        server: MongoServer = request.getfixturevalue("mongodb")
        yield server.uri_of("modes")
    else:
        with RedisServer() as own:
            yield own.uri


def status(server: ZqServer, method: str, path: str, document: object = None) -> int:
    return ask(server.url, method, path, document).status


def refusal(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.document["title"], answer.headers["retry-after"]


def sqs(server: ZqServer, operation: str, **members: object) -> Answer:
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    return ask(server.url, "POST", "/", members, headers=headers)


@pytest.mark.store_of_the_day
def test_all_servers_of_a_store_refuse_posts_and_consumers_empty_it(shared: str) -> None:
    """The command opens the store itself; each HTTP server obeys within five seconds."""
    with ZqServer(shared, engine="granian") as one, ZqServer(shared, engine="gunicorn") as other:
        assert status(one, "POST", f"{QUEUE}/messages", POST) == 201
        done = run_apart("mode", "no_posts", "--store", shared)
        assert (done.code, done.said) == (0, "The mode is no_posts.\n"), done
        for server in (one, other):
            wait_for(lambda: status(server, *POSTS[0]) == 503, WITHIN, "it refuses posts")  # noqa: B023
            answers = [ask(server.url, *request) for request in POSTS]
            assert {refusal(answer) for answer in answers} == {(503, "No posts", "5")}
            listed = ask(server.url, "GET", "/v2/queues").document["queues"]
            assert [queue["name"] for queue in listed] == ["jobs"]
            assert status(server, "GET", "/readyz") == 200
        claimed = ask(other.url, "POST", f"{QUEUE}/claims", {"ttl": 300, "grace": 60})
        assert claimed.status == 201
        assert status(other, "DELETE", claimed.document["messages"][0]["href"]) == 204
        assert run_apart("mode", "--store", shared).said == "The mode is no_posts.\n"
        assert run_apart("mode", "normal", "--store", shared).code == 0
        for server in (one, other):
            wait_for(lambda: status(server, *POSTS[0]) == 201, WITHIN, "it accepts posts")  # noqa: B023


def test_a_read_only_server_refuses_every_change(engine: str, tmp_path: Path) -> None:
    """This includes SQS requests and requests that already wait, and holds after a restart."""
    uri = f"rocksdb://{tmp_path}/store"
    config = f"[DEFAULT]\nadmin_mode = true\n[server]\ntrust_network = true\n{SQS}"
    with ZqServer(uri, engine=engine, config=config) as server:
        url = f"{server.url}/000000000000/jobs"
        assert sqs(server, "CreateQueue", QueueName="jobs").status == 200
        assert status(server, *POSTS[0]) == 201
        assert status(server, "POST", "/v2/topics/news/messages", POST) == 201
        waited: list[Answer] = []
        wait = "/v2/queues/empty/claims?wait=20"
        waiter = threading.Thread(target=lambda: waited.append(ask(server.url, "POST", wait, {}, timeout=30)))
        assert status(server, "PUT", "/v2/queues/empty", {}) == 201
        waiter.start()
        done = run("mode", "read_only", "--store", uri)
        assert (done.code, done.said) == (0, "The mode is read_only.\n"), done
        done = run("token", "create", "--project", "acme", "--store", uri)
        assert (done.code, "The mode of this service is read_only" in done.error) == (2, True), done
        for size in (1, 300_000) * 50:  # the server does not read the body
            document = {"name": "x" * size}
            assert control.send(f"{tmp_path}/store/control.sock", "POST", "/v2/admin/tokens", document)[0] == 503
        for _ in range(2):
            answers = [ask(server.url, *request) for request in [*POSTS, *CHANGES]]
            assert {refusal(answer) for answer in answers} == {(503, "Read only", "5")}
            assert {status(server, "GET", path) for path in READS} == {200}
            assert sqs(server, "SendMessage", QueueUrl=url, MessageBody="x").status == 503
            assert sqs(server, "ListQueues").status == 200
            assert sqs(server, "ReceiveMessage", QueueUrl=url).status == 503
            waiter.join(15)
            assert refusal(waited[0]) == (503, "Read only", "5")
            assert server.terminate() == 0
            server.start()
        assert "store is unavailable" not in server.output
        assert "The mode is now read_only." in server.output
        assert run("mode", "normal", "--store", uri).code == 0
        assert status(server, *POSTS[0]) == 201
        assert sqs(server, "SendMessage", QueueUrl=url, MessageBody="x").status == 200


@pytest.mark.ability("unshare")
def test_posts_are_refused_before_the_disk_is_full_and_accepted_when_there_is_space(tmp_path: Path) -> None:
    """Pops, claims and deletes continue in between, and no acknowledged message is lost."""
    disk, numbers, accepted = SmallFileSystem(tmp_path, min_free_space=8 << 20), count(), list[int]()
    with closing(disk), disk.server as server:

        def post() -> int:
            body = next(numbers)
            answer = status(server, "POST", f"{QUEUE}/messages", {"messages": [{"body": body, "ttl": 600}]})
            if answer == 201:
                accepted.append(body)
            return answer

        for _ in range(5):
            assert post() == 201
        disk.fill(leave=6 << 20)
        wait_for(lambda: post() == 503, WITHIN, "it refuses posts")
        assert refusal(ask(server.url, *POSTS[0])) == (503, "No posts", "5")
        popped = ask(server.url, "DELETE", f"{QUEUE}/messages?pop=1").document["messages"]
        claimed = ask(server.url, "POST", f"{QUEUE}/claims?limit=2", {"ttl": 300, "grace": 60}).document["messages"]
        assert status(server, "DELETE", claimed[0]["href"]) == 204
        assert status(server, "GET", "/readyz") == 200
        disk.free()
        wait_for(lambda: post() == 201, WITHIN, "it accepts posts")
        left = [message["body"] for message in every_message(server.url, "jobs")]
        assert [popped[0]["body"], claimed[0]["body"], *left] == accepted
        assert ask(server.url, "GET", claimed[1]["href"]).document["body"] == claimed[1]["body"] == left[0]


@pytest.mark.ability("unshare")
def test_a_start_on_a_full_disk_says_how_much_space_it_needs(tmp_path: Path) -> None:
    """With that much space, the server starts, and consumers can empty the store."""
    disk = SmallFileSystem(tmp_path, min_free_space=16 << 20)
    with closing(disk):
        with disk.server as server:
            for body in range(60):
                messages = {"messages": [{"body": f"{body}{disk.filling}", "ttl": 600}]}
                assert status(server, "POST", f"{QUEUE}/messages", messages) == 201
            disk.fill()
            server.kill()
        disk.fill()
        found = re.search(r"Free at least (\d+) MiB, and start again", sentence_of(server))
        assert found is not None, server.output
        assert server.wait(1) == 2
        disk.free()
        disk.fill(leave=int(found[1]) << 20)
        server.start()
        assert refusal(ask(server.url, *POSTS[0])) == (503, "No posts", "5")
        assert len(every_message(server.url, "jobs")) == 60
        assert status(server, "DELETE", f"{QUEUE}/messages?pop=20") == 200
        server.close()


def test_a_server_with_little_free_space_refuses_posts_by_itself(engine: str, tmp_path: Path) -> None:
    """The mode that an administrator set does not matter, and consumers continue.

    The server recovers at twice the minimum, here after a restart.
    """
    uri, free = f"rocksdb://{tmp_path}/store", shutil.disk_usage(tmp_path).free
    with ZqServer(uri, engine=engine, config="") as server:
        assert status(server, *POSTS[0]) == 201
        server.terminate()
    with ZqServer(uri, engine=engine, config=f"{SQS}[storage:rocksdb]\nmin_free_space = {free * 2}\n") as server:
        answer = ask(server.url, *POSTS[0])
        assert refusal(answer) == (503, "No posts", "5")
        assert answer.document["description"] == LOW_SPACE
        assert run("mode", "normal", "--store", uri).said == (
            "The mode is normal.\nThe store has little free disk space, so its server refuses posts.\n"
        )
        assert status(server, *POSTS[0]) == 503
        queue_url = sqs(server, "CreateQueue", QueueName="jobs").document["QueueUrl"]
        for operation, members in (
            ("SendMessage", {"MessageBody": "x"}),
            ("SendMessageBatch", {"Entries": [{"Id": "a", "MessageBody": "x"}]}),
        ):
            sent = sqs(server, operation, QueueUrl=queue_url, **members)
            assert (sent.status, sent.document["message"]) == (503, LOW_SPACE)
        assert status(server, "DELETE", f"{QUEUE}/messages?pop=1") == 200
        assert status(server, "GET", "/readyz") == 200
        assert run("mode", "read_only", "--store", uri).code == 0
        assert refusal(ask(server.url, *POSTS[0])) == (503, "Read only", "5")
        assert run("mode", "normal", "--store", uri).code == 0
        assert "The mode is now no_posts; the store has little free disk space." in server.output
        server.terminate()
    with ZqServer(uri, engine=engine, config="[storage:rocksdb]\nmin_free_space = 0\n") as server:
        assert status(server, *POSTS[0]) == 201


def test_a_command_without_a_server_obeys_the_mode(tmp_path: Path) -> None:
    """The command opens the store itself."""
    uri = f"rocksdb://{tmp_path}/store"
    connect(uri).close()
    assert run("mode", "read_only", "--store", uri).code == 0
    done = run_apart("token", "create", "--project", "acme", "--store", uri)
    assert (done.code, done.said) == (2, "")
    assert "The mode of this service is read_only" in done.error


@pytest.mark.parametrize(
    "command",
    [
        *(["mode"], ["mode", "read_only"], ["token", "list"], ["sqs-key", "list"], ["rekey"], ["upgrade"]),
        *(["upgrade", "--finish"], ["check-store"], ["salvage", "--to", "new"]),
    ],
    ids=" ".join,
)
def test_a_command_creates_no_store_by_a_wrong_uri(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OS_STORAGE__URI", f"rocksdb://{tmp_path}/typo")
    done = run(*command)
    assert (done.code, "There is no store" in done.error) == (2, True), done
    assert [*tmp_path.iterdir()] == []


@pytest.mark.store_of_the_day
def test_no_command_creates_a_shared_store_by_a_wrong_uri(shared: str, tmp_path: Path) -> None:
    for command in (
        ["mode", "--store", shared],
        ["token", "list", "--store", shared],
        ["migrate", shared, f"rocksdb://{tmp_path}/new"],
    ):
        done = run_apart(*command)
        assert (done.code, "There is no store" in done.error) == (2, True), done


@pytest.mark.parametrize("names", [["closed"], ["NORMAL"], ["normal", "read_only"], [""]])
def test_an_unknown_mode_is_rejected(names: list[str]) -> None:
    done = run("mode", *names, "--store", "memory:")
    assert (done.code, done.said) == (2, "")
    assert done.error == ("zq-server: The mode must be normal, no_posts or read_only: zq-server mode no_posts\n")


def test_the_control_socket_rejects_an_unknown_mode(tmp_path: Path) -> None:
    with ZqServer(f"rocksdb://{tmp_path}/store", engine="granian") as server:
        socket = str(tmp_path / "store" / "control.sock")
        for document in ({"mode": "x"}, {"mode": 1}, {}, [], {"mode": "normal", "x": 1}):
            assert control.send(socket, "POST", "/mode", document)[0] == 400
        assert status(server, *POSTS[0]) == 201
