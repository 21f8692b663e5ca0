# SPDX-License-Identifier: Apache-2.0
"""Both protocols on the wire: distinction from REST, forms and XML, lenient JSON, and errors.

See SQS contract 1, 4.
"""

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import falcon
import pytest
from botocore.parsers import create_parser
from falcon.testing import create_environ
from webtest import TestApp, TestResponse

from tests.features import sqs as sqs_of
from tests.http.stores import BrokenStore, bug, down, untouched
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.sqs import errors, json_protocol, query_protocol, sigv4
from zq.sqs.authentication import _translate_refusals
from zq.sqs.endpoint import READ_ONLY_OPERATIONS
from zq.sqs.operations import OPERATIONS, SERVICE_OPERATIONS
from zq.sqs.sigv4 import SignatureRejection

Serve = Callable[..., TestApp]
NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
TARGET = "AmazonSQS."


class Caller:
    """The requests of one account to an application."""

    def __init__(self, app: TestApp, account: str) -> None:
        self.app = app
        self._key = f"AWS4-HMAC-SHA256 Credential={account}/20261125/eu-north-1/sqs/aws4_request, SignedHeaders=host"

    def json(self, operation: str, path: str = "/", status: int = 200, **given: Any) -> TestResponse:
        headers = {"X-Amz-Target": TARGET + operation, "Authorization": self._key}
        body = json.dumps(given).encode()
        return self.app.post(path, body, headers, content_type=json_protocol.MEDIA, status=status)

    def form(self, form: str | dict[str, Any], path: str = "/", status: int = 200, **headers: str) -> TestResponse:
        body = form if isinstance(form, str) else urlencode(form)
        return self.app.post(path, body, {"Authorization": self._key, **headers}, status=status)

    def link(self, form: dict[str, Any], path: str = "/", status: int = 200, **headers: str) -> TestResponse:
        headers = {"Authorization": self._key, **headers}
        return self.app.get(f"{path}?{urlencode(form)}", headers=headers, status=status)


@pytest.fixture
def caller(served: Serve, account: str) -> Caller:
    return Caller(served(), account)


def texts(response: TestResponse, path: str) -> list[str]:
    """Return the texts of the elements with this path in a response of the query protocol."""
    found = ElementTree.fromstring(response.body).findall("/".join(NAMESPACE + part for part in path.split("/")))
    return [element.text or "" for element in found]


def said(response: TestResponse) -> Any:
    """Return the document of a response of the JSON protocol."""
    assert response.content_type == json_protocol.MEDIA
    return json.loads(response.body)


def attribute(caller: Caller, queue: str, name: str) -> str:
    shown = said(caller.json("GetQueueAttributes", QueueUrl=queue, AttributeNames=[name]))
    found: str = shown["Attributes"][name]
    return found


KMS = "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
ENTRY_ID = (
    "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
    "It can be at most 80 letters long."
)
OWN = "AWS.SimpleQueueService."


def translate(refusal: SignatureRejection) -> errors.SqsError:
    """Return the error that a client receives for a rejected signature."""
    with pytest.raises(errors.SqsError) as raised, _translate_refusals():
        raise refusal
    return raised.value


