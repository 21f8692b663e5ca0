# SPDX-License-Identifier: Apache-2.0
"""Batches of ten messages: valid entries take effect and others fail individually, or the whole request fails."""

from typing import Any

import pytest

from tests.sqs.conftest import Take
from zq.clock import ManualClock

pytestmark = pytest.mark.every_store

FORGED = "A" * 66


def codes(answer: dict[str, Any]) -> dict[str, str]:
    """Return the error codes of the failed entries by id; assert that the sender is at fault."""
    assert all(entry["SenderFault"] for entry in answer.get("Failed", []))
    return {entry["Id"]: entry["Code"] for entry in answer.get("Failed", [])}


def ids(answer: dict[str, Any]) -> list[str]:
    return [entry["Id"] for entry in answer.get("Successful", [])]


def test_a_batch_goes_through_its_life(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """The messages are sent in order, received together, hidden each for its own time, and deleted together."""
    entries = [{"Id": f"e{at}", "MessageBody": str(at)} for at in range(10)]
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert ids(sent) == [entry["Id"] for entry in entries]
    received = take()
    assert [message["Body"] for message in received] == [entry["MessageBody"] for entry in entries]
    assert [message["MessageId"] for message in received] == [each["MessageId"] for each in sent["Successful"]]
    assert [message["MD5OfBody"] for message in received] == [each["MD5OfMessageBody"] for each in sent["Successful"]]
    hidden = [
        {"Id": f"h{at}", "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 100 * (at % 2)}
        for at, message in enumerate(received)
    ]
    assert ids(sqs.change_message_visibility_batch(QueueUrl=queue, Entries=hidden)) == [each["Id"] for each in hidden]
    again = take(VisibilityTimeout=100)
    assert [message["Body"] for message in again] == ["0", "2", "4", "6", "8"]
    held = received[1::2] + again
    deleted = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(held)]
    assert len(ids(sqs.delete_message_batch(QueueUrl=queue, Entries=deleted))) == 10
    clock.advance(200)
    assert take() == []


def test_a_bad_entry_fails_individually(sqs: Any, queue: str, take: Take) -> None:
    """The other entries keep their order, whatever the error."""
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1024"})
    entries = [
        {"Id": "one", "MessageBody": "1"},
        {"Id": "empty", "MessageBody": ""},
        {"Id": "forbidden", "MessageBody": "\x00"},
        {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
        {"Id": "long", "MessageBody": "x" * 1025},
        {"Id": "attribute", "MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Odd", "StringValue": "x"}}},
        {"Id": "once", "MessageBody": "x", "MessageDeduplicationId": "x"},
        {"Id": "two", "MessageBody": "x" * 1024},
    ]
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert ids(answer) == ["one", "two"]
    failed = codes(answer)
    assert list(failed) == ["empty", "forbidden", "late", "long", "attribute", "once"]
    assert (failed.pop("empty"), failed.pop("forbidden")) == ("MissingParameter", "InvalidMessageContents")
    assert set(failed.values()) == {"InvalidParameterValue"}
    [told] = [entry["Message"] for entry in answer["Failed"] if entry["Id"] == "long"]
    assert told == "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 bytes."
    assert [len(message["Body"]) for message in take()] == [1, 1024]


def test_a_bad_handle_fails_individually(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """The handles are forged, of other queues, or of deleted messages; deleting a deleted message succeeds."""
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    for url, body in ((queue, "a"), (queue, "b"), (other, "c")):
        sqs.send_message(QueueUrl=url, MessageBody=body)
    one, gone = take()
    [foreign] = take(other)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=gone["ReceiptHandle"])
    given = [
        ("forged", FORGED),
        ("gone", gone["ReceiptHandle"]),
        ("one", one["ReceiptHandle"]),
        ("foreign", foreign["ReceiptHandle"]),
        ("again", one["ReceiptHandle"]),
    ]
    changes = [{"Id": name, "ReceiptHandle": handle, "VisibilityTimeout": 60} for name, handle in given]
    changes.append({"Id": "long", "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 43_201})
    changed = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=changes)
    invalid, value = "ReceiptHandleIsInvalid", "InvalidParameterValue"
    assert codes(changed) == {"forged": invalid, "gone": value, "foreign": invalid, "long": value}
    assert ids(changed) == ["one", "again"]
    deletes = [{"Id": name, "ReceiptHandle": handle} for name, handle in given]
    deleted = sqs.delete_message_batch(QueueUrl=queue, Entries=deletes)
    assert codes(deleted) == {"forged": invalid, "foreign": invalid}
    assert ids(deleted) == ["gone", "one", "again"]
    clock.advance(60)
    assert take() == []
    assert [message["Body"] for message in take(other)] == ["c"]
