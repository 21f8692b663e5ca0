# SPDX-License-Identifier: Apache-2.0
"""``/v2/quota``, ``/v2/tokens``, signed URLs and what administrators have, in OpenAPI."""

from typing import Final

from zq.audit import Entry
from zq.auth.policy import RULES
from zq.auth.signatures import METHODS, PATHS
from zq.core.trail import MAX_PAGE
from zq.http.openapi.operations import QUEUE, TEXT, Json, answer, body, integer, operation, query, reference
from zq.http.tokens import MAX_TEXT
from zq.http.tokens import MOST as MOST_TOKENS
from zq.limits import DEFAULT_PAGE, MAX_PROJECT, PROJECT_ID
from zq.model.quotas import MOST, Quota, State

ASKED: Final = (400, 403, 406, 503)
IDS: Final = TEXT | {"pattern": f"^{PROJECT_ID.pattern}$", "minLength": 1, "maxLength": MAX_PROJECT}
COUNTS: Final = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}}
FLAGS: Final = {"type": "object", "additionalProperties": {"type": "boolean"}}
STATE: Final = {"enum": [str(state) for state in State]}


def administration() -> Json:
    """The operations of each path."""
    return {
        "/v2/quota": {
            "get": operation("get_quota", "What the project may use, and has", {200: answer("All.", "QuotaReport")}),
        },
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
    """The bodies of these."""
    values = {name: integer(0, MOST) for name in Quota.__struct_fields__} | {"share": integer(1, 100)}
    own = {"type": "object", "properties": values, "additionalProperties": False}
    said = {
        "project": IDS,
        "limits": reference("schemas", "OwnLimits"),
        "state": STATE,
        "deleting": {"type": "boolean"},
    }
    use = {"used": COUNTS, "exact": FLAGS, "age": {"type": "number", "minimum": 0}}
    page = {
        "projects": {"type": "array", "items": reference("schemas", "Project")},
        "links": {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")},
    }
    return _shares() | {
        "OwnLimits": own,
        **_callers(),
        "QuotaReport": _object({"limits": reference("schemas", "OwnLimits"), "state": STATE} | use),
        "Project": _object(said | use),
        "ProjectPage": _object(page),
        "AuditEntry": _audit_entry(),
        "AuditPage": _object(
            {
                "entries": {"type": "array", "items": reference("schemas", "AuditEntry")},
                "links": {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")},
            }
        ),
        "Rekeyed": _object({"projects": integer(0, MOST), "left": integer(0, MOST)}),
        "ProjectChange": {
            "type": "object",
            "properties": {"limits": reference("schemas", "OwnLimits"), "state": STATE},
            "minProperties": 1,
        },
    }


def _callers() -> Json:
    """What they are told of themselves."""
    return {
        "Identity": _object(
            {
                **dict.fromkeys(("project", "user", "credential"), TEXT),
                "roles": {"type": "array", "items": TEXT},
                "scopes": {"type": ["array", "null"], "items": TEXT},
                "expires": {"type": ["string", "null"], "format": "date-time"},
            }
        ),
        "Me": _object(
            {
                "project": IDS,
                "projects": {"type": ["array", "null"], "items": IDS},
                "roles": {"type": "array", "items": TEXT},
                "rules": {"type": "array", "items": {"enum": list(RULES)}},
                "admin": {"type": "boolean"},
                "auth": TEXT,
                "console": {"type": ["string", "null"]},
                "version": TEXT,
            }
        ),
    }


def sharing() -> Json:
    """By path and method."""
    return {
        "/v2/whoami": {
            "get": operation("get_identity", "Whose the credential is, and what for", {200: answer("It.", "Identity")}),
        },
        "/v2/me": {
            "get": operation("get_me", "What the caller may do, and of which server", {200: answer("It.", "Me")}),
        },
        f"{QUEUE}/share": {
            "post": operation(
                "share_queue",
                "Sign a URL of the queue for those who have no account",
                {200: answer("What is to be sent along.", "Share")},
                body=body("ShareTerms", required=False),
            )
        },
        "/v2/share/revoke": {
            "post": operation("revoke_shares", "End all that was signed for the project", {204: answer("Ended.")})
        },
    }


def _shares() -> Json:
    texts = {"type": "array", "items": TEXT}
    return {
        "ShareTerms": {
            "type": "object",
            "properties": {
                "paths": {"type": ["array", "null"], "items": {"type": "string", "enum": list(PATHS)}},
                "methods": {"type": ["array", "null"], "items": {"type": "string", "enum": list(METHODS)}},
                "expires": {"type": ["string", "null"]},
            },
            "additionalProperties": False,
        },
        "Share": _object({"paths": texts, "methods": texts, "project": IDS, "expires": TEXT, "signature": TEXT}),
    }


def _audit_entry() -> Json:
    texts = _object(dict.fromkeys((name for name in Entry.__struct_fields__ if name != "messages"), TEXT))
    texts["properties"] |= {"time": TEXT | {"format": "date-time"}}
    texts["properties"]["messages"] = integer(0, MOST) | {"description": "How many it was about, where that is known."}
    return texts


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def tokens() -> Json:
    """By path and method."""
    project = query("project", TEXT, "Whose tokens; all, if it is absent.")
    needed = query("project", TEXT, "Whose token it is to be.", required=True)
    paths = _tokens("/v2/tokens", "", [], []) | _tokens("/v2/admin/tokens", "admin_", [project], [needed])
    jti = query("jti", TEXT | {"minLength": 1, "maxLength": MAX_TEXT}, "The token's claim of this name.", required=True)
    paths["/v2/admin/tokens"]["delete"] = operation(
        "admin_deny_jwt", "Revoke a JSON Web Token by its id", {204: answer("Revoked.")}, parameters=[jti]
    )
    return paths


def _tokens(path: str, prefix: str, project: list[Json], needed: list[Json]) -> Json:
    page = [
        query("marker", TEXT, "List ids after this one."),
        query("limit", integer(1, MOST_TOKENS, default=DEFAULT_PAGE), "Tokens in the page."),
    ]
    made = answer("The token, shown this once.", "MadeToken", "Location")
    whose = "any project" if prefix else "the project"
    collection = {
        "get": operation(
            f"{prefix}list_tokens",
            f"List tokens of {whose}",
            {200: answer("A page.", "TokenPage")},
            parameters=page + project,
        ),
        "post": operation(
            f"{prefix}create_token",
            f"Make a token of {whose}",
            {201: made},
            parameters=needed,
            body=body("TokenTerms", required=False),
        ),
    }
    return {path: collection} | _token(path, prefix, project, whose, made)


def _token(path: str, prefix: str, project: list[Json], whose: str, made: Json) -> Json:
    """The paths of one token."""
    return {
        f"{path}/{{token}}": {
            "get": operation(
                f"{prefix}get_token",
                f"A token of {whose}",
                {200: answer("Without its secret.", "Token")},
                parameters=project,
                errors=[404],
            ),
            "delete": operation(
                f"{prefix}revoke_token", f"Revoke a token of {whose}", {204: answer("Revoked.")}, parameters=project
            ),
        },
        f"{path}/{{token}}/rotate": {
            "post": operation(
                f"{prefix}rotate_token",
                f"Make a twin of a token of {whose}, which ends within a day",
                {201: made},
                parameters=project,
                errors=[404],
            )
        },
    }
