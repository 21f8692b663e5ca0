# SPDX-License-Identifier: Apache-2.0
"""Who asks, and for whose queue: the checks between routing and handler, in the order of contract 1.2.

A resource says with ``audience`` which of them it needs, with ``policy`` which rule each method falls under and with
``media`` what it answers in, if that is not JSON.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache

import falcon
from falcon import mediatypes

from zq import limits
from zq.errors import InvalidHeader, NotAuthorized
from zq.http import heads

Policy = Callable[[str, frozenset[str]], bool]
"""(rule, roles) -> allowed. Rules are named as in contract 15."""

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

    def __init__(self, limit: limits.Limits, strict_client_id: bool, policy: Policy) -> None:
        self._limits = limit
        self._strict = strict_client_id
        self._policy = policy

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        """Refuse what the engine found wrong with the raw head, whatever the route."""
        sentence = req.env.get(heads.REFUSED)
        if sentence is not None:
            raise InvalidHeader("Invalid header value", sentence)

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: object, params: Mapping[str, str]
    ) -> None:
        audience = getattr(resource, "audience", Audience.CLIENT)
        if audience == Audience.PROBE:
            return
        headers = req.env
        if headers.get("HTTP_URL_SIGNATURE"):
            raise falcon.HTTPNotFound  # no key is configured, so no signature is valid (contract 10.3)
        _check_negotiation(headers, getattr(resource, "media", falcon.MEDIA_JSON))
        if audience == Audience.CLIENT:
            req.context.client = self._client(headers.get("HTTP_CLIENT_ID"))
            req.context.project = _project(headers)
            if "queue" in params:
                req.context.queue = limits.queue_ref(req.context.project, params["queue"])
            if "topic" in params:
                req.context.topic = limits.topic_ref(req.context.project, params["topic"])
        _check_extra_spec(headers.get("HTTP_EXTRA_SPEC"))
        rule = getattr(resource, "policy", {}).get(req.method)
        if rule is not None and not self._policy(rule, _roles(headers.get("HTTP_X_ROLES"))):
            raise NotAuthorized(f"Your roles do not allow {rule}.")

    def _client(self, value: str | None) -> str:
        if value is None:
            raise InvalidHeader("Missing header value", "The header Client-ID is missing.")
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


def _project(headers: Mapping[str, str]) -> str:
    for name in ("HTTP_X_PROJECT_ID", "HTTP_X_TENANT_ID", "HTTP_X_TENANT"):
        project = headers.get(name)
        if project is not None:
            if not project:
                raise InvalidHeader("Empty project header not allowed", "The header X-Project-ID must not be empty.")
            return project
    raise InvalidHeader("Project-Id Missing", "The header X-Project-ID is missing.")


def _check_negotiation(headers: Mapping[str, str], media: str) -> None:
    content_type = headers.get("CONTENT_TYPE")
    if content_type and "CONTENT_LENGTH" in headers and content_type.lower() == "application/x-www-form-urlencoded":
        raise InvalidHeader("Invalid Content-Type", "Content-Type must not be that of a form: bodies are JSON.")
    if not _accepts(headers.get("HTTP_ACCEPT", ""), media):
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
