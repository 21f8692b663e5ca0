# SPDX-License-Identifier: Apache-2.0
"""Messages of SQS on every store, sent and received by AWS's own client."""

import json
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.servers import ask
from tests.sqs.conftest import Take
from zq.client import Client, TypedValue
from zq.clock import ManualClock

pytestmark = pytest.mark.every_store

ATTRIBUTES = {
    "text": {"DataType": "String", "StringValue": "Grüße"},
    "größe.1": {"DataType": "Number.int", "StringValue": "7"},
    "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


@pytest.fixture
def rest(url: str, account: str) -> Iterator[Client]:
    """Yield a REST client of the account."""
    with Client(url, account) as client:
        yield client


def refusal(call: Any, **parameters: Any) -> tuple[str, str]:
    """Call the operation and return the code and the message of its error."""
    with pytest.raises(ClientError) as refused:
        call(**parameters)
    error = refused.value.response["Error"]
    return error["Code"], error["Message"]


def test_what_is_sent_is_received(sqs: Any, queue: str, take: Take, account: str, clock: ManualClock) -> None:
    """Body, attributes, checksums and system attributes are returned."""
    before = clock.now()
    body = 'Grüße,\r\n\tein "Job" \U0001f600'
    sent = sqs.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=ATTRIBUTES, MessageGroupId="g!")
    assert "SequenceNumber" not in sent
    [message] = take()
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == body
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert message["MessageAttributes"] == ATTRIBUTES
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    system = message["Attributes"]
    assert (system["SenderId"], system["MessageGroupId"]) == (account, "g!")
    assert system["ApproximateReceiveCount"] == "1"
    assert before * 1000 <= int(system["SentTimestamp"]) <= int(system["ApproximateFirstReceiveTimestamp"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    clock.advance(60)
    assert take() == []


def test_a_hidden_message_comes_back_with_a_higher_count(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """The message is available after its timeout, or at once if that is set to 0; its first receipt time is kept."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [first] = take()
    assert take() == []
    clock.advance(30)
    [second] = take(VisibilityTimeout=600)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=second["ReceiptHandle"], VisibilityTimeout=0)
    [third] = take(VisibilityTimeout=0)
    [fourth] = take()
    received = [first, second, third, fourth]
    assert [message["Attributes"]["ApproximateReceiveCount"] for message in received] == ["1", "2", "3", "4"]
    assert len({message["Attributes"]["ApproximateFirstReceiveTimestamp"] for message in received}) == 1
    assert len({message["ReceiptHandle"] for message in received}) == 4


def test_a_holder_prolongs_and_shortens_its_hold(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """Each new timeout counts from its request."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take(VisibilityTimeout=10)
    for seconds in (100, 50):
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=held["ReceiptHandle"], VisibilityTimeout=seconds)
        clock.advance(49)
        assert take() == []
    clock.advance(1)
    assert [message["Body"] for message in take()] == ["a"]


def test_a_message_is_hidden_for_at_most_twelve_hours(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """The twelve hours count from the receipt."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take(VisibilityTimeout=60)
    clock.advance(30)
    wanted = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    code, sentence = refusal(sqs.change_message_visibility, **wanted, VisibilityTimeout=43_200)
    assert code == "InvalidParameterValue"
    assert "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]" in sentence
    entry = {"Id": "a", "ReceiptHandle": held["ReceiptHandle"], "VisibilityTimeout": 43_200}
    [failed] = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=[entry])["Failed"]
    assert (failed["Code"], failed["Message"]) == (code, sentence)
    sqs.change_message_visibility(**wanted, VisibilityTimeout=43_100)


@pytest.mark.every_store
def test_the_twelve_hours_of_a_message_go_on_when_its_time_is_up(
    sqs: Any, queue: str, take: Take, clock: ManualClock
) -> None:
    """The last handle can hide the message again, for the rest of the twelve hours."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take(VisibilityTimeout=0)
    clock.advance(30)
    wanted = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    assert "[43200 seconds]" in refusal(sqs.change_message_visibility, **wanted, VisibilityTimeout=43_171)[1]
    sqs.change_message_visibility(**wanted, VisibilityTimeout=43_170)
    assert take() == []


@pytest.mark.every_store
def test_a_message_that_was_received_for_no_time_can_be_hidden_and_deleted(sqs: Any, queue: str, take: Take) -> None:
    """The last receiver may do so until another one has received the message (SQS 7)."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take(VisibilityTimeout=0)
    handle = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    sqs.change_message_visibility(**handle, VisibilityTimeout=60)
    assert take() == []
    sqs.change_message_visibility(**handle, VisibilityTimeout=0)
    [held] = take(VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=held["ReceiptHandle"])
    assert take() == []


def test_a_late_receiver_deletes_and_hides_if_no_other_received(
    sqs: Any, queue: str, take: Take, clock: ManualClock
) -> None:
    """No other consumer has received the message since."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take()
    wanted = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    clock.advance(31)
    sqs.change_message_visibility(**wanted, VisibilityTimeout=60)
    assert take() == []
    clock.advance(61)
    sqs.delete_message(**wanted)
    assert take() == []


def test_a_stale_handle_does_nothing(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """A message that another consumer has received is neither deleted nor hidden, but the requests succeed."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [stale] = take()
    clock.advance(30)
    [held] = take(VisibilityTimeout=50)
    wanted = {"QueueUrl": queue, "ReceiptHandle": stale["ReceiptHandle"]}
    sqs.change_message_visibility(**wanted, VisibilityTimeout=0)
    assert take() == []
    sqs.change_message_visibility(**wanted, VisibilityTimeout=5000)
    sqs.delete_message(**wanted)
    clock.advance(50)
    [again] = take(VisibilityTimeout=50)
    assert again["MessageId"] == held["MessageId"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=again["ReceiptHandle"])
    clock.advance(50)
    assert take() == []


def test_a_deleted_message_is_deleted_again_but_not_hidden(sqs: Any, queue: str, take: Take) -> None:
    """Deletes are idempotent."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take()
    wanted = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    for _ in range(2):
        sqs.delete_message(**wanted)
    code, sentence = refusal(sqs.change_message_visibility, **wanted, VisibilityTimeout=30)
    assert code == "InvalidParameterValue"
    assert sentence.endswith("Reason: Message does not exist or is not available for visibility timeout change.")


def test_a_message_expires_with_its_retention_even_in_flight(
    sqs: Any, queue: str, take: Take, clock: ManualClock
) -> None:
    """Receiving a message does not prolong its retention."""
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MessageRetentionPeriod": "60"})
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take(VisibilityTimeout=600)
    clock.advance(61)
    wanted = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    assert refusal(sqs.change_message_visibility, **wanted, VisibilityTimeout=0)[0] == "InvalidParameterValue"


def test_any_message_may_be_delayed(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """The delay is that of the message or of its queue; a delay of 0 overrides the queue's."""
    sqs.send_message(QueueUrl=queue, MessageBody="own", DelaySeconds=20)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "10"})
    sqs.send_message(QueueUrl=queue, MessageBody="queue's")
    sqs.send_message(QueueUrl=queue, MessageBody="none", DelaySeconds=0)
    seen = []
    for _ in range(3):
        seen.append([message["Body"] for message in take(VisibilityTimeout=100)])
        clock.advance(10)
    assert seen == [["none"], ["queue's"], ["own"]]


def test_long_polls_receive_new_messages(sqs: Any, queue: str, take: Take) -> None:
    """Each message ends one long poll, whether the message or the poll comes first."""
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(take, WaitTimeSeconds=20, MaxNumberOfMessages=1) for _ in range(4)]
        for number in range(4):
            sqs.send_message(QueueUrl=queue, MessageBody=str(number))
        bodies = sorted(message["Body"] for future in waiting for message in future.result(30))
    assert bodies == ["0", "1", "2", "3"]


def test_a_long_poll_without_messages_is_empty(queue: str, take: Take) -> None:
    """The response has no messages, and is not an error."""
    assert take(WaitTimeSeconds=1) == []


def test_a_dead_letter_keeps_all_and_goes_on_counting(sqs: Any, queue: str, take: Take, clock: ManualClock) -> None:
    """The message is moved at the third attempt; in the dead-letter queue it shows its source."""
    grave = sqs.create_queue(QueueName="grave")["QueueUrl"]
    arns = [
        sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        for url in (queue, grave)
    ]
    policy = json.dumps({"deadLetterTargetArn": arns[1], "maxReceiveCount": 2})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    sent = sqs.send_message(QueueUrl=queue, MessageBody="a", MessageAttributes=ATTRIBUTES, MessageGroupId="g")
    received = []
    for _ in range(2):
        received += take()
        clock.advance(30)
    assert take() == []
    received += take(grave, VisibilityTimeout=0)
    received += take(grave)
    assert [message["Attributes"]["ApproximateReceiveCount"] for message in received] == ["1", "2", "3", "4"]
    for kept in ("SentTimestamp", "ApproximateFirstReceiveTimestamp", "MessageGroupId", "SenderId"):
        assert len({message["Attributes"][kept] for message in received}) == 1, kept
    last = received[-1]
    assert (last["MessageId"], last["Body"], last["MessageAttributes"]) == (sent["MessageId"], "a", ATTRIBUTES)
    assert last["Attributes"]["DeadLetterQueueSourceArn"] == arns[0]
    assert "DeadLetterQueueSourceArn" not in received[0]["Attributes"]


def test_both_interfaces_see_the_same_messages(
    sqs: Any, queue: str, take: Take, account: str, url: str, rest: Client
) -> None:
    """REST reads a body of SQS as a string; SQS reads a string of REST unchanged, and other bodies as JSON."""
    sqs.send_message(QueueUrl=queue, MessageBody='{"a": 1}', MessageAttributes={"text": ATTRIBUTES["text"]})
    headers = {"X-Project-ID": account}
    page = ask(url, "GET", "/v2/queues/jobs/messages?echo=true&detailed=true", headers=headers).document
    [seen] = page["messages"]
    assert seen["body"] == '{"a": 1}'
    assert seen["attributes"] == {"text": "Grüße"}
    for body in ("plain", {"b": [1, None]}):
        rest.queue("jobs").post(body)
    assert sorted(message["Body"] for message in take()) == ["plain", '{"a": 1}', '{"b":[1,null]}']


def test_a_paused_queue_gives_and_takes_nothing(sqs: Any, queue: str, take: Take, rest: Client) -> None:
    """The messages are available after the queue is resumed."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    jobs = rest.queue("jobs")
    jobs.pause()
    assert take() == []
    assert refusal(sqs.send_message, QueueUrl=queue, MessageBody="b")[0].endswith("UnsupportedOperation")
    jobs.resume()
    assert [message["Body"] for message in take()] == ["a"]


def test_attributes_are_the_same_over_rest(sqs: Any, queue: str, take: Take, rest: Client) -> None:
    """The attributes have the same types in both directions; clients verify the checksums."""
    sqs.send_message(QueueUrl=queue, MessageBody="b", MessageAttributes=ATTRIBUTES)
    shown = {
        "text": "Grüße",
        "größe.1": TypedValue("Number.int", "7"),
        "raw": TypedValue("Binary", b64encode(b"\x00\xff").decode()),
    }
    [message] = rest.queue("jobs").pop()
    assert message.attributes == shown
    rest.queue("jobs").post("b", attributes={**shown, "raw": b"\x00\xff", "count": 7})
    [received] = take()
    assert received["MessageAttributes"] == {**ATTRIBUTES, "count": {"DataType": "Number", "StringValue": "7"}}


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(("room", "kept"), [(72, {"traceparent"}), (71, set())])
def test_a_trace_context_without_room_in_the_message_size_is_omitted(
    sqs: Any, queue: str, take: Take, room: int, kept: set[str]
) -> None:
    """The headers of a request never make its message too large."""

    def add(request: Any, **_: Any) -> None:
        request.headers["traceparent"] = PARENT
        request.headers["X-Amzn-Trace-Id"] = "x" * 1025

    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1024"})
    sqs.meta.events.register("before-sign.sqs.SendMessage", add)
    sqs.send_message(QueueUrl=queue, MessageBody="b" * (1024 - room))
    sqs.meta.events.unregister("before-sign.sqs.SendMessage", add)
    [message] = take()
    assert message.get("MessageAttributes", {}).keys() == kept
    assert "AWSTraceHeader" not in message["Attributes"]


@pytest.mark.parametrize("own", [{}, {"traceparent": {"DataType": "String", "StringValue": "own"}}])
def test_a_send_keeps_the_trace_context_of_its_request(sqs: Any, queue: str, take: Take, own: Any) -> None:
    """A trace context of the message takes precedence; the one of the request is not part of the sender's checksum."""

    def add(request: Any, **_: Any) -> None:
        request.headers["traceparent"] = PARENT

    sqs.meta.events.register("before-sign.sqs.SendMessage", add)
    sent = sqs.send_message(QueueUrl=queue, MessageBody="b", MessageAttributes=own)
    sqs.meta.events.unregister("before-sign.sqs.SendMessage", add)
    assert ("MD5OfMessageAttributes" in sent) == bool(own)
    [message] = take()
    assert message["MessageAttributes"] == (own or {"traceparent": {"DataType": "String", "StringValue": PARENT}})
    assert len(message["MessageAttributes"]) == 1