ROWS = [
    # The error; its shape, its query code, its status, its message.
    (
        errors.queue_name_exists("Policy"),
        "QueueNameExists",
        "QueueAlreadyExists",
        400,
        "A queue already exists with the same name and a different value for attribute Policy",
    ),
    (errors.queue_deleted_recently(60), "QueueDeletedRecently", f"{OWN}QueueDeletedRecently", 400, None),
    (
        errors.invalid_value("11", "MaxNumberOfMessages", "Must be between 1 and 10, if provided."),
        "InvalidParameterValueException",
        "InvalidParameterValue",
        400,
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided.",
    ),
    (
        errors.missing_parameter("MessageBody"),
        "MissingRequiredParameterException",
        "MissingParameter",
        400,
        "The request must contain the parameter MessageBody.",
    ),
    (
        errors.unknown_attribute("Colour"),
        "InvalidAttributeName",
        "InvalidAttributeName",
        400,
        "Unknown Attribute Colour.",
    ),
    (
        errors.only_of_fifo("DeduplicationScope"),
        "InvalidAttributeName",
        "InvalidAttributeName",
        400,
        "You can specify the DeduplicationScope only when FifoQueue is set to true.",
    ),
    (errors.two_encryptions(), "InvalidAttributeName", "InvalidAttributeName", 400, KMS),
    (
        errors.invalid_attribute_value("FifoQueue", "Modifying queue type is not supported."),
        "InvalidAttributeValue",
        "InvalidAttributeValue",
        400,
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    ),
    (errors.invalid_message_contents(), "InvalidMessageContents", "InvalidMessageContents", 400, None),
    (
        errors.receipt_handle_is_invalid("h<&>"),
        "ReceiptHandleIsInvalid",
        "ReceiptHandleIsInvalid",
        400,
        'The input receipt handle "h<&>" is not a valid receipt handle.',
    ),
    (
        errors.empty_batch_request("SendMessageBatchRequestEntry"),
        "EmptyBatchRequest",
        f"{OWN}EmptyBatchRequest",
        400,
        None,
    ),
    (
        errors.batch_entry_ids_not_distinct("a"),
        "BatchEntryIdsNotDistinct",
        f"{OWN}BatchEntryIdsNotDistinct",
        400,
        "Id a repeated.",
    ),
    (
        errors.too_many_entries(11),
        "TooManyEntriesInBatchRequest",
        f"{OWN}TooManyEntriesInBatchRequest",
        400,
        "Maximum number of entries per request are 10. You have sent 11.",
    ),
    (errors.invalid_batch_entry_id(), "InvalidBatchEntryId", f"{OWN}InvalidBatchEntryId", 400, ENTRY_ID),
    (
        errors.batch_request_too_long(1048577),
        "BatchRequestTooLong",
        f"{OWN}BatchRequestTooLong",
        400,
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
    ),
    (
        errors.purge_queue_in_progress("jobs"),
        "PurgeQueueInProgress",
        f"{OWN}PurgeQueueInProgress",
        403,
        "Only one PurgeQueue operation on jobs is allowed every 60 seconds.",
    ),
    (errors.over_limit("7 actions at most."), "OverLimit", "OverLimit", 403, "7 actions at most."),
    (
        errors.resource_not_found("Task does not exist."),
        "ResourceNotFoundException",
        "ResourceNotFoundException",
        404,
        "Task does not exist.",
    ),
    (errors.unsupported_operation("No."), "UnsupportedOperation", f"{OWN}UnsupportedOperation", 400, "No."),
    (errors.request_throttled("Slower."), "RequestThrottled", "RequestThrottled", 403, "Slower."),
    (
        errors.unknown_operation("Dance"),
        "UnknownOperationException",
        "InvalidAction",
        400,
        "The action Dance is not valid for this endpoint.",
    ),
    (errors.access_denied("No."), "AccessDenied", "AccessDenied", 403, "No."),
    (
        translate(SignatureRejection(sigv4.NOT_SIGNED, sigv4.NO_SIGNATURE)),
        "MissingAuthenticationToken",
        "MissingAuthenticationToken",
        403,
        "Request is missing Authentication Token",
    ),
    (
        translate(SignatureRejection(sigv4.INCOMPLETE_SIGNATURE, "No.", 400)),
        "IncompleteSignature",
        "IncompleteSignature",
        400,
        "No.",
    ),
    (
        translate(SignatureRejection(sigv4.UNKNOWN_KEY, sigv4.NO_SUCH_KEY)),
        "InvalidClientTokenId",
        "InvalidClientTokenId",
        403,
        "The security token included in the request is invalid.",
    ),
    (
        translate(SignatureRejection(sigv4.MISMATCH, "Signature expired: …")),
        "SignatureDoesNotMatch",
        "SignatureDoesNotMatch",
        403,
        "Signature expired: …",
    ),
    (errors.service_unavailable(), "ServiceUnavailable", "ServiceUnavailable", 503, None),
    (errors.internal_failure(), "InternalFailure", "InternalFailure", 500, None),
]


