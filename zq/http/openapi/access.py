# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of ``/v2/quota``, tokens and signed URLs."""

from typing import Final

from zq.auth.policy import RULES
from zq.auth.signatures import METHODS, PATHS
from zq.core.trail import MAX_PAGE
from zq.http.openapi.operations import QUEUE, TEXT, Json, answer, body, integer, operation, query, reference
from zq.http.openapi.structs import answer_schemas, page_schema, request_schemas
from zq.http.tokens import MAX_PAGE as MAX_TOKENS_PAGE
from zq.model.audit import Entry
from zq.model.limits import DEFAULT_PAGE, MAX_PROJECT, PROJECT_ID
from zq.model.quotas import BOUNDS
from zq.wire.quotas import QuotaReport
from zq.wire.tokens import MAX_TEXT, Identity, Me, Share, ShareTerms

ASKED: Final = (400, 403, 406, 503)
IDS: Final = TEXT | {"pattern": f"^{PROJECT_ID.pattern}$", "minLength": 1, "maxLength": MAX_PROJECT}


def administration() -> Json:
    """Return the OpenAPI operations of ``/v2/quota`` and ``/v2/audit``, by path and method."""
    return {
        "/v2/quota": {
            "get": operation("get_quota", "Get the project's quotas and usage", {200: "QuotaReport"}),
        },
        "/v2/audit": {
            "get": operation(
                "list_audit",
                "List changes and deletions, latest first",
                {200: "AuditPage"},
                parameters=[
                    query(
                        "marker",
                        TEXT | {"pattern": r"^[0-9]{18}\.[0-9a-f]{8}$"},
                        "Marker of the page, from the link in the previous page.",
                    ),
                    query("limit", integer(1, MAX_PAGE, default=DEFAULT_PAGE), "Maximum number of entries."),
                    query("since", TEXT | {"format": "date-time"}, "Earliest time of an entry."),
                ],
            )
        },
    }


def schemas() -> Json:
    """Return the schemas of quotas, callers, the audit trail and signed URLs."""
    values = {name: integer(*bounds) for name, bounds in BOUNDS.items()}
    found = answer_schemas(Identity, Me, QuotaReport, AuditEntry=Entry)
    found["AuditEntry"]["required"] = [name for name in Entry.__struct_fields__ if name != "messages"]
    found["Me"]["properties"]["rules"]["items"] = {"enum": list(RULES)}
    found["QuotaReport"]["properties"]["limits"] = reference("schemas", "OwnLimits")
    return _shares() | {
        **found,
        "OwnLimits": {"type": "object", "properties": values, "additionalProperties": False},
        "AuditPage": page_schema("entries", "AuditEntry"),
    }


def sharing() -> Json:
    """Return the OpenAPI operations of ``/v2/whoami``, ``/v2/me`` and signed URLs, by path and method."""
    return {
        "/v2/whoami": {
            "get": operation("get_identity", "Get the caller's identity", {200: "Identity"}),
        },
        "/v2/me": {
            "get": operation("get_me", "Get the caller's permissions", {200: "Me"}),
        },
        f"{QUEUE}/share": {
            "post": operation(
                "share_queue",
                "Sign a URL of the queue for callers without an account",
                {200: "Share"},
                body=body("ShareTerms", required=False),
            )
        },
        "/v2/share/revoke": {"post": operation("revoke_shares", "Revoke all signed URLs of the project", {204: ""})},
    }


def _shares() -> Json:
    terms = request_schemas(ShareTerms)
    for name, names in (("paths", PATHS), ("methods", METHODS)):
        terms["ShareTerms"]["properties"][name]["anyOf"][0]["items"]["enum"] = list(names)
    return terms | answer_schemas(Share)


def tokens() -> Json:
    """Return the OpenAPI operations of the token endpoints, by path and method."""
    project = query("project", TEXT, "Project of the tokens (default: all projects).")
    needed = query("project", TEXT, "Project of the token.", required=True)
    paths = _tokens("/v2/tokens", "", [], []) | _tokens("/v2/admin/tokens", "admin_", [project], [needed])
    jti = query("jti", TEXT | {"minLength": 1, "maxLength": MAX_TEXT}, "The jti claim of the token.", required=True)
    paths["/v2/admin/tokens"]["delete"] = operation(
        "admin_deny_jwt", "Revoke a JSON Web Token by its id", {204: ""}, parameters=[jti]
    )
    return paths


def _tokens(path: str, prefix: str, project: list[Json], needed: list[Json]) -> Json:
    page = [
        query("marker", TEXT, "List tokens with ids after this one."),
        query("limit", integer(1, MAX_TOKENS_PAGE, default=DEFAULT_PAGE), "Maximum number of tokens."),
    ]
    made = answer("The token. Its secret is not shown again.", "MadeToken", "Location")
    whose = "any project" if prefix else "the project"
    collection = {
        "get": operation(
            f"{prefix}list_tokens",
            f"List tokens of {whose}",
            {200: "TokenPage"},
            parameters=page + project,
        ),
        "post": operation(
            f"{prefix}create_token",
            f"Create a token of {whose}",
            {201: made},
            parameters=needed,
            body=body("TokenTerms", required=False),
        ),
    }
    return {path: collection} | _token(path, prefix, project, whose, made)


def _token(path: str, prefix: str, project: list[Json], whose: str, made: Json) -> Json:
    return {
        f"{path}/{{token}}": {
            "get": operation(
                f"{prefix}get_token",
                f"Get a token of {whose}",
                {200: answer("The token without its secret.", "Token")},
                parameters=project,
                errors=[404],
            ),
            "delete": operation(f"{prefix}revoke_token", f"Revoke a token of {whose}", {204: ""}, parameters=project),
        },
        f"{path}/{{token}}/rotate": {
            "post": operation(
                f"{prefix}rotate_token",
                f"Replace a token of {whose}, which expires within a day",
                {201: made},
                parameters=project,
                errors=[404],
            )
        },
    }
