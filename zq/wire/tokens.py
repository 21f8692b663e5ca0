# SPDX-License-Identifier: Apache-2.0
"""Tokens on the wire (tenancy 5)."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from zq import wire
from zq.model import Seconds
from zq.wire.answers import timestamp


class TokenTerms(Struct):
    """The body of a new token. ``user`` counts only where administrators make it."""

    name: str = ""
    scopes: list[str] | None = None
    roles: list[str] = []
    days: int | UnsetType = UNSET
    user: str = ""


_decoder: Final = msgspec.json.Decoder(TokenTerms)


def token_terms(raw: bytes) -> TokenTerms:
    """What a new token is to give; of an empty body the defaults. Raises ``InvalidBody``."""
    return wire.decode(_decoder, raw) if raw else TokenTerms()


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