@pytest.mark.one_store
@pytest.mark.parametrize(
    ("error", "shape", "code", "status", "sentence"),
    ROWS,
    ids=[row[1] for row in ROWS],
)
def test_an_error_is_parsed_by_its_clients(
    error: errors.SqsError, shape: str, code: str, status: int, sentence: str | None
) -> None:
    """botocore's parsers read the shape, code and message of AWS in both protocols (SQS contract 4)."""
    assert error.status == status
    assert error.fault == ("Receiver" if status >= 500 else "Sender")
    for protocol, kind in ((json_protocol, "json"), (query_protocol, "query")):
        answered = falcon.Response()
        protocol.write_error(falcon.Request(create_environ()), answered, error, "an-id")
        headers = {name.lower(): value for name, value in answered.headers.items()}
        parsed = create_parser(kind).parse({"status_code": status, "headers": headers, "body": answered.data}, None)
        told = parsed["Error"]
        assert told["Message"] == (sentence or error.message), kind
        assert told["Code"] == code
        assert told.get("QueryErrorCode") == (shape if kind == "json" else None)
        assert headers["x-amzn-query-error"] == f"{code};{error.fault}"


def test_a_missing_queue_has_a_message_for_each_protocol(caller: Caller) -> None:
    """The message of the query protocol names the protocol's version (SQS contract 4)."""
    told = caller.json("GetQueueUrl", QueueName="none", status=400)
    sentence = "The specified queue does not exist"
    assert said(told) == {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": f"{sentence}."}
    assert told.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    form = caller.form({"Action": "GetQueueUrl", "QueueName": "none"}, status=400)
    assert texts(form, "Error/Message") == [f"{sentence} for this wsdl version."]
    assert texts(form, "Error/Code") == ["AWS.SimpleQueueService.NonExistentQueue"]
    assert texts(form, "Error/Type") == ["Sender"]
    assert texts(form, "Error/Detail") == [""]


def test_an_answer_in_xml_has_the_form_of_the_model(caller: Caller) -> None:
    """The response has the model's elements, the namespace and the request id, and a result only if there is output.

    See SQS contract 1.
    """
    made = caller.form({"Action": "CreateQueue", "Version": "2012-11-05", "QueueName": "jobs"})
    assert made.content_type == "text/xml"
    assert ElementTree.fromstring(made.body).tag == f"{NAMESPACE}CreateQueueResponse"
    (queue,) = texts(made, "CreateQueueResult/QueueUrl")
    assert queue.endswith("/jobs")
    assert texts(made, "ResponseMetadata/RequestId") == [made.headers["x-amzn-RequestId"]]
    told = caller.form({"Action": "GetQueueAttributes", "QueueUrl": queue, "AttributeName.1": "All"})
    names = texts(told, "GetQueueAttributesResult/Attribute/Name")
    shown = dict(zip(names, texts(told, "GetQueueAttributesResult/Attribute/Value"), strict=True))
    assert shown == said(caller.json("GetQueueAttributes", QueueUrl=queue, AttributeNames=["All"]))["Attributes"]
    empty = caller.form({"Action": "ListDeadLetterSourceQueues", "QueueUrl": queue})
    assert texts(empty, "ListDeadLetterSourceQueuesResult") == [""]
    gone = caller.form({"Action": "DeleteQueue", "QueueUrl": queue})
    assert [child.tag for child in ElementTree.fromstring(gone.body)] == [f"{NAMESPACE}ResponseMetadata"]


def test_an_empty_result_in_xml_is_one_element(caller: Caller) -> None:
    """An operation without output has no result element, as on AWS."""
    caller.json("CreateQueue", QueueName="jobs")
    received = caller.form({"Action": "ReceiveMessage", "QueueUrl": "jobs"}).text
    assert "<ReceiveMessageResult/>" in received
    assert "<PurgeQueueResponse" in (purged := caller.form({"Action": "PurgeQueue", "QueueUrl": "jobs"}).text)
    assert "Result" not in purged


def test_the_query_protocol_answers_json_to_clients_that_prefer_it(caller: Caller, account: str) -> None:
    """AWS does so for GET (recorded); maps are arrays of names and values, as in XML."""
    path = f"/{account}/jobs"
    caller.json("CreateQueue", QueueName="jobs", Attributes={"DelaySeconds": "3"}, tags={"a": "b"})
    caller.json("SendMessage", QueueUrl="jobs", MessageBody="é<", DelaySeconds=0)

    def get(form: dict[str, str], path: str = path, status: int = 200) -> Any:
        answered = caller.link(form, path, status, Accept="application/json")
        assert answered.content_type == "application/json"
        return answered.json, {"RequestId": answered.headers["x-amzn-RequestId"]}

    told, metadata = get({"Action": "ListQueues"}, "/")
    (url,) = told["ListQueuesResponse"]["ListQueuesResult"]["queueUrls"]
    assert (url.endswith("/jobs"), told["ListQueuesResponse"]["ResponseMetadata"]) == (True, metadata)
    told, metadata = get({"Action": "GetQueueAttributes", "AttributeName.1": "DelaySeconds"})
    result = {"Attributes": [{"Name": "DelaySeconds", "Value": "3"}]}
    whole = {"GetQueueAttributesResult": result, "ResponseMetadata": metadata}
    assert told == {"GetQueueAttributesResponse": whole}
    told, _ = get({"Action": "ListQueueTags"})
    assert told["ListQueueTagsResponse"]["ListQueueTagsResult"] == {"Tags": [{"Key": "a", "Value": "b"}]}
    headers = {"Accept": "application/json"}
    (message,) = caller.form({"Action": "ReceiveMessage", "AttributeName.1": "All"}, path, **headers).json[
        "ReceiveMessageResponse"
    ]["ReceiveMessageResult"]["messages"]
    assert (message["Body"], {"Name": "ApproximateReceiveCount", "Value": "1"} in message["Attributes"]) == ("é<", True)
    purged = caller.form({"Action": "PurgeQueue"}, path, **headers).json["PurgeQueueResponse"]
    assert list(purged) == ["ResponseMetadata"]
    told, metadata = get({"Action": "ListQueues"}, status=400)
    sentence = "The action ListQueues is not valid for this endpoint."
    assert told == {"Error": {"Type": "Sender", "Code": "InvalidAction", "Message": sentence}, **metadata}
    assert caller.link({}, path, 404, Accept="application/json").text == "<UnknownOperationException/>"
    for accept in ("*/*", "text/html, application/xml;q=0.9, */*;q=0.8", "application/json;q=0.5, text/xml", "?"):
        assert caller.link({"Action": "ListQueueTags"}, path, Accept=accept).content_type == "text/xml"


def test_an_answer_in_json_leaves_out_what_is_empty(caller: Caller) -> None:
    """Only a list that the model requires is returned empty; without output the body is empty (SQS contract 1)."""
    made = caller.json("CreateQueue", QueueName="jobs")
    assert made.content_type == "application/x-amz-json-1.0"
    assert made.headers["x-amzn-RequestId"] == made.headers["x-openstack-request-id"].removeprefix("req-")
    assert said(caller.json("ListQueueTags", QueueUrl="jobs")) == {}
    assert said(caller.json("GetQueueAttributes", QueueUrl="jobs")) == {}
    assert said(caller.json("ListDeadLetterSourceQueues", QueueUrl="jobs")) == {"queueUrls": []}
    assert caller.json("DeleteQueue", QueueUrl="jobs").body == b""
    assert said(caller.json("ListQueues")) == {}


def test_forms_say_lists_and_maps_by_dots_and_numbers(caller: Caller) -> None:
    """Parameters are UTF-8, in any order and of any length; one without a number is a list of one (SQS contract 1)."""
    form = {
        "Action": "CreateQueue",
        "QueueName": "jobs",
        "Attribute.10.Name": "DelaySeconds",
        "Attribute.10.Value": "3",
    }
    form |= {
        "Attribute.2.Value": "9",
        "Attribute.2.Name": "VisibilityTimeout",
        "Tag.1.Key": "ä&=",
        "Tag.1.Value": "\r\n",
    }
    caller.form(form)
    assert attribute(caller, "jobs", "DelaySeconds") == "3"
    assert attribute(caller, "jobs", "VisibilityTimeout") == "9"
    tags = caller.form({"Action": "ListQueueTags", "QueueUrl": "jobs"})
    assert texts(tags, "ListQueueTagsResult/Tag/Key") == ["ä&="]
    assert texts(tags, "ListQueueTagsResult/Tag/Value") == ["\r\n"]
    assert b"&#13;\n" in tags.body
    caller.form(
        {"Action": "SetQueueAttributes", "QueueUrl": "jobs", "Attribute.Name": "DelaySeconds", "Attribute.Value": "4"}
    )
    wanted = {"Action": "GetQueueAttributes", "QueueUrl": "jobs", "AttributeName": "DelaySeconds"}
    assert texts(caller.link(wanted), "GetQueueAttributesResult/Attribute/Value") == ["4"]
    nothing = caller.form({"Action": "GetQueueAttributes", "QueueUrl": "jobs", "AttributeNames": ""})
    assert texts(nothing, "GetQueueAttributesResult") == [""]
    caller.form({"Action": "UntagQueue", "QueueUrl": "jobs", "TagKey.2": "ä&=", "TagKey.1": "x"})
    assert said(caller.json("ListQueueTags", QueueUrl="jobs")) == {}


def test_batches_are_read_from_forms() -> None:
    """Entries, attributes of messages and numbers are read as in JSON (SQS contract 1)."""
    form = {"Action": "SendMessageBatch", "SendMessageBatchRequestEntry.1.Id": "a"}
    attributes = "SendMessageBatchRequestEntry.1.MessageAttribute.1."
    form |= {f"{attributes}Name": "n", f"{attributes}Value.DataType": "String", f"{attributes}Value.StringValue": "v"}
    form |= {"SendMessageBatchRequestEntry.2.Id": "b", "SendMessageBatchRequestEntry.2.DelaySeconds": "5"}
    env = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "QUERY_STRING": "", "wsgi.input": None, "SERVER_NAME": "x"}
    assert query_protocol.read(
        falcon.Request({**env, "SERVER_PORT": "80", "wsgi.errors": None}), urlencode(form).encode()
    ) == (
        "SendMessageBatch",
        {
            "Entries": [
                {"Id": "a", "MessageAttributes": {"n": {"DataType": "String", "StringValue": "v"}}},
                {"Id": "b", "DelaySeconds": "5"},
            ]
        },
        None,
    )


