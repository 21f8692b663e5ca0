# SPDX-License-Identifier: Apache-2.0
"""Tokens and pre-signed URLs on the wire (tenancy 5, contract 10.1)."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from zq import wire
from zq.model import Seconds
from zq.model.identity import Identity
from zq.wire.answers import timestamp


class TokenTerms(Struct):
    """The body of a new token. Only administrators may set ``user``."""

    name: str = ""
    scopes: list[str] | None = None
    roles: list[str] = []
    days: int | UnsetType = UNSET
    user: str = ""


class ShareTerms(Struct, forbid_unknown_fields=True):
    """The body of a request to sign a URL; ``None`` = the default."""

    paths: list[str] | None = None
    methods: list[str] | None = None
    expires: str | None = None


_decoder: Final = msgspec.json.Decoder(TokenTerms)
_share_decoder: Final = msgspec.json.Decoder(ShareTerms)


def token_terms(raw: bytes) -> TokenTerms:
    """Parse the terms of a new token; an empty body gives the defaults. Raises ``InvalidBody``."""
    return wire.decode(_decoder, raw) if raw else TokenTerms()


def share_terms(raw: bytes) -> ShareTerms:
    """Parse the terms of a signed URL; an empty body gives the defaults. Raises ``InvalidBody``."""
    return wire.decode(_share_decoder, raw) if raw else ShareTerms()


def known_as(identity: Identity) -> dict[str, Any]:
    """Return a caller's identity as shown to the caller. ``credential`` is "" if the caller was not authenticated."""
    return {
        "project": identity.project,
        "user": identity.user,
        "roles": sorted(identity.roles),
        "scopes": None if identity.scopes is None else list(identity.scopes),
        "credential": identity.credential,
        "expires": None if identity.expires is None else timestamp(identity.expires),
    }


def shown(id: str, stored: Any, used: Seconds | None) -> dict[str, Any]:
    """Return a token without its secret.

    Args:
        stored: The stored token.
        used: Time of last use; ``None`` = never used.
    """
    return {
        "id": id,
        "project": stored.project,
        "user": stored.user,
        "name": stored.name,
        "roles": list(stored.roles),
        "scopes": None if stored.scopes is None else list(stored.scopes),
        "created": timestamp(stored.created),
        "expires": timestamp(stored.expires),
        "by": stored.by,
        "last_used": None if used is None else timestamp(used),
    }
