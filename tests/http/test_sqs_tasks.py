# SPDX-License-Identifier: Apache-2.0
"""Tasks that move messages of a dead-letter queue, run by two servers on a store (SQS contract 10).

A killed server makes no further steps; other servers notice nothing else.
"""

import json
import random
from typing import Any

import pytest
from webtest import TestApp

from tests.features import sqs
from zq.clock import ManualClock
from zq.conformance.builders import drafts
from zq.core import Broker
from zq.http.app import create_app
from zq.model import ListFilter, Move, QueueRef
from zq.serving.features import EXTENSIONS
from zq.sqs.move_tasks import DEFAULT_RATE, LEASE, MAX_ENDED_TASKS
from zq.storage.api import Storage

NONE = "The resource that you specified for the {} parameter doesn't exist."


class Server:
    """A server on the shared store, and SQS requests to it from an account."""

    def __init__(self, storage: Storage, clock: ManualClock, account: str) -> None:
        self.broker = Broker(storage, clock, extensions=EXTENSIONS)
        self.account = account
        self._sqs = sqs(self.broker)
        self._web = TestApp(create_app(self.broker, features=[self._sqs]))

    def step(self) -> None:
        """Make the step that a server makes every second."""
        self._sqs.resume()

    def ask(self, operation: str, status: int = 200, **parameters: Any) -> Any:
        headers = {
            "X-Amz-Target": f"AmazonSQS.{operation}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={self.account}/20300101/us-east-1/sqs/aws4_request",
        }
        answer = self._web.post("/", json.dumps(parameters), headers, status=status)
        return json.loads(answer.body) if answer.body else None

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:us-east-1:{self.account}:{name}"

    def start(self, **more: Any) -> str:
        return str(self.ask("StartMessageMoveTask", SourceArn=self.arn("dead"), **more)["TaskHandle"])

    def tasks(self, most: int = 10) -> list[dict[str, Any]]:
        answer = self.ask("ListMessageMoveTasks", SourceArn=self.arn("dead"), MaxResults=most)
        return list(answer.get("Results", []))


class World:
    """Two servers, and an account's queues ``jobs`` and ``more`` with the dead-letter queue ``dead``."""

    def __init__(self, storage: Storage, clock: ManualClock, account: str) -> None:
        self.storage = storage
        self.clock = clock
        self.account = account
        self.one, self.other = (Server(storage, clock, account) for _ in range(2))
        self.one.ask("CreateQueue", QueueName="dead")
        policy = json.dumps({"deadLetterTargetArn": self.one.arn("dead"), "maxReceiveCount": 1})
        for name in ("jobs", "more"):
            self.one.ask("CreateQueue", QueueName=name, Attributes={"RedrivePolicy": policy})

    def ref(self, name: str) -> QueueRef:
        return QueueRef(self.account, name)

    def bury(self, name: str, count: int) -> list[str]:
        """Add ``count`` dead letters of the queue and return their ids."""
        now = self.clock.now()
        posted = drafts(count, now)
        self.storage.messages.post(self.ref(name), posted, now)
        moves = [Move(draft.id, "dead", reason="max_claims") for draft in posted]
        assert len(self.storage.messages.move(self.ref(name), moves, now)) == count
        return [draft.id for draft in posted]

    def there(self, name: str) -> list[str]:
        """Return the ids of the queue's messages, in order."""
        page = self.storage.messages.list(self.ref(name), 0, 10_000, ListFilter(), self.clock.now())
        return [message.id for message in page.items]


@pytest.fixture
def world(storage: Storage, clock: ManualClock) -> World:
    return World(storage, clock, f"{random.randrange(10**12):012}")


def test_messages_go_back_to_where_they_came_from(world: World) -> None:
    """Ids and order are kept. Messages buried later stay, and the task's record is kept."""
    jobs, more = world.bury("jobs", 3), world.bury("more", 2)
    handle = world.one.start()
    world.clock.advance(1)
    later = world.bury("jobs", 1)
    (running,) = world.one.tasks()
    started = running.pop("StartedTimestamp")
    assert abs(started / 1000 - world.clock.now()) < 2
    assert running == {
        "TaskHandle": handle,
        "Status": "RUNNING",
        "SourceArn": world.one.arn("dead"),
        "ApproximateNumberOfMessagesMoved": 0,
        "ApproximateNumberOfMessagesToMove": 5,
    }
    world.one.step()
    assert (world.there("jobs"), world.there("more"), world.there("dead")) == (jobs, more, later)
    (done,) = world.other.tasks()
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"], "TaskHandle" in done) == ("COMPLETED", 5, False)