def test_a_queue_may_be_named_by_the_path(caller: Caller, account: str) -> None:
    """The path names the queue in both protocols and all methods, unless there is a ``QueueUrl`` (SQS contract 1)."""
    caller.json("CreateQueue", QueueName="jobs", tags={"a": "b"})
    caller.json("CreateQueue", QueueName="other")
    for path in (f"/{account}/jobs", f"/queue/eu-north-1/{account}/jobs"):
        assert said(caller.json("ListQueueTags", path)) == {"Tags": {"a": "b"}}
        assert said(caller.json("ListQueueTags", path, QueueUrl="other")) == {}
        for ask in (caller.form, caller.link):
            assert texts(ask({"Action": "ListQueueTags"}, path), "ListQueueTagsResult/Tag/Key") == ["a"]
    told = caller.app.put(f"/{account}/jobs", status=405)
    assert texts(told, "Error/Code") == ["MalformedInput"]


@pytest.mark.parametrize("action", sorted(SERVICE_OPERATIONS))
def test_a_queue_url_takes_no_operation_of_the_service(caller: Caller, account: str, action: str) -> None:
    """The query protocol refuses the operation with GET and with POST, and changes nothing (SQS contract 1)."""
    caller.json("CreateQueue", QueueName="jobs")
    form = {"Action": action, "QueueName": "other"}
    for answered in (caller.link(form, f"/{account}/jobs", 400), caller.form(form, f"/{account}/jobs", 400)):
        assert texts(answered, "Error/Code") == ["InvalidAction"]
        assert texts(answered, "Error/Message") == [f"The action {action} is not valid for this endpoint."]
    assert [url.rpartition("/")[2] for url in said(caller.json("ListQueues"))["QueueUrls"]] == ["jobs"]


