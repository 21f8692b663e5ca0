# SPDX-License-Identifier: Apache-2.0
"""FIFO queues on every store: order in groups, deduplication, and handles that expire (SQS contract 11)."""

from typing import Any

import pytest

from tests.sqs.conftest import Take
from tests.sqs.test_messages import refusal
from zq.clock import ManualClock

pytestmark = pytest.mark.every_store

EXPIRED = "Reason: The receipt handle has expired."


@pytest.fixture
def fifo(sqs: Any) -> str:
    """Return the URL of a new FIFO queue with content-based deduplication."""
    chosen = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    return str(sqs.create_queue(QueueName="jobs.fifo", Attributes=chosen)["QueueUrl"])


def send(sqs: Any, url: str, *bodies: str, group: str = "g", **more: Any) -> list[dict[str, Any]]:
    """Send each body and return the responses."""
    return [sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more) for body in bodies]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def test_a_group_is_received_in_order_and_is_busy_then(sqs: Any, fifo: str, take: Take) -> None:
    """Other groups can be received; a message shows its sequence number."""
    first, second, third = send(sqs, fifo, "1", "2", "3")
    send(sqs, fifo, "other", group="h")
    assert first["SequenceNumber"] < second["SequenceNumber"] < third["SequenceNumber"]
    assert {len(sent["SequenceNumber"]) for sent in (first, second, third)} == {20}
    received = take(fifo, MaxNumberOfMessages=2)
    assert bodies(received) == ["1", "2"]
    told = received[0]["Attributes"]
    assert (told["MessageGroupId"], told["SequenceNumber"]) == ("g", first["SequenceNumber"])
    assert bodies(take(fifo)) == ["other"]
    for message in received[::-1]:
        assert take(fifo) == []
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    assert bodies(take(fifo)) == ["3"]


def test_a_hidden_message_holds_up_those_behind_it(sqs: Any, fifo: str, take: Take, clock: ManualClock) -> None:
    """While the second of three messages is hidden, the first is available; while the first is, none is.

    Each message returns to its position.
    """
    send(sqs, fifo, "1", "2", "3")
    received = take(fifo)
    for message, seconds in zip(received, (0, 60, 0), strict=True):
        sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds)
    [again] = take(fifo)
    assert again["Body"] == "1"
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=again["ReceiptHandle"], VisibilityTimeout=90)
    clock.advance(60)
    assert take(fifo) == []
    clock.advance(30)
    assert bodies(take(fifo)) == ["1", "2", "3"]


def test_a_handle_expires_with_its_time(sqs: Any, fifo: str, take: Take, clock: ManualClock) -> None:
    """An expired handle neither deletes nor hides, whether or not another consumer has received the message."""
    send(sqs, fifo, "1")
    [message] = take(fifo)
    handle = message["ReceiptHandle"]
    clock.advance(30)
    for again in range(2):
        for call, more in ((sqs.delete_message, {}), (sqs.change_message_visibility, {"VisibilityTimeout": 5})):
            code, sentence = refusal(call, QueueUrl=fifo, ReceiptHandle=handle, **more)
            assert code == "InvalidParameterValue"
            assert sentence.endswith(EXPIRED)
        answer = sqs.delete_message_batch(QueueUrl=fifo, Entries=[{"Id": "a", "ReceiptHandle": handle}])
        assert answer["Failed"][0]["Code"] == "InvalidParameterValue"
        assert len(take(fifo)) == 1 - again
    clock.advance(30)
    [message] = take(fifo)
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])


