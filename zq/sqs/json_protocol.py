# SPDX-License-Identifier: Apache-2.0
"""The AWS JSON 1.0 protocol, which SQS clients have used since the end of 2023."""

from collections.abc import Mapping
from typing import Any, Final

import falcon
from msgspec import Struct

from zq.errors import InvalidBody
from zq.http.context import Request
from zq.sqs import errors
from zq.sqs.call import Params
from zq.sqs.operations import DECODERS, Answer
from zq.wire import decode, encode, json_object

MEDIA: Final = "application/x-amz-json-1.0"
# Prefix of the operation name in the header X-Amz-Target.
TARGET_PREFIX: Final = "AmazonSQS."
# Prefix of error types.
NAMESPACE: Final = "com.amazonaws.sqs#"
# Lists that are included in a response even if they are empty.
NEVER_OMITTED: Final = frozenset({"queueUrls"})


def matches(env: Mapping[str, Any]) -> bool:
    """Return whether the request uses the JSON protocol."""
    return "HTTP_X_AMZ_TARGET" in env or env.get("CONTENT_TYPE", "").lower().startswith("application/x-amz-json")


def read(req: Request, body: bytes) -> tuple[str, dict[str, Any], Params | None]:
    """Return the operation's name, the raw parameters and the decoded parameters.

    If the parameters can be decoded, the raw parameters contain only the queue URL. If a parameter is invalid or the
    operation has no queue URL, the decoded parameters are None, and the caller decodes the raw parameters. Raises
    ``SqsError`` if the header or the JSON text is not valid.
    """
    target: str = req.env.get("HTTP_X_AMZ_TARGET", "")
    if not target.startswith(TARGET_PREFIX):
        raise errors.unknown_operation(target)
    name = target.removeprefix(TARGET_PREFIX)
    try:
        if name in DECODERS:
            params = decode(DECODERS[name], body)
            return name, {"QueueUrl": params.queue_url}, params
    except InvalidBody:
        pass  # the operation validates each parameter later and reports a precise error
    try:
        return name, json_object(body) if body else {}, None
    except InvalidBody as error:
        raise errors.malformed(str(error)) from error


def write_result(_req: Request, resp: falcon.Response, _operation: str, answer: Answer, _request_id: str) -> None:
    resp.content_type = MEDIA
    if isinstance(answer, Struct):
        resp.data = encode(answer)
    elif answer is not None:
        resp.data = encode(
            {name: value for name, value in answer.items() if value or value == 0 or name in NEVER_OMITTED}
        )


def write_error(_req: Request, resp: falcon.Response, error: errors.SqsError, _request_id: str) -> None:
    """Write the headers and body of an error response, but not its status."""
    resp.content_type = MEDIA
    resp.set_header("x-amzn-query-error", f"{error.query_code};{error.fault}")
    resp.data = encode({"__type": NAMESPACE + error.shape, "message": error.message})
