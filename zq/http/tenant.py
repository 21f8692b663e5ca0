# SPDX-License-Identifier: Apache-2.0
"""Who asks, and for whose queue: the checks between routing and handler, in the order of contract 1.2.

A resource says with ``audience`` which of them it needs, with ``policy`` which rule each method falls under and with
``media`` what it answers in, if that is not JSON.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import falcon
from falcon import mediatypes

from zq import limits
from zq.errors import InvalidHeader, InvalidName, InvalidTopicName, NotAuthorized
from zq.http import query

Policy = Callable[[str, frozenset[str]], bool]
"""(rule, roles) -> allowed. Rules are named as in contract 15."""

PROJECT: Final = {
    "HTTP_X_PROJECT_ID": "X-Project-ID",
    "HTTP_X_TENANT_ID": "X-Tenant-Id",
    "HTTP_X_TENANT": "X-Tenant",
}
"""The headers that name the project, the first that is there counts."""
WHO_ASKS: Final = (
    "Every request says who asks, as curl does with -H 'Client-ID: 5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f' "
    "-H 'X-Project-ID: acme'; the UUID is of your choice."
)
EXTRA_SPECS = frozenset({"messagecode"})
ADMIN_RULES = frozenset({"health:get", "pools", "flavors:create", "flavors:delete", "flavors:update"})
_HEX = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


class Audience(IntEnum):
    """Which headers a resource asks for."""

    PROBE = 0
    """None: for the operator's machinery."""
    ANYONE = 1
    """Those of content negotiation."""
    CLIENT = 2
    """A client id and a project as well."""


def default_policy(rule: str, roles: frozenset[str]) -> bool:
    """Everyone may do everything, but administration is for the role ``admin`` (contract 15)."""
    return "admin" in roles or not (rule in ADMIN_RULES or rule.split(":")[0] in ADMIN_RULES)


class Tenant:
    """Falcon middleware. Leaves ``client``, ``project`` and, where the path has one, ``queue`` or ``topic`` in
    ``req.context``."""

    def __init__(self, limit: limits.Limits, strict_client_id: bool, policy: Policy, believes_roles: bool) -> None:
        """``believes_roles``: the operator answers for it that nobody gives himself one."""
        self._limits = limit
        self._strict = strict_client_id
        self._policy = policy
        self._believes_roles = believes_roles

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: object, params: Mapping[str, str]
    ) -> None:
        audience = getattr(resource, "audience", Audience.CLIENT)
        if audience == Audience.PROBE:
            return
        headers = req.env
        if "HTTP_URL_SIGNATURE" in headers:
            raise falcon.HTTPNotFound  # no key is configured, so no signature is valid, nor is an empty one (10.3)
        if "CONTENT_LENGTH" in headers or query.CHUNKED in headers:
            query.refuse_form(req)
        _check_accept(headers.get("HTTP_ACCEPT", ""), getattr(resource, "media", falcon.MEDIA_JSON))
        if audience == Audience.CLIENT:
            req.context.client = self._client(headers.get("HTTP_CLIENT_ID"))
            req.context.project = _project(headers, InvalidTopicName if "topic" in params else InvalidName)
            if "queue" in params:
                req.context.queue = limits.queue_ref(req.context.project, params["queue"])
            if "topic" in params:
                req.context.topic = limits.topic_ref(req.context.project, params["topic"])
        _check_extra_spec(headers.get("HTTP_EXTRA_SPEC"))
        rule = getattr(resource, "policy", {}).get(req.method)
        if rule is not None and not self._policy(rule, self._roles(headers.get("HTTP_X_ROLES"))):
            raise NotAuthorized(f"Your roles do not allow {rule}.")

    def _roles(self, value: str | None) -> frozenset[str]:
        return _roles(value) if self._believes_roles else frozenset()

    def _client(self, value: str | None) -> str:
        if value is None:
            raise InvalidHeader("Missing header value", f"The header Client-ID is missing. {WHO_ASKS}")
        if self._strict:
            return _uuid(value)
        low, high = self._limits.min_length_client_id, self._limits.max_length_client_id
        if not low <= len(value) <= high:
            raise InvalidHeader(
                "Wrong UUID value", f"Client-ID must be {low} to {high} characters; it has {len(value)}."
            )
        return value


@lru_cache(maxsize=1024)
def _uuid(value: str) -> str:
    """The one form of a client's UUID: 32 lower-case hex digits."""
    digits = value.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "")
    if _HEX.fullmatch(digits) is None:
        raise InvalidHeader("Wrong UUID value", "Client-ID must be a UUID: 32 hex digits, with or without hyphens.")
    return digits.lower()


def _project(headers: Mapping[str, Any], error: type[InvalidName]) -> str:
    given = {spelled: headers[name] for name, spelled in PROJECT.items() if name in headers}
    if not given:
        raise InvalidHeader("Project-Id Missing", f"The header X-Project-ID is missing. {WHO_ASKS}")
    (spelled, project), *others = given.items()
    if not project:
        raise InvalidHeader("Empty project header not allowed", f"The header {spelled} must not be empty.")
    for other, value in others:
        if value != project:  # who set the one cannot have meant the other
            raise InvalidHeader("Invalid header value", f"The headers {spelled} and {other} must not differ.")
    if "," in project:  # as servers join headers of one name
        raise InvalidHeader("Invalid header value", f"{spelled} must be given once.")
    return limits.project_id(project, error)


def _check_accept(accept: str, media: str) -> None:
    if not _accepts(accept, media):
        raise falcon.HTTPNotAcceptable(description=f"This route answers in {media} only.")


def _check_extra_spec(value: str | None) -> None:
    if value:
        scheme, colon, _ = value.partition(":")
        if not colon or scheme not in EXTRA_SPECS:
            known = ", ".join(sorted(EXTRA_SPECS))
            raise InvalidHeader(
                "Invalid header value", f"EXTRA-SPEC must be <scheme>:<data>, its scheme one of: {known}."
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