def test_a_repeat_is_stored_once(sqs: Any, fifo: str, take: Take, clock: ManualClock) -> None:
    """Duplicates are found by body or by id, in any group, for five minutes, even if the first one was deleted."""
    [first] = send(sqs, fifo, "1")
    [again] = send(sqs, fifo, "1", group="h")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    send(sqs, fifo, "2", "3", MessageDeduplicationId="id")
    received = take(fifo)
    assert bodies(received) == ["1", "2"]
    assert received[1]["Attributes"]["MessageDeduplicationId"] == "id"
    for message in received:
        sqs.delete_message(QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    [again] = send(sqs, fifo, "1")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert take(fifo) == []
    clock.advance(300)
    assert send(sqs, fifo, "1")[0]["MessageId"] != first["MessageId"]
    assert bodies(take(fifo)) == ["1"]


def test_the_deduplication_scope_can_be_a_group(sqs: Any, fifo: str, take: Take) -> None:
    """Changing the scope or purging the queue resets the deduplication."""
    send(sqs, fifo, "1")
    scope = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=scope)
    send(sqs, fifo, "1", "1")
    send(sqs, fifo, "1", "1", group="h")
    assert len(take(fifo)) == 3
    sqs.purge_queue(QueueUrl=fifo)
    send(sqs, fifo, "1")
    assert len(take(fifo)) == 1


def test_a_batch_is_sent_entry_by_entry(sqs: Any, fifo: str, take: Take) -> None:
    """A duplicate gets the id of the first message; a failed entry does not stop later ones."""
    entries = [
        {"Id": "a", "MessageBody": "1", "MessageGroupId": "g"},
        {"Id": "b", "MessageBody": "\x01", "MessageGroupId": "g"},
        {"Id": "c", "MessageBody": "1", "MessageGroupId": "g"},
        {"Id": "d", "MessageBody": "2", "MessageGroupId": "g"},
    ]
    answer = sqs.send_message_batch(QueueUrl=fifo, Entries=entries)
    sent = {entry["Id"]: entry["MessageId"] for entry in answer["Successful"]}
    assert [entry["Id"] for entry in answer["Failed"]] == ["b"]
    assert sent["a"] == sent["c"] != sent["d"]
    assert all(entry["SequenceNumber"] for entry in answer["Successful"])
    assert bodies(take(fifo)) == ["1", "2"]


def test_an_attempt_that_is_repeated_gets_what_it_holds(sqs: Any, fifo: str, take: Take, clock: ManualClock) -> None:
    """The repeated attempt has the same handles and timeout; an id without messages in flight begins a new attempt."""
    send(sqs, fifo, "1", "2")
    first = take(fifo, ReceiveRequestAttemptId="try", MaxNumberOfMessages=1)
    clock.advance(20)
    again = take(fifo, ReceiveRequestAttemptId="try")
    assert [message["ReceiptHandle"] for message in again] == [message["ReceiptHandle"] for message in first]
    clock.advance(20)
    assert take(fifo, ReceiveRequestAttemptId="other") == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first[0]["ReceiptHandle"])
    assert bodies(take(fifo, ReceiveRequestAttemptId="try")) == ["2"]


def test_messages_of_an_attempt_are_hidden_for_at_most_twelve_hours(
    sqs: Any, fifo: str, take: Take, clock: ManualClock
) -> None:
    """The twelve hours count from the receipt, or from the last repeated attempt."""
    send(sqs, fifo, "1")
    [held] = take(fifo, ReceiveRequestAttemptId="try", VisibilityTimeout=60)
    clock.advance(30)
    wanted = {"QueueUrl": fifo, "ReceiptHandle": held["ReceiptHandle"]}
    code, sentence = refusal(sqs.change_message_visibility, **wanted, VisibilityTimeout=43_200)
    assert code == "InvalidParameterValue"
    assert "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]" in sentence
    sqs.change_message_visibility(**wanted, VisibilityTimeout=43_100)


