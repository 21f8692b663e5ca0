# SPDX-License-Identifier: Apache-2.0
"""Errors of requests on messages, with their texts, and the same operations in the query protocol."""

from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import pytest

from tests.sqs.conftest import Take
from tests.sqs.test_batches import FORGED, ids
from tests.sqs.test_messages import refusal

pytestmark = pytest.mark.one_store
NAMESPACE = {"q": "http://queue.amazonaws.com/doc/2012-11-05/"}
LARGEST = 1_048_576
VERBS: dict[str, dict[str, Any]] = {
    "send_message": {"MessageBody": "x"},
    "delete_message": {"ReceiptHandle": FORGED},
    "change_message_visibility": {"ReceiptHandle": FORGED, "VisibilityTimeout": 0},
}


@pytest.mark.parametrize(
    ("given", "code", "sentence"),
    [
        ({"MessageBody": ""}, "MissingParameter", "The request must contain the parameter MessageBody."),
        ({"MessageBody": "\x0b"}, "InvalidMessageContents", "Invalid characters found"),
        ({"MessageBody": "\ufffe"}, "InvalidMessageContents", "Invalid characters found"),
        (
            {"MessageBody": "x" * (LARGEST + 1)},
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.",
        ),
        (
            {
                "MessageBody": "x" * (LARGEST - 7),
                "MessageAttributes": {"a": {"DataType": "String", "StringValue": "x"}},
            },
            "InvalidParameterValue",
            "Message must be shorter than",
        ),
        (
            {"MessageBody": "x", "DelaySeconds": 901},
            "InvalidParameterValue",
            "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
        ),
        ({"MessageBody": "x", "DelaySeconds": -1}, "InvalidParameterValue", "Value -1 for parameter DelaySeconds"),
        (
            {"MessageBody": "x", "MessageGroupId": "a b"},
            "InvalidParameterValue",
            "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        ),
        (
            {"MessageBody": "x", "MessageDeduplicationId": "a"},
            "InvalidParameterValue",
            "The request includes a parameter that is not valid for this queue type.",
        ),
        (
            {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "String", "StringValue": ""}}},
            "InvalidParameterValue",
            "Message (user) attribute 'a' must contain a non-empty value of type 'String'.",
        ),
        (
            {"MessageBody": "x", "MessageSystemAttributes": {"a": {"DataType": "String", "StringValue": "x"}}},
            "InvalidParameterValue",
            "Message system attribute name 'a' is invalid.",
        ),
    ],
)
def test_an_invalid_message_is_refused(sqs: Any, queue: str, take: Take, given: Any, code: str, sentence: str) -> None:
    """The request is refused, and nothing is sent."""
    refused = refusal(sqs.send_message, QueueUrl=queue, **given)
    assert refused[0] == code
    assert sentence in refused[1]
    assert take() == []