def test_messages_go_to_one_destination(world: World) -> None:
    """Their origin does not matter."""
    ids = [*world.bury("jobs", 2), *world.bury("more", 2)]
    world.one.start(DestinationArn=world.one.arn("more"))
    world.one.step()
    assert (world.there("more"), world.there("dead")) == (ids, [])
    assert world.one.tasks()[0]["DestinationArn"] == world.one.arn("more")


def test_messages_keep_the_moment_at_which_they_were_sent(world: World) -> None:
    """The receive count and the retention period restart."""
    ask, names = world.one.ask, ["SentTimestamp", "ApproximateReceiveCount", "DeadLetterQueueSourceArn"]

    def received(queue: str) -> dict[str, str]:
        url = f"/{world.account}/{queue}"
        (message,) = ask("ReceiveMessage", QueueUrl=url, VisibilityTimeout=0, AttributeNames=names)["Messages"]
        return dict(message["Attributes"])

    ask("SendMessage", QueueUrl=f"/{world.account}/jobs", MessageBody="a")
    sent = received("jobs")["SentTimestamp"]
    world.clock.advance(3)
    assert "Messages" not in ask("ReceiveMessage", QueueUrl=f"/{world.account}/jobs")
    source = world.one.arn("jobs")
    assert received("dead") == dict(zip(names, (sent, "2", source), strict=True))
    world.one.start()
    world.clock.advance(3)
    world.one.step()
    assert received("jobs") == dict(zip(names, (sent, "1"), strict=False))
    (message,) = world.storage.messages.list(world.ref("jobs"), 0, 1, ListFilter(), world.clock.now()).items
    assert abs(message.expires - world.clock.now() - message.ttl) < 1


def test_a_rate_is_kept(world: World) -> None:
    """A step, made once a second, moves that many messages. The default rate is limited too."""
    ids = world.bury("jobs", 250)
    world.one.start(MaxNumberOfMessagesPerSecond=120)
    for moved in (120, 240, 250):
        world.one.step()
        assert world.there("jobs") == ids[:moved]
        assert world.one.tasks()[0]["ApproximateNumberOfMessagesMoved"] == moved
        world.clock.advance(1)
    assert world.one.tasks()[0]["Status"] == "COMPLETED"
    assert DEFAULT_RATE >= 500


def test_another_server_goes_on_when_the_lease_has_ended(world: World) -> None:
    """The other server waits for the end of the lease.

    No message moves twice, even if the first server did not save its progress.
    """
    ids = world.bury("jobs", 5)
    world.one.start(MaxNumberOfMessagesPerSecond=2)
    world.one.step()
    world.clock.advance(1)
    world.other.step()
    assert world.there("jobs") == ids[:2], "The lease is the first one's."
    move = world.storage.messages.move  # messages that it moves without saving the progress
    assert move(world.ref("dead"), [Move(ids[2], "jobs")], world.clock.now()) == [ids[2]]
    world.clock.advance(LEASE)
    for _ in range(3):
        world.other.step()
        world.clock.advance(1)
    assert (world.there("jobs"), world.there("dead")) == (ids, [])
    assert world.other.tasks()[0]["Status"] == "COMPLETED"
    world.one.step()
    assert (world.there("jobs"), len(world.one.tasks())) == (ids, 1)


