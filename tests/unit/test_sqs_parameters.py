# SPDX-License-Identifier: Apache-2.0
"""JSON parameters of SQS: direct decoding has the same result as decoding member by member."""

from typing import Any

import falcon
import msgspec
import pytest
from falcon.testing import create_environ
from hypothesis import event, given
from hypothesis import strategies as st

from zq.errors import InvalidBody
from zq.sqs import json_protocol
from zq.sqs.errors import SqsError
from zq.sqs.operations import DECODERS, OPERATIONS, read
from zq.wire import json_object

URL = "http://localhost/000000000000/jobs"
ids = st.sampled_from(["", "a", "5", "é", "null", "18446744073709551616", "\x00"])
plain = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(0, 9), st.floats(), ids)
attributes = st.dictionaries(
    st.sampled_from(["DataType", "StringValue", "BinaryValue", "StringListValues", "X"]), plain
)
entry_members = ["Id", "MessageBody", "DelaySeconds", "ReceiptHandle", "VisibilityTimeout", "MessageGroupId", "X"]
entries = st.dictionaries(st.sampled_from(entry_members), plain)
whole = st.fixed_dictionaries(
    {"Id": ids, "MessageBody": ids, "ReceiptHandle": ids},
    optional={"DelaySeconds": plain, "MessageAttributes": st.dictionaries(ids, attributes, max_size=2)},
)
values = st.one_of(plain, st.lists(st.one_of(ids, whole, entries), max_size=2), st.dictionaries(ids, ids, max_size=2))


def members_of(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Generate members that a client may send to an operation, valid or invalid."""
    fields = [field.encode_name for field in msgspec.structs.fields(OPERATIONS[name].params)]
    given = st.fixed_dictionaries({}, optional=dict.fromkeys([*fields, "Unknown"], values))
    return given.map(lambda members: {"QueueUrl": URL} | members)


def said(name: str, body: bytes) -> tuple[dict[str, Any] | None, Any]:
    """Return the members of a request, `None` if they are malformed, and the directly decoded parameters."""
    env = create_environ("/", method="POST", headers={"X-Amz-Target": json_protocol.TARGET_PREFIX + name})
    try:
        return json_protocol.read(falcon.Request(env), body)[1:]
    except SqsError:
        return None, None


@given(st.sampled_from(sorted(DECODERS)).flatmap(lambda name: st.tuples(st.just(name), members_of(name))))
def test_direct_decoding_equals_decoding_by_members(asked: tuple[str, dict[str, Any]]) -> None:
    """Direct decoding accepts nothing that the other way refuses, and never with other values."""
    name, members = asked
    body = msgspec.json.encode(members)
    known, params = said(name, body)
    event(f"at once: {params is not None}")
    if params is not None:
        assert params == read(OPERATIONS[name].params, json_object(body))
        assert known == {"QueueUrl": members["QueueUrl"]}
    elif known is not None:
        assert known == json_object(body)
    else:
        with pytest.raises(InvalidBody):
            json_object(body)


@pytest.mark.parametrize("name", ["SendMessageBatch", "DeleteMessageBatch", "ReceiveMessage", "GetQueueAttributes"])
def test_a_usual_request_is_decoded_directly(name: str) -> None:
    """Unknown members do not prevent direct decoding."""
    entry = {"Id": "a", "MessageBody": "x", "ReceiptHandle": "y", "Other": [1]}
    _, params = said(name, msgspec.json.encode({"QueueUrl": URL, "Entries": [entry], "Other": {"a": 1}}))
    assert params.queue_url == URL


WRONG = [b"", b"[]", b"{", b'{"QueueUrl": "\xff"}', b'{"QueueUrl": ""}', b'{"QueueUrl": null}', b'{"QueueUrl": 1}']


@pytest.mark.parametrize("body", WRONG)
def test_an_invalid_request_is_not_decoded_directly(body: bytes) -> None:
    """The request is refused, or decoded member by member for an error that names the problem."""
    assert said("PurgeQueue", body)[1] is None