def test_a_queue_url_takes_get_queue_url_of_any_queue(caller: Caller, account: str) -> None:
    """The parameter names the queue, which may differ from the path's, as on AWS (recorded)."""
    for name in ("jobs", "other"):
        caller.json("CreateQueue", QueueName=name)
        answered = caller.link({"Action": "GetQueueUrl", "QueueName": name}, f"/{account}/jobs")
        (url,) = texts(answered, "GetQueueUrlResult/QueueUrl")
        assert url.endswith(f"/{account}/{name}")


def test_a_get_of_a_queue_url_without_an_action_finds_nothing(caller: Caller, account: str) -> None:
    """The response is AWS's, whether or not the queue exists (SQS contract 1)."""
    for queue in ("jobs", "none"):
        answered = caller.link({}, f"/{account}/{queue}", 404)
        assert (answered.content_type, answered.text) == ("text/xml", "<UnknownOperationException/>")


def test_parameters_are_read_leniently(caller: Caller) -> None:
    """Digits are integers, null and unknown members are ignored, and a wrong type is refused (SQS contract 1)."""
    for name in ("a", "b"):
        caller.json("CreateQueue", QueueName=name, Colour={"x": 1}, Attributes=None)
    assert len(said(caller.json("ListQueues", MaxResults="1"))["QueueUrls"]) == 1
    for wrong in ({"MaxResults": "many"}, {"MaxResults": [1]}, {"QueueNamePrefix": 5}):
        told = said(caller.json("ListQueues", status=400, **wrong))
        assert told["__type"] == "com.amazonaws.sqs#SerializationException"
        assert next(iter(wrong)) in told["message"]
    told = caller.form({"Action": "ListQueues", "MaxResults": "many"}, status=400)
    assert texts(told, "Error/Code") == ["MalformedInput"]


