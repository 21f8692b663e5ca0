# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of access key administration. The SQS API itself is not part of the document."""

from typing import Final

from zq.http.openapi.access import IDS, object_of
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
from zq.http.openapi.structs import page_schema
from zq.limits import DEFAULT_PAGE
from zq.sqs.key_resources import MAX_DAYS, MAX_PAGE, PATH
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
    actions = {"type": ["array", "null"], "minItems": 1, "items": {"type": "string", "enum": sorted(OPERATIONS)}}
    moment = TEXT | {"format": "date-time"}
    flag = {"type": "boolean"}
    shown = {"id": TEXT, "project": IDS, "actions": actions, "created": moment, "plain": flag, "disabled": flag}
    shown["expires"] = {"type": ["string", "null"], "format": "date-time"}
    return {
        "SqsKey": object_of(shown),
        "MadeSqsKey": object_of(shown | {"secret": TEXT}),
        "SqsKeyPage": page_schema("keys", "SqsKey"),
        "SqsKeyTerms": {
            "type": "object",
            "properties": {"actions": actions, "days": integer(1, MAX_DAYS), "plain": {"type": "boolean"}},
        },
        "SqsKeyChange": object_of({"disabled": {"type": "boolean"}}),
    }
