# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of ``/v2/admin/project…`` and ``/v2/admin/rekey``."""

from zq.core.data_keys import RekeyResult
from zq.http.openapi.access import IDS
from zq.http.openapi.operations import TEXT, Json, answer, body, integer, operation, query, reference
from zq.http.openapi.structs import answer_schemas, page_schema
from zq.model.quotas import State
from zq.wire.quotas import ProjectReport


def operations() -> Json:
    """Return the OpenAPI operations by path and method."""
    return {
        **_projects(),
        "/v2/admin/rekey": {
            "post": operation(
                "rekey",
                "Rewrap all data keys with the first master key and create new data keys",
                {
                    200: answer(
                        "The number of projects with keys, and of projects that still need another master key.",
                        "Rekeyed",
                    )
                },
                errors=(409,),
            ),
        },
    }


def _projects() -> Json:
    named = query("project", IDS, "The project.", required=True)
    one = {200: "Project"}
    paging = [
        query("marker", TEXT, "Marker of the page, from the link in the previous page."),
        query("limit", integer(1, 100, default=20), "Maximum number of projects in the page."),
    ]
    return {
        "/v2/admin/projects": {
            "get": operation(
                "list_projects",
                "List projects that have created something or have been configured",
                {200: "ProjectPage"},
                parameters=paging,
            )
        },
        "/v2/admin/project": {
            "get": operation("get_project", "Get a project's configuration and usage", one, parameters=[named]),
            "put": operation(
                "update_project",
                "Change a project's quota or state",
                one,
                parameters=[named],
                body=body("ProjectChange", required=True),
                errors=(409,),
            ),
            "delete": operation(
                "delete_project",
                "Delete all data of a project step by step",
                {202: answer("The progress of the deletion.", "Project")},
                parameters=[named],
                errors=(409,),
            ),
        },
    }


def schemas() -> Json:
    """Return the schemas of request and response bodies."""
    found, limits = answer_schemas(Project=ProjectReport, Rekeyed=RekeyResult), reference("schemas", "OwnLimits")
    found["Project"]["properties"]["limits"] = limits
    return found | {
        "ProjectPage": page_schema("projects", "Project"),
        "ProjectChange": {
            "type": "object",
            "properties": {"limits": limits, "state": {"enum": [*State]}},
            "minProperties": 1,
        },
    }
