# SPDX-License-Identifier: Apache-2.0
"""OpenAPI description of access key administration. The SQS API itself is not described in OpenAPI."""

from typing import Final

from zq.http.openapi.access import IDS
from zq.http.openapi.operations import (
    TEXT,
    Json,
    answer,
    body,
    in_path,
    integer,
    operation,
    query,
)
from zq.http.openapi.structs import answer_schemas, page_schema, request_schemas
from zq.model.limits import DEFAULT_PAGE
from zq.sqs.key_resources import MAX_DAYS, MAX_PAGE, PATH, KeyAnswer, KeyChange, KeyTerms, NewKeyAnswer
from zq.sqs.operations import OPERATIONS

PATH_PARAMETERS: Final[dict[str, Json]] = {
    "key": in_path("key", TEXT | {"pattern": "^[^/?#]+$", "maxLength": 256}, "The id of an SQS access key."),
}


def operations() -> Json:
    """Return the operations on access keys by path and method."""
    project = query("project", TEXT, "Project whose keys are listed. Default: all projects.")
    page = [
        query("marker", TEXT, "List keys with ids after this one."),
        query("limit", integer(1, MAX_PAGE, default=DEFAULT_PAGE), "Maximum number of keys in the page."),
    ]
    one = answer("The key, without its secret.", "SqsKey")
    made = answer("The key with its secret, which is returned only once.", "MadeSqsKey", "Location")
    return {
        PATH: {
            "get": operation("list_sqs_keys", "List SQS access keys", {200: "SqsKeyPage"}, parameters=[*page, project]),
            "post": operation(
                "create_sqs_key",
                "Create an SQS access key",
                {201: made},
                parameters=[query("project", IDS, "Project of the new key.", required=True)],
                body=body("SqsKeyTerms", required=False),
            ),
        },
        f"{PATH}/{{key}}": {
            "get": operation("get_sqs_key", "Get an SQS access key", {200: one}, errors=[404]),
            "put": operation(
                "change_sqs_key",
                "Enable or disable an SQS access key",
                {200: one},
                body=body("SqsKeyChange", required=True),
                errors=[404, 409],
            ),
            "delete": operation("delete_sqs_key", "Delete an SQS access key", {204: ""}, errors=[404]),
        },
    }


def schemas() -> Json:
    """Return the schemas of the request and response bodies."""
    requests = request_schemas(SqsKeyTerms=KeyTerms, SqsKeyChange=KeyChange)
    answers = answer_schemas(SqsKey=KeyAnswer, MadeSqsKey=NewKeyAnswer)
    requests["SqsKeyTerms"]["properties"]["days"] |= {"minimum": 1, "maximum": MAX_DAYS}
    for key in (requests["SqsKeyTerms"], *answers.values()):
        actions = key["properties"]["actions"]["anyOf"][0]
        actions |= {"minItems": 1, "items": TEXT | {"enum": sorted(OPERATIONS)}}
    return requests | answers | {"SqsKeyPage": page_schema("keys", "SqsKey")}
