# SPDX-License-Identifier: Apache-2.0
"""A walk over all operations of SQS, for any client.

Each operation is done once and refused with at least one error code. ``test_walk.py`` runs it with boto3, and
``tests/campaign/packages/test_sqs_clients.py`` with the command line.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from zq.sqs.operations import OPERATIONS

ATTRIBUTE = {"colour": {"DataType": "String", "StringValue": "red"}}
Ask = Callable[..., dict[str, Any]]
"""A function that sends a request: an operation and its parameters by name. Raises ``Refused``."""


class Refused(Exception):
    """A refused request, with its error code."""


class Walk:
    """A walk of an account without queues.

    ``told``: the error codes of each operation, ``""`` if it was done.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.told: dict[str, set[str]] = defaultdict(set)

    def make(self) -> None:
        """Run the walk and delete all its queues. Raises ``AssertionError`` if a result differs."""
        jobs, dead = (self.done("CreateQueue", QueueName=name)["QueueUrl"] for name in ("jobs", "dead"))
        self._queues(jobs)
        self._tags_and_permissions(jobs)
        self._one_message(jobs)
        self._batches(jobs)
        self._groups()
        self._dead_letters(jobs, dead)
        self._ends(jobs, dead)

    def done(self, operation: str, **given: Any) -> dict[str, Any]:
        """Send a request that must succeed and return the response."""
        try:
            answer = self._ask(operation, **given)
        except Refused as error:
            raise AssertionError(f"{operation} was refused with {error}.") from error
        self.told[operation].add("")
        return answer

    def refused(self, code: str, operation: str, **given: Any) -> None:
        """Send a request that must fail with this code, without the service's name."""
        try:
            answer = self._ask(operation, **given)
        except Refused as error:
            told = str(error).removeprefix("AWS.SimpleQueueService.")
        else:
            raise AssertionError(f"{operation} was done and not refused with {code}: {answer}")
        assert told == code, f"{operation} was refused with {told} and not with {code}."
        self.told[operation].add(code)

    def _received(self, url: str, **more: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.done("ReceiveMessage", QueueUrl=url, **more).get("Messages", [])
        return found

    def _attributes(self, url: str, *names: str) -> dict[str, str]:
        found: dict[str, str] = self.done("GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"]
        return found

    def _queues(self, jobs: str) -> None:
        self.refused("QueueAlreadyExists", "CreateQueue", QueueName="jobs", Attributes={"DelaySeconds": "1"})
        self.refused("InvalidParameterValue", "CreateQueue", QueueName="a.b")
        assert self.done("GetQueueUrl", QueueName="jobs")["QueueUrl"] == jobs
        self.refused("NonExistentQueue", "GetQueueUrl", QueueName="none")
        page = self.done("ListQueues", MaxResults=1)
        rest = self.done("ListQueues", MaxResults=10, NextToken=page["NextToken"])
        assert rest["QueueUrls"] == [jobs]
        assert self.done("ListQueues", QueueNamePrefix="jo")["QueueUrls"] == [jobs]
        self.refused("InvalidParameterValue", "ListQueues", MaxResults=1, NextToken="?")
        self.done("SetQueueAttributes", QueueUrl=jobs, Attributes={"VisibilityTimeout": "600"})
        self.refused("InvalidAttributeValue", "SetQueueAttributes", QueueUrl=jobs, Attributes={"DelaySeconds": "901"})
        self.refused("InvalidAttributeName", "SetQueueAttributes", QueueUrl=jobs, Attributes={"Colour": "red"})
        assert self._attributes(jobs, "VisibilityTimeout") == {"VisibilityTimeout": "600"}
        self.refused("InvalidAttributeName", "GetQueueAttributes", QueueUrl=jobs, AttributeNames=["Colour"])

    def _tags_and_permissions(self, jobs: str) -> None:
        self.done("TagQueue", QueueUrl=jobs, Tags={"a": "1", "b": "2"})
        self.refused("InvalidParameterValue", "TagQueue", QueueUrl=jobs, Tags={"k" * 129: ""})
        self.done("UntagQueue", QueueUrl=jobs, TagKeys=["a"])
        self.refused("NonExistentQueue", "UntagQueue", QueueUrl=f"{jobs}-2", TagKeys=["a"])
        assert self.done("ListQueueTags", QueueUrl=jobs)["Tags"] == {"b": "2"}
        self.refused("NonExistentQueue", "ListQueueTags", QueueUrl=f"{jobs}-2")
        granted = {"QueueUrl": jobs, "Label": "one", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
        self.done("AddPermission", **granted)
        self.refused("InvalidParameterValue", "AddPermission", **granted)
        self.done("RemovePermission", QueueUrl=jobs, Label="one")
        self.refused("InvalidParameterValue", "RemovePermission", QueueUrl=jobs, Label="one")

    def _one_message(self, jobs: str) -> None:
        self.done("SendMessage", QueueUrl=jobs, MessageBody="Grüße", MessageAttributes=ATTRIBUTE)
        self.refused("InvalidMessageContents", "SendMessage", QueueUrl=jobs, MessageBody="\x01")
        self.refused("MissingParameter", "SendMessage", QueueUrl=jobs, MessageBody="")
        (message,) = self._received(jobs, MessageAttributeNames=["All"], AttributeNames=["All"])
        assert (message["Body"], message["MessageAttributes"]) == ("Grüße", ATTRIBUTE)
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"
        assert self._received(jobs) == []
        self.refused("InvalidParameterValue", "ReceiveMessage", QueueUrl=jobs, MaxNumberOfMessages=11)
        named = {"QueueUrl": jobs, "ReceiptHandle": message["ReceiptHandle"]}
        self.done("ChangeMessageVisibility", **named, VisibilityTimeout=0)
        self.refused("InvalidParameterValue", "ChangeMessageVisibility", **named, VisibilityTimeout=43201)
        (message,) = self._received(jobs)
        self.done("DeleteMessage", QueueUrl=jobs, ReceiptHandle=message["ReceiptHandle"])
        self.done("DeleteMessage", QueueUrl=jobs, ReceiptHandle=message["ReceiptHandle"])
        self.refused("ReceiptHandleIsInvalid", "DeleteMessage", QueueUrl=jobs, ReceiptHandle="none")

    def _batches(self, jobs: str) -> None:
        """Check the result of each entry, and invalid batches."""
        bodies = [("a", "1"), ("b", "\x01"), ("c", "3")]
        sent = [{"Id": id, "MessageBody": body} for id, body in bodies]
        self._halves("SendMessageBatch", jobs, sent, "ac", "b InvalidMessageContents")
        messages = self._received(jobs, MaxNumberOfMessages=10)
        assert sorted(message["Body"] for message in messages) == ["1", "3"]
        handles = [message["ReceiptHandle"] for message in messages]
        held = [{"Id": id, "ReceiptHandle": handle} for id, handle in zip("abc", [*handles, "none"], strict=True)]
        hidden = [{**entry, "VisibilityTimeout": 900} for entry in held]
        self._halves("ChangeMessageVisibilityBatch", jobs, hidden, "ab", "c ReceiptHandleIsInvalid")
        self._halves("DeleteMessageBatch", jobs, held, "ab", "c ReceiptHandleIsInvalid")
        self.refused("EmptyBatchRequest", "SendMessageBatch", QueueUrl=jobs, Entries=[])
        eleven = [{"Id": str(number), "ReceiptHandle": "none"} for number in range(11)]
        self.refused("TooManyEntriesInBatchRequest", "DeleteMessageBatch", QueueUrl=jobs, Entries=eleven)
        self.refused("BatchEntryIdsNotDistinct", "ChangeMessageVisibilityBatch", QueueUrl=jobs, Entries=hidden[:1] * 2)
        assert self._attributes(jobs, "ApproximateNumberOfMessagesNotVisible").popitem()[1] == "0"

    def _halves(self, operation: str, url: str, entries: list[Any], good: str, failure: str) -> None:
        answer = self.done(operation, QueueUrl=url, Entries=entries)
        assert "".join(entry["Id"] for entry in answer["Successful"]) == good
        assert [f"{entry['Id']} {entry['Code']}" for entry in answer["Failed"]] == [failure]

    def _groups(self) -> None:
        """Check a FIFO queue: a duplicate is stored once, and a group is received in order."""
        chosen = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        self.refused("InvalidParameterValue", "CreateQueue", QueueName="steps", Attributes=chosen)
        steps = self.done("CreateQueue", QueueName="steps.fifo", Attributes=chosen)["QueueUrl"]
        self.refused("MissingParameter", "SendMessage", QueueUrl=steps, MessageBody="1")
        for body in ("1", "1", "2"):
            self.done("SendMessage", QueueUrl=steps, MessageBody=body, MessageGroupId="g")
        assert [message["Body"] for message in self._received(steps, MaxNumberOfMessages=10)] == ["1", "2"]
        self.done("DeleteQueue", QueueUrl=steps)

    def _dead_letters(self, jobs: str, dead: str) -> None:
        """Start a move task and, because it takes some time, find and cancel it."""
        to, source = (self._attributes(url, "QueueArn")["QueueArn"] for url in (jobs, dead))
        self.refused("InvalidParameterValue", "StartMessageMoveTask", SourceArn=source)
        policy = json.dumps({"deadLetterTargetArn": source, "maxReceiveCount": 3})
        self.done("SetQueueAttributes", QueueUrl=jobs, Attributes={"RedrivePolicy": policy})
        assert self.done("ListDeadLetterSourceQueues", QueueUrl=dead)["queueUrls"] == [jobs]
        self.refused("NonExistentQueue", "ListDeadLetterSourceQueues", QueueUrl=f"{dead}-2")
        for _ in range(6):
            sent = [{"Id": str(number), "MessageBody": "x"} for number in range(10)]
            assert len(self.done("SendMessageBatch", QueueUrl=dead, Entries=sent)["Successful"]) == 10
        move = {"SourceArn": source, "DestinationArn": to, "MaxNumberOfMessagesPerSecond": 1}
        handle = self.done("StartMessageMoveTask", **move)["TaskHandle"]
        self.refused("InvalidParameterValue", "StartMessageMoveTask", **move)
        (task,) = self.done("ListMessageMoveTasks", SourceArn=source)["Results"]
        assert (task["Status"], task["TaskHandle"]) == ("RUNNING", handle)
        self.refused("ResourceNotFoundException", "ListMessageMoveTasks", SourceArn=f"{source}-2")
        assert self.done("CancelMessageMoveTask", TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] < 60
        self.refused("InvalidParameterValue", "CancelMessageMoveTask", TaskHandle="none")

    def _ends(self, *urls: str) -> None:
        for url in urls:
            self.done("PurgeQueue", QueueUrl=url)
            self.refused("PurgeQueueInProgress", "PurgeQueue", QueueUrl=url)
            self.done("DeleteQueue", QueueUrl=url)
            self.refused("NonExistentQueue", "DeleteQueue", QueueUrl=url)
        assert self.done("ListQueues") == {}


def complete(walk: Walk) -> None:
    """Raise ``AssertionError`` unless each operation was done and refused."""
    missed = [name for name in OPERATIONS if "" not in walk.told[name] or len(walk.told[name]) < 2]
    assert not missed, f"Not done, or never refused: {missed}"
