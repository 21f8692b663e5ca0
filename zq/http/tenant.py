# SPDX-License-Identifier: Apache-2.0
"""Middleware that checks common headers and resolves project, client, queue and topic, in the order of contract 1.2."""

import re
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import falcon
from falcon import mediatypes

from zq.errors import InvalidHeader, InvalidName, InvalidTopicName, NotAuthorized
from zq.http import query
from zq.http.context import Request
from zq.model import limits
from zq.model.identity import Identity

# Headers with the project. If a request has several of them, their values must be equal.
PROJECT: Final = {
    "HTTP_X_PROJECT_ID": "X-Project-ID",
    "HTTP_X_TENANT_ID": "X-Tenant-Id",
    "HTTP_X_TENANT": "X-Tenant",
}
# Hint in errors about missing headers.
HEADERS_HINT: Final = (
    "Every request must identify its client, for example with curl -H 'Client-ID: "
    "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f' -H 'X-Project-ID: acme'. Choose any UUID."
)
# Environment key of the client's identity headers, after the authentication middleware has removed them.
IDENTITY_KEY: Final = "zq.presented"
# Environment key of requests through the control socket.
CONTROL: Final = "zq.operator"
EXTRA_SPECS = frozenset({"messagecode"})
_ANONYMOUS: Final = Identity(project="")
_HEX = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


class Audience(IntEnum):
    """The headers that a resource requires."""

    PROBE = 0
    """No headers, for probes of load balancers and orchestrators. ``Accept`` is ignored."""
    ANYONE = 1
    """No headers."""
    CLIENT = 2
    """Client id and project."""
    OPERATOR = 3
    """The administrator role, but no headers."""
    PROJECT = 4
    """Only the project, for programs that can set only one header."""


# Module variables are faster than attributes of the class.
PROBE, ANYONE, CLIENT = Audience.PROBE, Audience.ANYONE, Audience.CLIENT
# Audiences that require a project.
FOR_PROJECT: Final = (CLIENT, Audience.PROJECT)


class Tenant:
    """Falcon middleware that resolves the tenant of a request."""

    def __init__(
        self,
        limit: limits.Limits,
        strict_client_id: bool,
        trusts_roles: bool,
        find: limits.Find,
    ) -> None:
        """Initialize the middleware.

        Args:
            strict_client_id: Whether the ``Client-ID`` must be a UUID.
            trusts_roles: Whether the ``X-Roles`` header of unauthenticated callers is accepted.
            find: Checks whether a queue exists whose name is longer than the limit for new names.
        """
        self._limits = limit
        self._strict = strict_client_id
        self._find = find
        self._trusts_roles = trusts_roles

    def process_resource(
        self, req: Request, _resp: falcon.Response, resource: object, params: Mapping[str, str]
    ) -> None:
        audience = getattr(resource, "audience", CLIENT)
        context = req.context
        identity: Identity | None = getattr(context, "identity", None)
        if identity is not None and IDENTITY_KEY in req.env:
            _check_project(req, identity, resource)
        if audience == PROBE:
            return
        headers = req.env
        if headers.get("CONTENT_TYPE", falcon.MEDIA_JSON) != falcon.MEDIA_JSON and (
            "CONTENT_LENGTH" in headers or query.CHUNKED in headers
        ):
            query.reject_form(req)
        if "HTTP_ACCEPT" in headers:
            media = getattr(resource, "media", falcon.MEDIA_JSON)
            if not _accepts(headers["HTTP_ACCEPT"], media):
                raise falcon.HTTPNotAcceptable(description=f"This route answers with {media} only.")
        if audience == CLIENT:
            client = headers.get("HTTP_CLIENT_ID")
            if client is None:
                raise InvalidHeader("Missing header value", f"The header Client-ID is missing. {HEADERS_HINT}")
            context.client = _uuid(client) if self._strict else self._client(client)
        needs_project = audience in FOR_PROJECT
        if identity is None:
            anonymous = audience == ANYONE
            identity = _ANONYMOUS if anonymous else self._read_identity(headers, needs_project, "topic" in params)
        context.identity = identity
        if needs_project:
            context.project = identity.project
            if "queue" in params:
                name = params["queue"]
                if len(name) <= limits.MAX_NAME:
                    context.queue = limits.queue_ref(identity.project, name)
                else:
                    find = None if req.method == "DELETE" else self._find
                    context.queue = limits.reachable_queue_ref(identity.project, name, find)
            if "topic" in params:
                context.topic = limits.topic_ref(identity.project, params["topic"])
        if "HTTP_EXTRA_SPEC" in headers:
            _check_extra_spec(headers["HTTP_EXTRA_SPEC"])

    def _read_identity(self, env: Mapping[str, Any], needs_project: bool, of_topic: bool) -> Identity:
        """Return the caller's identity from the identity headers.

        If the project id is invalid, raises ``InvalidTopicName`` (with ``of_topic``) or ``InvalidName``.
        """
        headers: Mapping[str, Any] = env.get(IDENTITY_KEY, env)
        through_proxy = headers is not env
        roles = headers.get("HTTP_X_ROLES") if through_proxy or self._trusts_roles else None
        projects = tuple(map(headers.get, PROJECT)) if needs_project else None
        return _identity(projects, of_topic, headers.get("HTTP_X_USER_ID", ""), roles, through_proxy)

    def _client(self, value: str) -> str:
        low, high = self._limits.min_length_client_id, self._limits.max_length_client_id
        if not low <= len(value) <= high:
            raise InvalidHeader(
                "Wrong UUID value", f"Client-ID must be {low} to {high} characters; it has {len(value)}."
            )
        return value