def test_two_servers_that_both_believe_to_have_it_move_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server pauses within a step for longer than its lease.

    The other server takes the task over in that time and keeps it.
    """
    ids = world.bury("jobs", 6)
    world.one.start(MaxNumberOfMessagesPerSecond=2)
    move = world.storage.messages.move

    def late(*terms: Any) -> Any:
        monkeypatch.setattr(world.storage.messages, "move", move)
        world.clock.advance(LEASE + 1)
        world.other.step()
        return move(*terms)

    monkeypatch.setattr(world.storage.messages, "move", late)
    world.one.step()
    assert world.there("jobs") == ids[:2], "Both have moved the same ones, once."
    for moved in (4, 6):
        world.other.step()
        assert world.there("jobs") == ids[:moved]
    world.other.step()
    (task,) = world.one.tasks()
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 6)


def test_a_task_is_cancelled(world: World) -> None:
    """Any server can cancel a task.

    The runner stops before its next step, or another server stops it after the lease.
    """
    ids = world.bury("jobs", 5)
    handle = world.one.start(MaxNumberOfMessagesPerSecond=2)
    world.one.step()
    assert world.other.ask("CancelMessageMoveTask", TaskHandle=handle) == {"ApproximateNumberOfMessagesMoved": 2}
    assert world.one.tasks()[0]["Status"] == "CANCELLING"
    world.clock.advance(LEASE + 1)
    world.other.step()
    assert (world.one.tasks()[0]["Status"], world.there("jobs"), world.there("dead")) == ("CANCELLED", ids[:2], ids[2:])
    refused = world.one.ask("CancelMessageMoveTask", 404, TaskHandle=handle)
    assert refused == {"__type": "com.amazonaws.sqs#ResourceNotFoundException", "message": "Task does not exist."}
    again = world.one.start()
    assert world.one.ask("CancelMessageMoveTask", TaskHandle=again) == {"ApproximateNumberOfMessagesMoved": 0}
    world.one.step()
    assert [task["Status"] for task in world.one.tasks()] == ["CANCELLED", "CANCELLED"]


@pytest.mark.parametrize("named", [True, False])
def test_a_task_fails_when_its_destination_is_gone(world: World, named: bool) -> None:
    """The queue is not created, and the messages stay."""
    ids = world.bury("jobs", 2)
    world.one.start(**({"DestinationArn": world.one.arn("jobs")} if named else {}))
    world.storage.queues.delete(world.ref("jobs"))
    world.one.step()
    (task,) = world.one.tasks()
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AWS.SimpleQueueService.NonExistentQueue")
    assert (world.there("dead"), world.storage.queues.get(world.ref("jobs"))) == (ids, None)


def test_a_task_fails_at_a_message_that_came_from_nowhere(world: World) -> None:
    """The messages before it were moved."""
    ids = world.bury("jobs", 2)
    posted = drafts(1, world.clock.now())
    world.storage.messages.post(world.ref("dead"), posted, world.clock.now())
    world.one.start()
    world.one.step()
    assert world.one.tasks()[0]["FailureReason"] == "CouldNotDetermineMessageSource"
    assert (world.there("jobs"), world.there("dead")) == (ids, [posted[0].id])


def test_one_task_of_a_queue_runs_at_a_time(world: World) -> None:
    """Another task may follow, and the latest tasks are kept."""
    world.one.start()
    refused = world.other.ask("StartMessageMoveTask", 400, SourceArn=world.one.arn("dead"))
    assert refused["__type"].endswith("InvalidParameterValueException")
    assert refused["message"].startswith("There is already a task running.")
    for _ in range(MAX_ENDED_TASKS + 2):
        world.one.step()
        world.clock.advance(1)
        world.other.start()
    tasks = world.one.tasks()
    assert [task["Status"] for task in tasks] == ["RUNNING"] + ["COMPLETED"] * (MAX_ENDED_TASKS - 1)
    moments = [task["StartedTimestamp"] for task in tasks]
    assert moments == sorted(moments, reverse=True)
    assert len(world.one.ask("ListMessageMoveTasks", SourceArn=world.one.arn("dead"))["Results"]) == 1


def test_what_cannot_be_started_is_refused(world: World) -> None:
    """The error messages are those of AWS."""
    ask, arn = world.one.ask, world.one.arn
    start, no_source, no_destination = "StartMessageMoveTask", NONE.format("SourceArn"), NONE.format("DestinationArn")
    foreign = "arn:aws:sqs:us-east-1:000000000001:dead"
    for source in (arn("none"), foreign, "dead"):
        assert ask(start, 404, SourceArn=source)["message"] == no_source
        assert ask("ListMessageMoveTasks", 404, SourceArn=source)["message"] == no_source
    for destination in (arn("none"), foreign):
        assert ask(start, 404, SourceArn=arn("dead"), DestinationArn=destination)["message"] == no_destination
    refused = ask(start, 400, SourceArn=arn("jobs"))
    assert refused["message"] == "Source queue must be configured as a Dead Letter Queue."
    for more in ({"DestinationArn": arn("dead")}, *({"MaxNumberOfMessagesPerSecond": rate} for rate in (0, 501))):
        assert "InvalidParameterValue" in ask(start, 400, SourceArn=arn("dead"), **more)["__type"]
    for handle in ("no", "bm8=", "e30="):
        refused = ask("CancelMessageMoveTask", 400, TaskHandle=handle)
        assert refused["message"] == "Value for parameter TaskHandle is invalid."
