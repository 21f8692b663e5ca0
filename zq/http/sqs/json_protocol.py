# SPDX-License-Identifier: Apache-2.0
"""AWS JSON 1.0: the protocol of clients of SQS since the end of 2023."""

from collections.abc import Mapping
from typing import Any, Final

import falcon

from zq.errors import InvalidBody
from zq.http.sqs import errors
from zq.wire import encode, json_object

MEDIA: Final = "application/x-amz-json-1.0"
# What begins the value of the header that names the operation.
TARGET: Final = "AmazonSQS."
# What begins the names of errors.
NAMESPACE: Final = "com.amazonaws.sqs#"
# Lists that are in an answer though they are empty.
ALWAYS: Final = frozenset({"queueUrls"})


def is_spoken(env: Mapping[str, Any]) -> bool:
    """Whether a request of this head is in this protocol."""
    return "HTTP_X_AMZ_TARGET" in env or env.get("CONTENT_TYPE", "").lower().startswith("application/x-amz-json")


def read(req: falcon.Request, body: bytes) -> tuple[str, dict[str, Any]]:
    """The operation's name and its parameters. Raises ``SqsError``."""
    target: str = req.env.get("HTTP_X_AMZ_TARGET", "")
    if not target.startswith(TARGET):
        raise errors.unknown_operation(target)
    try:
        return target.removeprefix(TARGET), json_object(body) if body else {}
    except InvalidBody as error:
        raise errors.malformed(str(error)) from error


def answer(resp: falcon.Response, _operation: str, given: Mapping[str, Any] | None, _request_id: str) -> None:
    """Tell what an operation has answered."""
    resp.content_type = MEDIA
    if given is not None:
        resp.data = encode({name: value for name, value in given.items() if value or value == 0 or name in ALWAYS})


def refuse(resp: falcon.Response, error: errors.SqsError, _request_id: str) -> None:
    """Tell an error; its status is set."""
    resp.content_type = MEDIA
    resp.set_header("x-amzn-query-error", f"{error.query_code};{error.fault}")
    resp.data = encode({"__type": NAMESPACE + error.shape, "message": error.message})