def test_a_missing_parameter_is_reported_before_a_missing_queue(caller: Caller) -> None:
    """The checks are in the order: operation, missing parameter, queue, values (SQS contract 4)."""
    for operation, given, code in (
        ("Dance", {}, "InvalidAction"),
        ("SetQueueAttributes", {"QueueUrl": "none"}, "MissingParameter"),
        ("SetQueueAttributes", {"Attributes": {}}, "MissingParameter"),
        ("SetQueueAttributes", {"QueueUrl": "none", "Attributes": {"x": "y"}}, f"{OWN}NonExistentQueue"),
        ("GetQueueUrl", {"QueueName": ""}, "MissingParameter"),
        ("CreateQueue", {}, "MissingParameter"),
    ):
        told = caller.json(operation, status=400, **given)
        assert told.headers["x-amzn-query-error"] == f"{code};Sender", operation
    assert texts(caller.form({"QueueUrl": "jobs"}, status=400), "Error/Code") == ["InvalidAction"]
    assert texts(caller.form("", status=400), "Error/Code") == ["InvalidAction"]


@pytest.mark.one_store
def test_an_invalid_request_is_refused_in_its_protocol(caller: Caller) -> None:
    """The body cannot be decoded or is not a form, or the target is another service's operation (SQS contract 1)."""
    headers = {"X-Amz-Target": f"{TARGET}ListQueues"}
    for body in (b"{", b"[]", b'{"a": "\xff"}', b'{"a":' * 3000):
        told = caller.app.post("/", body, headers, content_type=json_protocol.MEDIA, status=400)
        assert said(told)["__type"] == "com.amazonaws.sqs#SerializationException", body[:9]
    told = caller.app.post("/", b"{}", {"X-Amz-Target": "DynamoDB.ListTables"}, status=400)
    assert said(told)["__type"] == "com.amazonaws.sqs#UnknownOperationException"
    for form in (
        "Action=ListQueues&a=%ff",
        "Action=ListQueues&a=1&a.b=2",
        "Action=ListQueues&a.b=2&a=1",
        "&".join(f"a{n}=1" for n in range(1001)),
    ):
        assert texts(caller.form(form, status=400), "Error/Code") == ["MalformedInput"], form[:20]


