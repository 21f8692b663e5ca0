# SPDX-License-Identifier: Apache-2.0
"""The AWS query protocol, used by older clients.

Requests are HTML forms. Responses are XML, or JSON if the request has ``Accept: application/json``.

Dots and numbers in the names of form fields express structures, lists and maps:
``Attribute.1.Name=DelaySeconds&Attribute.1.Value=5``. The number can be omitted if a list has only one entry.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import falcon
from msgspec import to_builtins

from zq.http.context import Request
from zq.sqs import errors
from zq.sqs.operations import Answer
from zq.wire import encode

MEDIA: Final = "text/xml"
# Media type of responses to clients that prefer JSON.
JSON: Final = "application/json"
NAMESPACE: Final = "http://queue.amazonaws.com/doc/2012-11-05/"
# Maximum number of fields in a form. A batch of ten messages with ten attributes each has about 500.
MAX_FIELDS: Final = 1000
# Maximum number of dots that separate the parts of a field name.
MAX_DOTS: Final = 8
# Lists in requests: the parameter name, by element name in forms.
LISTS: Final = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "ActionName": "Actions",
    "AWSAccountId": "AWSAccountIds",
    "SendMessageBatchRequestEntry": "Entries",
    "DeleteMessageBatchRequestEntry": "Entries",
    "ChangeMessageVisibilityBatchRequestEntry": "Entries",
}
# Maps in requests: the parameter name, and the field names of key and value, by element name in forms.
MAPS: Final = {
    "Attribute": ("Attributes", "Name", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
}
# Parameter names of lists. Clients send an empty list as a field with the parameter name and an empty value.
LIST_NAMES: Final = frozenset(LISTS.values())
# Parameters that have another name in one operation, by operation.
OPERATION_NAMES: Final = {"CreateQueue": {"Tags": "tags"}}
# Element names of lists in responses, by member. {} stands for the name of the batch operation.
ELEMENTS: Final = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Successful": "{}ResultEntry",
    "Failed": "BatchResultErrorEntry",
    "Results": "ListMessageMoveTasksResultEntry",
}
# Maps in responses: the element name and the names of key and value, by member.
MAP_ELEMENTS: Final = {plural: (one, key, value) for one, (plural, key, value) in MAPS.items()}
# Members whose names begin with a lower-case letter in JSON responses, as in AWS.
LOWER_CASE: Final = {"Messages": "messages", "QueueUrls": "queueUrls"}
# Characters that XML cannot represent.
FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

Tree = dict[str, Any]


def read(req: Request, body: bytes) -> tuple[str, dict[str, Any], None]:
    """Return the operation's name and the raw parameters. Raises ``SqsError`` if the form is not valid.

    The third result is None, because this protocol does not decode the parameters here; see ``json_protocol.read``.
    """
    form = _fields(req.query_string) | _fields(body)
    operation = form.pop("Action", "")
    renamed = OPERATION_NAMES.get(operation, {})
    return operation, {renamed.get(name, name): value for name, value in _members(_tree(form)).items()}, None


def _fields(form: str | bytes) -> dict[str, str]:
    try:
        text = form.decode() if isinstance(form, bytes) else form
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        sentence = f"The form must be UTF-8, percent-encoded, and have at most {MAX_FIELDS} fields."
        raise errors.malformed(sentence) from error
    return dict(pairs)


def _tree(form: Mapping[str, str]) -> Tree:
    """Convert form fields to a tree. In a field's name, dots separate the levels of the tree.

    Raises ``SqsError`` if a field has both a value and nested fields.
    """
    tree: Tree = {}
    for name, value in form.items():
        *parts, last = name.split(".", MAX_DOTS)
        node = tree
        for part in parts:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise errors.malformed(f"The field {name[:100]} has both a value and nested fields.")
        if isinstance(node.setdefault(last, value), dict):
            raise errors.malformed(f"The field {name[:100]} has both a value and nested fields.")
    return tree


def _members(tree: Tree) -> Tree:
    found: Tree = {}
    for name, node in tree.items():
        if name in LISTS:
            found[LISTS[name]] = [_value(element) for element in _elements(node)]
        elif name in MAPS:
            plural, key, value = MAPS[name]
            found[plural] = {
                element[key]: _value(element.get(value, ""))
                for element in _elements(node)
                if isinstance(element, dict) and isinstance(element.get(key), str)
            }
        else:
            found[name] = [] if name in LIST_NAMES and node == "" else _value(node)
    return found


def _value(node: Any) -> Any:
    return _members(node) if isinstance(node, dict) else node


def _elements(node: Any) -> list[Any]:
    if not isinstance(node, dict) or not all(name.isascii() and name.isdigit() for name in node):
        return [node]
    return [element for _, element in sorted(node.items(), key=lambda item: int(item[0][:9]))]


def write_result(req: Request, resp: falcon.Response, operation: str, answer: Answer, request_id: str) -> None:
    """Write the result of an operation to the response as XML or JSON."""
    members = to_builtins(answer)
    if _prefers_json(req):
        result = {} if members is None else {f"{operation}Result": _json_members(members)}
        _send_json(resp, {f"{operation}Response": {**result, "ResponseMetadata": {"RequestId": request_id}}})
        return
    content = "" if members is None else _xml_members(operation, members)
    result_element = f"<{operation}Result>{content}</{operation}Result>" if content else f"<{operation}Result/>"
    metadata = f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
    _send(resp, f"{operation}Response", metadata if members is None else result_element + metadata)


def write_error(req: Request, resp: falcon.Response, error: errors.SqsError, request_id: str) -> None:
    """Write the headers and body of an error response. As in AWS, the error for a missing operation is XML."""
    if error.query_code == errors.NO_OPERATION:
        resp.content_type, resp.data = MEDIA, f"<{errors.NO_OPERATION}/>".encode()
        return
    resp.set_header("x-amzn-query-error", f"{error.query_code};{error.fault}")
    members = {"Type": error.fault, "Code": error.query_code, "Message": error.query_message}
    if _prefers_json(req):
        _send_json(resp, {"Error": members, "RequestId": request_id})
        return
    content = f"<Error>{_xml_members('', members)}<Detail/></Error><RequestId>{request_id}</RequestId>"
    _send(resp, "ErrorResponse", content)


def _prefers_json(req: Request) -> bool:
    return req.client_prefers((MEDIA, JSON)) == JSON


def _send(resp: falcon.Response, name: str, content: str) -> None:
    resp.content_type = MEDIA
    resp.data = f'<?xml version="1.0"?><{name} xmlns="{NAMESPACE}">{content}</{name}>'.encode()


def _send_json(resp: falcon.Response, document: Tree) -> None:
    resp.content_type = JSON
    resp.data = encode(document)


def _json_members(members: Mapping[str, Any]) -> Tree:
    return {LOWER_CASE.get(name, name): _json(name, value) for name, value in members.items()}


def _json(name: str, value: Any) -> Any:
    if name in MAP_ELEMENTS:
        _, key, content = MAP_ELEMENTS[name]
        return [_json("", {key: own, content: each}) for own, each in value.items()]
    if isinstance(value, list):
        return [_json("", each) for each in value]
    return _json_members(value) if isinstance(value, Mapping) else value


def _xml_members(operation: str, members: Mapping[str, Any]) -> str:
    return "".join(part for name, value in members.items() for part in _xml(operation, name, value))


def _xml(operation: str, name: str, value: Any) -> Iterator[str]:
    if name in MAP_ELEMENTS:
        one, key, valued = MAP_ELEMENTS[name]
        for own, content in value.items():
            yield from _xml(operation, one, {key: own, valued: content})
    elif isinstance(value, list):
        for element in value:
            yield from _xml(operation, ELEMENTS[name].format(operation), element)
    elif isinstance(value, Mapping):
        yield f"<{name}>{_xml_members(operation, value)}</{name}>"
    else:
        yield f"<{name}>{_text(value)}</{name}>"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return FORBIDDEN.sub("\ufffd", escape(str(value), {"\r": "&#13;"}))