def _check_project(req: Request, identity: Identity, resource: object) -> None:
    for name, project in req.env[IDENTITY_KEY].items():
        if name in PROJECT and project != identity.project:
            rule = getattr(resource, "policy", {}).get(req.method)
            raise NotAuthorized(f"This credential does not allow {rule or req.method} on project {project[:256]}.")


@lru_cache(maxsize=4096)
def _identity(
    projects: tuple[str | None, ...] | None, of_topic: bool, user: str, roles: str | None, through_proxy: bool
) -> Identity:
    """Return the identity for these header values. Equal values yield the same object."""
    # Caches of permissions use the ``id`` of the object as a key.
    project = "" if projects is None else _project(projects, InvalidTopicName if of_topic else InvalidName)
    return Identity(project=project, user=user, roles=_roles(roles), credential="proxy" if through_proxy else "")


@lru_cache(maxsize=1024)
def _uuid(value: str) -> str:
    digits = value.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "")
    if _HEX.fullmatch(digits) is None:
        raise InvalidHeader("Wrong UUID value", "Client-ID must be a UUID: 32 hex digits, with or without hyphens.")
    return digits.lower()


def _project(values: tuple[str | None, ...], error: type[InvalidName]) -> str:
    given = {spelled: value for spelled, value in zip(PROJECT.values(), values, strict=True) if value is not None}
    if not given:
        raise InvalidHeader("Project-Id Missing", f"The header X-Project-ID is missing. {HEADERS_HINT}")
    (spelled, project), *others = given.items()
    if not project:
        raise InvalidHeader("Empty project header not allowed", f"The header {spelled} must not be empty.")
    for other, value in others:
        if value != project:
            raise InvalidHeader("Invalid header value", f"The headers {spelled} and {other} must not differ.")
    if "," in project:  # servers join repeated headers with commas
        raise InvalidHeader("Invalid header value", f"{spelled} must be given once.")
    return limits.project_id(project, error)


def _check_extra_spec(value: str) -> None:
    if value:
        scheme, colon, _ = value.partition(":")
        if not colon or scheme not in EXTRA_SPECS:
            known = ", ".join(sorted(EXTRA_SPECS))
            raise InvalidHeader(
                "Invalid header value", f"EXTRA-SPEC must be <scheme>:<data> with one of these schemes: {known}."
            )


@lru_cache(maxsize=256)
def _accepts(accept: str, media: str) -> bool:
    if not accept.strip():
        return True
    try:
        return mediatypes.quality(media, accept.lower()) > 0
    except falcon.InvalidMediaType:
        return False


@lru_cache(maxsize=256)
def _roles(value: str | None) -> frozenset[str]:
    return frozenset(role.strip().lower() for role in (value or "").split(",") if role.strip())
