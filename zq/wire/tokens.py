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
    """The body of a request to create a token. ``user`` is for administrators only."""

    name: str = ""
    scopes: list[str] | None = None
    roles: list[str] = []
    days: int | UnsetType = UNSET
    user: str = ""


class ShareTerms(Struct, forbid_unknown_fields=True):
    """The body of a request to sign a URL. ``None`` means the default."""

    paths: list[str] | None = None
    methods: list[str] | None = None
    expires: str | None = None


_decoder: Final = msgspec.json.Decoder(TokenTerms)
_share_decoder: Final = msgspec.json.Decoder(ShareTerms)


def token_terms(raw: bytes) -> TokenTerms:
    """Parse the body of a request to create a token. If the body is empty, return the defaults.

    Raises ``InvalidBody`` if the body is not valid.
    """
    return wire.decode(_decoder, raw) if raw else TokenTerms()


def share_terms(raw: bytes) -> ShareTerms:
    """Parse the body of a request to sign a URL. If the body is empty, return the defaults.

    Raises ``InvalidBody`` if the body is not valid.
    """
    return wire.decode(_share_decoder, raw) if raw else ShareTerms()


def identity_document(identity: Identity) -> dict[str, Any]:
    """Return the document of ``/v2/whoami``. ``credential`` is "" if the caller is not authenticated."""
    return {
        "project": identity.project,
        "user": identity.user,
        "roles": sorted(identity.roles),
        "scopes": None if identity.scopes is None else list(identity.scopes),
        "credential": identity.credential,
        "expires": None if identity.expires is None else timestamp(identity.expires),
    }


def token_document(id: str, stored: Any, used: Seconds | None) -> dict[str, Any]:
    """Return the document of a token, without the secret.

    Args:
        stored: The token in the store, ``zq.auth.tokens.StoredToken``.
        used: Time of the last use, or ``None``.
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