def test_a_fifo_queue_requires_and_refuses_parameters(sqs: Any, fifo: str, queue: str) -> None:
    """The group and, without content-based deduplication, the id are required; a delay per message is refused.

    Standard queues accept only their own parameters.
    """
    assert refusal(sqs.send_message, QueueUrl=fifo, MessageBody="1") == (
        "MissingParameter",
        "The request must contain the parameter MessageGroupId.",
    )
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"ContentBasedDeduplication": "false"})
    needs = (
        "InvalidParameterValue",
        "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
    )
    entry = {"Id": "a", "MessageBody": "1"}
    assert refusal(sqs.send_message, QueueUrl=fifo, MessageBody="1", MessageGroupId="g") == needs
    grouped = [{**entry, "MessageGroupId": "g"}]
    assert refusal(sqs.send_message_batch, QueueUrl=fifo, Entries=grouped) == needs
    assert refusal(sqs.send_message_batch, QueueUrl=fifo, Entries=[entry]) == (
        "InvalidParameterValue",
        "The request must contain the parameter MessageGroupId.",
    )
    terms = {"MessageGroupId": "g", "MessageDeduplicationId": "1"}
    code, sentence = refusal(sqs.send_message, QueueUrl=fifo, MessageBody="1", DelaySeconds=1, **terms)
    assert (code, sentence.endswith("not valid for this queue type.")) == ("InvalidParameterValue", True)
    sqs.send_message(QueueUrl=fifo, MessageBody="1", DelaySeconds=0, **terms)
    for bad in ("", "x" * 129, "a b", "ä"):
        refused = {**terms, "MessageGroupId": bad}
        assert refusal(sqs.send_message, QueueUrl=fifo, MessageBody="1", **refused)[0] in (
            "InvalidParameterValue",
            "MissingParameter",
        )
    assert refusal(sqs.receive_message, QueueUrl=queue, ReceiveRequestAttemptId="a")[0] == "InvalidParameterValue"


@pytest.mark.parametrize("name", ["MessageGroupId", "MessageDeduplicationId"])
def test_an_empty_id_is_refused_and_not_taken_for_none(sqs: Any, fifo: str, queue: str, name: str) -> None:
    """The rule applies to both kinds of queues, to single messages and batches."""
    sentence = (
        f"Value  for parameter {name} is invalid. Reason: {name} can only include alphanumeric and punctuation "
        "characters. 1 to 128 in length."
    )
    for url, terms in ((queue, {}), (fifo, {"MessageGroupId": "g", "MessageDeduplicationId": "1"})):
        letter = {"MessageBody": "1", **terms, name: ""}
        assert refusal(sqs.send_message, QueueUrl=url, **letter) == ("InvalidParameterValue", sentence)
        [failed] = sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", **letter}])["Failed"]
        assert (failed["Code"], failed["Message"]) == ("InvalidParameterValue", sentence)


def test_attributes_of_a_fifo_queue(sqs: Any, fifo: str, queue: str) -> None:
    """The attributes are returned, the queue can be created again with them, and its dead-letter queue must be FIFO."""
    shown = sqs.get_queue_attributes(QueueUrl=fifo, AttributeNames=["All"])["Attributes"]
    of_fifo = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }
    assert of_fifo.items() <= shown.items()
    assert sqs.create_queue(QueueName="jobs.fifo", Attributes=of_fifo)["QueueUrl"] == fifo
    change = sqs.set_queue_attributes
    for bad in (
        {"DeduplicationScope": "all"},
        {"ContentBasedDeduplication": "maybe"},
        {"FifoThroughputLimit": "perMessageGroupId"},
        {"FifoQueue": "false"},
    ):
        assert refusal(change, QueueUrl=fifo, Attributes=bad)[0] == "InvalidAttributeValue"
    arns = [
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for url in (queue, sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"])
    ]
    policies = [f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}' for arn in arns]
    assert refusal(change, QueueUrl=fifo, Attributes={"RedrivePolicy": policies[0]})[0] == "InvalidParameterValue"
    change(QueueUrl=fifo, Attributes={"RedrivePolicy": policies[1]})


def test_a_dead_letter_keeps_its_group_which_goes_on(sqs: Any, fifo: str, take: Take, clock: ManualClock) -> None:
    dead = sqs.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"RedrivePolicy": policy})
    send(sqs, fifo, "1", "2")
    assert bodies(take(fifo, MaxNumberOfMessages=1)) == ["1"]
    clock.advance(30)
    assert bodies(take(fifo)) == ["2"]
    [letter] = take(dead)
    assert (letter["Body"], letter["Attributes"]["MessageGroupId"]) == ("1", "g")
    assert letter["Attributes"]["ApproximateReceiveCount"] == "2"