@pytest.mark.one_store
def test_bodies_may_have_two_and_a_half_megabytes(caller: Caller) -> None:
    """A longer body is refused unread, in the client's protocol; chunked bodies are read up to the limit.

    See SQS contract 1.
    """
    almost = "x" * (2_621_440 - 40)
    assert said(caller.json("ListQueues", Colour=almost)) == {}
    told = caller.json("ListQueues", status=400, Colour=almost + "x" * 40)
    assert said(told)["__type"] == "com.amazonaws.sqs#InvalidParameterValueException"
    chunked = {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    caller.app.post("/", "Action=ListQueues", extra_environ=chunked)
    told = caller.app.post("/", "Action=ListQueues&x=" + almost * 2, extra_environ=chunked, status=400)
    assert texts(told, "Error/Code") == ["InvalidParameterValue"]


@pytest.mark.one_store
def test_rest_is_unchanged(caller: Caller, served: Serve) -> None:
    """``/`` lists versions, and no path below ``/v2`` is SQS's; if SQS is off, none of it exists (SQS contract 1)."""
    plain = served({"features": []})
    for app in (caller.app, plain):
        assert app.get("/", status=300).json["versions"]
        assert "x-amzn-RequestId" not in app.get("/?action=ListQueues", status=300).headers
        assert app.post("/v2/queues/000000000000/messages", "Action=ListQueues", status=400).json["title"]
        assert app.get("/sqs", status=404).json["title"]
        assert app.get("/00000000000/jobs", status=404).json["title"]
    listed = plain.get("/?Action=ListQueues", status=300).json
    assert listed == plain.get("/", status=300).json
    assert plain.post("/", b"{}", content_type=json_protocol.MEDIA, status=405).json["title"]
    for path in ("/000000000000/jobs", "/queue/x/000000000000/jobs"):
        assert plain.post(path, "Action=ListQueues", status=404).json["title"]
        assert "x-amzn-RequestId" not in plain.get(path, status=404).headers


@pytest.mark.one_store
@pytest.mark.parametrize(
    ("error", "status", "code"), [(down, 503, "ServiceUnavailable"), (bug, 500, "InternalFailure")]
)
def test_a_failure_is_the_receivers_fault_and_reveals_nothing(
    error: Callable[[], Exception], status: int, code: str
) -> None:
    """An unavailable store and an unexpected error make clients retry, and reveal no secret (SQS contract 4)."""
    broker = Broker(BrokenStore(error), ManualClock(time.time()))
    app = create_app(broker, features=[sqs_of(broker)])
    caller = Caller(TestApp(app), "1" * 12)
    told = caller.json("ListQueues", status=status)
    assert said(told)["__type"] == f"com.amazonaws.sqs#{code}"
    assert told.headers["x-amzn-query-error"] == f"{code};Receiver"
    form = caller.form({"Action": "ListQueues"}, status=status)
    assert (texts(form, "Error/Type"), texts(form, "Error/Code")) == (["Receiver"], [code])
    assert b"secret" not in told.body + form.body


@pytest.mark.one_store
def test_a_page_of_another_site_is_refused() -> None:
    """Requests from other sites and with an unknown ``Host`` are refused before the store is called, links included."""
    broker = Broker(BrokenStore(untouched), ManualClock(time.time()))
    caller = Caller(TestApp(create_app(broker, features=[sqs_of(broker)])), "1" * 12)
    link = "/?Action=DeleteQueue&QueueUrl=jobs"
    told = caller.app.get(link, headers={"Sec-Fetch-Site": "cross-site"}, status=403)
    assert texts(told, "Error/Code") == ["AccessDenied"]
    caller.form({"Action": "ListQueues"}, status=403, **{"Sec-Fetch-Site": "cross-site"})
    told = caller.app.get(link, headers={"Host": "evil.example"}, status=421)
    assert texts(told, "Error/Type") == ["Sender"]
    for form in ({"Action": "PurgeQueue", "QueueUrl": "x/000000000000/q"}, {"Action": "ListQueues"}):
        for origin in ("http://evil.example", "null", "http://localhost:81", "https://localhost", "http://localhost@x"):
            refused = caller.form(form, status=403, Origin=origin)
            assert texts(refused, "Error/Code") == ["AccessDenied"], origin


@pytest.mark.one_store
@pytest.mark.parametrize("operation", sorted(OPERATIONS.keys() - READ_ONLY_OPERATIONS))
def test_a_link_changes_nothing_without_a_signature(operation: str) -> None:
    """Browsers follow links and load images without sending the page's origin."""
    broker = Broker(BrokenStore(untouched), ManualClock(time.time()))
    caller = Caller(TestApp(create_app(broker, features=[sqs_of(broker)])), "1" * 12)
    for path in ("/",) if operation in SERVICE_OPERATIONS else ("/", f"/{'1' * 12}/q"):
        refused = caller.link({"Action": operation, "QueueUrl": "x/000000000000/q"}, path, status=403)
        assert texts(refused, "Error/Code") == ["AccessDenied"]


def test_a_page_of_the_server_itself_and_a_link_that_reads_are_answered(caller: Caller) -> None:
    for origin in ("http://localhost:80", "http://localhost"):
        caller.form({"Action": "CreateQueue", "QueueName": "jobs"}, Origin=origin)
    assert texts(caller.link({"Action": "ListQueues"}), "ListQueuesResult/QueueUrl")


@pytest.mark.one_store
def test_the_project_is_that_of_the_key(served: Serve, account: str) -> None:
    """In mode ``none``, the access key may be an account, also in a link; otherwise the option's project is used.

    See SQS contract 3.
    """
    app = served(project=f"acme-{account}", region="eu-west-9")
    Caller(app, account).form({"Action": "CreateQueue", "QueueName": "jobs"})
    for link in (
        f"/?Action=GetQueueUrl&QueueName=jobs&AWSAccessKeyId={account}",
        f"/?Action=GetQueueUrl&QueueName=jobs&X-Amz-Credential={account}%2F20261125%2Fap-south-1%2Fsqs%2Faws4_request",
    ):
        (queue,) = texts(app.get(link), "GetQueueUrlResult/QueueUrl")
        assert queue == f"http://localhost:80/{account}/jobs"
    asked = (
        f"&QueueUrl=jobs&AttributeName=QueueArn&X-Amz-Credential={account}%2F20261125%2Fap-south-1%2Fsqs%2Faws4_request"
    )
    told = app.get(f"/?Action=GetQueueAttributes{asked}")
    assert texts(told, "GetQueueAttributesResult/Attribute/Value") == [f"arn:aws:sqs:ap-south-1:{account}:jobs"]
    (own,) = texts(
        Caller(app, "AKIAIOSFODNN7EXAMPLE").form({"Action": "CreateQueue", "QueueName": "jobs"}),
        "CreateQueueResult/QueueUrl",
    )
    assert account not in own
    assert texts(app.get("/?Action=ListQueues"), "ListQueuesResult/QueueUrl") == [own]
    rest = {"Client-ID": "30387f00-39a0-11e2-be4a-a8d15f34bae2", "X-Project-ID": f"acme-{account}"}
    assert [queue["name"] for queue in app.get("/v2/queues", headers=rest).json["queues"]] == ["jobs"]
    told = app.get("/?Action=GetQueueAttributes&QueueUrl=jobs&AttributeName=QueueArn")
    assert texts(told, "GetQueueAttributesResult/Attribute/Value") == [
        f"arn:aws:sqs:eu-west-9:{own.split('/')[-2]}:jobs"
    ]


@pytest.mark.one_store
def test_urls_are_those_that_the_operator_has_chosen(served: Serve, account: str) -> None:
    """``public_url`` overrides scheme and host (SQS contract 2)."""
    caller = Caller(served(public_url="https://sqs.example.org"), account)
    made = said(caller.json("CreateQueue", QueueName="jobs"))
    assert made == {"QueueUrl": f"https://sqs.example.org/{account}/jobs"}


@pytest.mark.one_store
def test_keys_of_kms_may_be_refused(served: Serve, account: str, caplog: pytest.LogCaptureFixture) -> None:
    """``kms = refuse`` refuses them; otherwise the log has one warning per queue (SQS contract 6)."""
    strict, lenient = Caller(served(kms="refuse"), account), Caller(served(), account)
    given = {"QueueName": "jobs", "Attributes": {"KmsMasterKeyId": "alias/mine"}}
    told = strict.json("CreateQueue", status=400, **given)
    assert told.headers["x-amzn-query-error"] == f"{OWN}UnsupportedOperation;Sender"
    lenient.json("CreateQueue", **given)
    lenient.json("SetQueueAttributes", QueueUrl="jobs", Attributes={"KmsMasterKeyId": "alias/other"})
    assert caplog.text.count("has a KMS key") == 1
