# SPDX-License-Identifier: Apache-2.0
"""Operations and schemas of ``/v2/admin/project…`` and ``/v2/admin/rekey`` in OpenAPI."""

from zq.http.openapi.access import IDS, STATE, USE, object_of
from zq.http.openapi.operations import TEXT, Json, answer, body, integer, operation, query, reference
from zq.model.quotas import MOST


def operations() -> Json:
    """Return the operations by path and method."""
    return {
        **_projects(),
        "/v2/admin/rekey": {
            "post": operation(
                "rekey",
                "Wrap all keys of encryption by the first master key, and encrypt by new ones",
                {200: answer("How many projects have keys, and of how many some could not be opened.", "Rekeyed")},
                errors=(409,),
            ),
        },
    }


def _projects() -> Json:
    named = query("project", IDS, "The project.", required=True)
    one = {200: answer("The project.", "Project")}
    paging = [
        query("marker", TEXT, "Marker of the page, from the link to it."),
        query("limit", integer(1, 100, default=20), "Most projects of the page."),
    ]
    return {
        "/v2/admin/projects": {
            "get": operation(
                "list_projects",
                "All projects that have made something, or of which something was said",
                {200: answer("A page.", "ProjectPage")},
                parameters=paging,
            )
        },
        "/v2/admin/project": {
            "get": operation("get_project", "What was said of a project, and what it has", one, parameters=[named]),
            "put": operation(
                "update_project",
                "Give a project values of its own, or another state",
                one,
                parameters=[named],
                body=body("ProjectChange", required=True),
                errors=(409,),
            ),
            "delete": operation(
                "delete_project",
                "Remove all that is a project's, step by step",
                {202: answer("Where that is.", "Project")},
                parameters=[named],
                errors=(409,),
            ),
        },
    }


def schemas() -> Json:
    """Return the schemas of bodies."""
    said = {
        "project": IDS,
        "limits": reference("schemas", "OwnLimits"),
        "state": STATE,
        "deleting": {"type": "boolean"},
    }
    page = {
        "projects": {"type": "array", "items": reference("schemas", "Project")},
        "links": {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")},
    }
    return {
        "Project": object_of(said | USE),
        "ProjectPage": object_of(page),
        "Rekeyed": object_of({"projects": integer(0, MOST), "left": integer(0, MOST)}),
        "ProjectChange": {
            "type": "object",
            "properties": {"limits": reference("schemas", "OwnLimits"), "state": STATE},
            "minProperties": 1,
        },
    }
