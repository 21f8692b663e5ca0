# SPDX-License-Identifier: Apache-2.0
"""Tokens and pre-signed URLs on the wire (tenancy 5, contract 10.1)."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from zq import wire
from zq.model import Seconds
from zq.model import identity as identities
from zq.wire.answers import DateTime, Timestamp
from zq.wire.encoding import timestamp


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


class Identity(Struct):
    """A caller's identity as shown to the caller.

    Attributes:
        scopes: null if the caller may use all names.
        credential: Empty if the caller was not authenticated.
    """

    project: str
    user: str
    roles: list[str]
    scopes: list[str] | None
    credential: str
    expires: DateTime | None


class Token(Struct):
    """A token without its secret.

    Attributes:
        by: The credential that created the token.
        last_used: null if the token was never used.
    """

    id: str
    project: str
    user: str
    name: str
    roles: list[str]
    scopes: list[str] | None
    created: Timestamp
    expires: Timestamp
    by: str
    last_used: Timestamp | None


class MadeToken(Token, kw_only=True):
    """A new token with its secret, which is not shown again."""

    token: str


def known_as(identity: identities.Identity) -> Identity:
    """Return a caller's identity as shown to the caller."""
    return Identity(
        identity.project,
        identity.user,
        sorted(identity.roles),
        None if identity.scopes is None else list(identity.scopes),
        identity.credential,
        None if identity.expires is None else timestamp(identity.expires),
    )


def shown(id: str, stored: Any, used: Seconds | None) -> Token:
    """Return a token without its secret.

    Args:
        stored: The stored token.
        used: Time of last use; ``None`` = never used.
    """
    return Token(
        id=id,
        project=stored.project,
        user=stored.user,
        name=stored.name,
        roles=list(stored.roles),
        scopes=None if stored.scopes is None else list(stored.scopes),
        created=timestamp(stored.created),
        expires=timestamp(stored.expires),
        by=stored.by,
        last_used=None if used is None else timestamp(used),
    )
