# SPDX-License-Identifier: Apache-2.0
"""Operations and schemas of ``/v2/admin/project…``, ``/v2/admin/rekey`` and ``/v2/audit`` in OpenAPI."""

from zq.audit import Entry
from zq.core.trail import MAX_PAGE
from zq.http.openapi.access import IDS, STATE, USE, object_of
from zq.http.openapi.operations import TEXT, Json, answer, body, integer, operation, query, reference
from zq.limits import DEFAULT_PAGE
from zq.model.quotas import MOST


def operations() -> Json:
    """Return the operations by path and method."""
    return {
        **_projects(),
        "/v2/audit": {
            "get": operation(
                "list_audit",
                "What callers have changed or destroyed, the latest first",
                {200: answer("A page.", "AuditPage")},
                parameters=[
                    query(
                        "marker", TEXT | {"pattern": r"^[0-9]{18}\.[0-9a-f]{8}$"}, "Where the page before has ended."
                    ),
                    query("limit", integer(1, MAX_PAGE, default=DEFAULT_PAGE), "Most entries of the page."),
                    query("since", TEXT | {"format": "date-time"}, "What was done at this moment or later."),
                ],
            )
        },
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
        query("marker", TEXT, "Where the page before has ended."),
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
        "AuditEntry": _audit_entry(),
        "AuditPage": object_of(
            {
                "entries": {"type": "array", "items": reference("schemas", "AuditEntry")},
                "links": {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")},
            }
        ),
        "Rekeyed": object_of({"projects": integer(0, MOST), "left": integer(0, MOST)}),
        "ProjectChange": {
            "type": "object",
            "properties": {"limits": reference("schemas", "OwnLimits"), "state": STATE},
            "minProperties": 1,
        },
    }


def _audit_entry() -> Json:
    texts = object_of(dict.fromkeys((name for name in Entry.__struct_fields__ if name != "messages"), TEXT))
    texts["properties"] |= {"time": TEXT | {"format": "date-time"}}
    texts["properties"]["messages"] = integer(0, MOST) | {"description": "How many it was about, where that is known."}
    return texts