def test_the_largest_message_is_sent(sqs: Any, queue: str, take: Take) -> None:
    """The message has a mebibyte of UTF-8, whatever its size in JSON."""
    body = '"' * (LARGEST - 2) + "é"
    sqs.send_message(QueueUrl=queue, MessageBody=body)
    [message] = take()
    assert message["Body"] == body


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"MaxNumberOfMessages": 0}, "MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
        ({"MaxNumberOfMessages": 11}, "Value 11 for parameter MaxNumberOfMessages is invalid."),
        ({"WaitTimeSeconds": 21}, "WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
        ({"WaitTimeSeconds": -1}, "Value -1 for parameter WaitTimeSeconds"),
        ({"VisibilityTimeout": 43_201}, "Value 43201 for parameter VisibilityTimeout"),
        ({"VisibilityTimeout": -1}, "Value -1 for parameter VisibilityTimeout"),
        ({"MessageSystemAttributeNames": ["Odd"]}, "Unknown Attribute Odd."),
    ],
)
def test_an_invalid_receive_is_refused(sqs: Any, queue: str, take: Take, given: Any, sentence: str) -> None:
    """The request is refused, and nothing is received."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    assert sentence in refusal(sqs.receive_message, QueueUrl=queue, **given)[1]
    [message] = take()
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


@pytest.mark.parametrize("handle", ["x", "A" * 66, "é"])
def test_an_invalid_handle_is_refused(sqs: Any, queue: str, handle: str) -> None:
    """The handle is refused for deleting and for hiding."""
    told = ("ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.')
    assert refusal(sqs.delete_message, QueueUrl=queue, ReceiptHandle=handle) == told
    wanted = {"QueueUrl": queue, "ReceiptHandle": handle, "VisibilityTimeout": 0}
    assert refusal(sqs.change_message_visibility, **wanted) == told


def test_a_queue_is_not_made_by_sending(sqs: Any, queue: str, take: Take) -> None:
    """No other operation creates a queue either, and the cached state of a deleted queue does not bring it back."""
    sqs.send_message(QueueUrl=queue, MessageBody="a")
    [held] = take()
    sqs.delete_queue(QueueUrl=queue)
    for verb, given in VERBS.items():
        if "ReceiptHandle" in given:
            given = given | {"ReceiptHandle": held["ReceiptHandle"]}
        for refused in (
            refusal(getattr(sqs, verb), QueueUrl=queue, **given),
            refusal(getattr(sqs, f"{verb}_batch"), QueueUrl=queue, Entries=[{"Id": "a", **given}]),
        ):
            assert refused[0] == "AWS.SimpleQueueService.NonExistentQueue", verb
    assert refusal(sqs.receive_message, QueueUrl=queue)[0] == "AWS.SimpleQueueService.NonExistentQueue"
    assert "QueueUrls" not in sqs.list_queues()


def test_a_receiver_chooses_attributes(sqs: Any, queue: str, take: Take) -> None:
    """Checksums cover the returned attributes.

    System attributes are also returned under their old parameter; without names, none are.
    """
    values = {name: {"DataType": "String", "StringValue": name} for name in ("ab", "abc", "x")}
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-2-3"}}
    sqs.send_message(QueueUrl=queue, MessageBody="a", MessageAttributes=values, MessageSystemAttributes=trace)
    plain = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0)["Messages"][0]
    assert plain.keys() == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}
    names = {"AttributeNames": ["AWSTraceHeader"], "MessageAttributeNames": ["ab.*"]}
    some = sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0, **names)["Messages"][0]
    assert some["Attributes"] == {"AWSTraceHeader": "Root=1-2-3"}
    assert some["MessageAttributes"].keys() == {"ab", "abc"}
    [everything] = take()
    assert everything["MD5OfMessageAttributes"] != some["MD5OfMessageAttributes"]


@pytest.mark.parametrize("verb", VERBS)
def test_an_invalid_batch_does_nothing(sqs: Any, queue: str, take: Take, verb: str) -> None:
    """The batch has no entry, eleven, a repeated id, or an invalid id."""

    def refused(*names: str) -> tuple[str, str]:
        entries = [{"Id": name, **VERBS[verb]} for name in names]
        return refusal(getattr(sqs, f"{verb}_batch"), QueueUrl=queue, Entries=entries)

    own = "AWS.SimpleQueueService."
    assert refused()[0] == f"{own}EmptyBatchRequest"
    many = "Maximum number of entries per request are 10. You have sent 11."
    assert refused(*(str(at) for at in range(11))) == (f"{own}TooManyEntriesInBatchRequest", many)
    assert refused("a", "b", "b", "a") == (f"{own}BatchEntryIdsNotDistinct", "Id b repeated.")
    for name in ("", "a b", "é", "x" * 81):
        assert refused("good", name)[0] == f"{own}InvalidBatchEntryId"
    assert take() == []


def test_a_batch_is_at_most_a_mebibyte(sqs: Any, queue: str, take: Take) -> None:
    """Bodies and attributes count; a larger batch sends nothing."""
    half = [{"Id": str(at), "MessageBody": "x" * 524_288} for at in range(2)]
    assert len(ids(sqs.send_message_batch(QueueUrl=queue, Entries=half))) == 2
    assert len(take()) == 2
    half[1]["MessageBody"] += "x"
    code, sentence = refusal(sqs.send_message_batch, QueueUrl=queue, Entries=half)
    assert code == "AWS.SimpleQueueService.BatchRequestTooLong"
    assert sentence == "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    assert take() == []


def form(url: str, account: str, **fields: Any) -> ElementTree.Element:
    """Send a form and return the response of the query protocol."""
    credential = (
        f"AWS4-HMAC-SHA256 Credential={account}/20260101/us-east-1/sqs/aws4_request, SignedHeaders=, Signature="
    )
    request = Request(f"{url}/", urlencode(fields).encode(), {"Authorization": credential})
    with urlopen(request, timeout=30) as answer:
        return ElementTree.fromstring(answer.read())


def told(answer: ElementTree.Element, name: str) -> list[str | None]:
    """Return the texts of all elements with this name."""
    return [element.text for element in answer.iterfind(f".//q:{name}", NAMESPACE)]


def test_the_query_protocol_does_the_same(url: str, queue: str, account: str) -> None:
    """The query protocol sends, receives, hides and deletes with forms and XML."""
    sent = form(
        url,
        account,
        **{
            "Action": "SendMessageBatch",
            "QueueUrl": queue,
            "SendMessageBatchRequestEntry.1.Id": "one",
            "SendMessageBatchRequestEntry.1.MessageBody": "a\r\n<b>",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "MyAttribute",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "String",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue": "foobar",
            "SendMessageBatchRequestEntry.2.Id": "two",
            "SendMessageBatchRequestEntry.2.MessageBody": "x",
            "SendMessageBatchRequestEntry.2.DelaySeconds": "901",
        },
    )
    assert told(sent, "SendMessageBatchResultEntry/q:Id") == ["one"]
    assert told(sent, "MD5OfMessageAttributes") == ["adb59cd4678ea5a855436b949cd07ab6"]
    assert told(sent, "BatchResultErrorEntry/q:Code") == ["InvalidParameterValue"]
    wanted = {"AttributeName.1": "All", "MessageAttributeName.1": "My.*", "MaxNumberOfMessages": "10"}
    received = form(url, account, Action="ReceiveMessage", QueueUrl=queue, **wanted)
    assert told(received, "Message/q:Body") == ["a\r\n<b>"]
    assert told(received, "MessageAttribute/q:Value/q:StringValue") == ["foobar"]
    assert told(received, "MD5OfMessageAttributes") == ["adb59cd4678ea5a855436b949cd07ab6"]
    assert "ApproximateReceiveCount" in told(received, "Attribute/q:Name")
    [handle] = told(received, "ReceiptHandle")
    held = {"QueueUrl": queue, "ReceiptHandle": handle}
    form(url, account, Action="ChangeMessageVisibility", VisibilityTimeout="0", **held)
    assert told(form(url, account, Action="ReceiveMessage", QueueUrl=queue), "Body") == ["a\r\n<b>"]
    form(url, account, Action="DeleteMessage", **held)
    entry = {"DeleteMessageBatchRequestEntry.1.Id": "d", "DeleteMessageBatchRequestEntry.1.ReceiptHandle": handle}
    deleted = form(url, account, Action="DeleteMessageBatch", QueueUrl=queue, **entry)
    assert told(deleted, "DeleteMessageBatchResultEntry/q:Id") == ["d"]
