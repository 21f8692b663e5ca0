# SPDX-License-Identifier: Apache-2.0
"""Tokens, and pre-signed URLs, on the wire (tenancy 5, contract 10.1)."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from zq import wire
from zq.model import Seconds
from zq.model.identity import Identity
from zq.wire.answers import timestamp


class TokenTerms(Struct):
    """The body of a new token. ``user`` counts only where administrators make it."""

    name: str = ""
    scopes: list[str] | None = None
    roles: list[str] = []
    days: int | UnsetType = UNSET
    user: str = ""


class ShareTerms(Struct, forbid_unknown_fields=True):
    """What of a queue is to be signed; None = by default."""

    paths: list[str] | None = None
    methods: list[str] | None = None
    expires: str | None = None


_decoder: Final = msgspec.json.Decoder(TokenTerms)
_share_decoder: Final = msgspec.json.Decoder(ShareTerms)


def token_terms(raw: bytes) -> TokenTerms:
    """What a new token is to give; of an empty body the defaults. Raises ``InvalidBody``."""
    return wire.decode(_decoder, raw) if raw else TokenTerms()


def share_terms(raw: bytes) -> ShareTerms:
    """What is to be signed; of an empty body the defaults. Raises ``InvalidBody``."""
    return wire.decode(_share_decoder, raw) if raw else ShareTerms()


def known_as(identity: Identity) -> dict[str, Any]:
    """A caller. ``credential`` names what was shown, "" = nobody was asked; ``scopes`` and ``expires`` may be null."""
    return {
        "project": identity.project,
        "user": identity.user,
        "roles": sorted(identity.roles),
        "scopes": None if identity.scopes is None else list(identity.scopes),
        "credential": identity.credential,
        "expires": None if identity.expires is None else timestamp(identity.expires),
    }


def shown(id: str, stored: Any, used: Seconds | None) -> dict[str, Any]:
    """A token without its secret. ``stored``: it has the members below; ``used`` None = never."""
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
