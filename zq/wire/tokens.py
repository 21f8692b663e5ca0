# SPDX-License-Identifier: Apache-2.0
"""Request and response bodies for tokens and pre-signed URLs (tenancy contract, section 5; contract section 10.1)."""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from zq import wire
from zq.wire.answers import DateTime, ProjectId, Timestamp

# Maximum length of a token's name and of its user.
MAX_TEXT: Final = 256
# Maximum number of roles of a token.
MAX_ROLES: Final = 20
ROLE: Final = re.compile(r"[a-z0-9_.:-]{1,64}", re.ASCII)


class TokenTerms(Struct):
    """The body of a request to create a token. Only administrators may set ``user``."""

    name: str = ""
    scopes: list[str] | None = None
    roles: list[str] = []
    days: int | UnsetType = UNSET
    user: str = ""


class ShareTerms(Struct, forbid_unknown_fields=True):
    """The body of a request to create a pre-signed URL. A member that is absent or null has its default."""

    paths: list[str] | None = None
    methods: list[str] | None = None
    expires: str | None = None


class Share(Struct, frozen=True):
    """The parts of a pre-signed URL, which the caller sends as headers.

    Attributes:
        expires: Expiry time in UTC, without a time zone.
    """

    paths: list[str]
    methods: list[str]
    project: ProjectId
    expires: str
    signature: str


_decoder: Final = msgspec.json.Decoder(TokenTerms)
_share_decoder: Final = msgspec.json.Decoder(ShareTerms)


def token_terms(raw: bytes) -> TokenTerms:
    """Parse the body of a request to create a token. If the body is empty, return the defaults.

    Raises ``InvalidBody`` if the body is not valid.
    """
    return wire.decode(_decoder, raw) if raw else TokenTerms()


def share_terms(raw: bytes) -> ShareTerms:
    """Parse the body of a request to create a pre-signed URL. If the body is empty, return the defaults.

    Raises ``InvalidBody`` if the body is not valid.
    """
    return wire.decode(_share_decoder, raw) if raw else ShareTerms()


class Identity(Struct):
    """The caller's own identity.

    Attributes:
        scopes: null if the credential is valid for the whole project.
        credential: Empty if the caller was not authenticated.
    """

    project: str
    user: str
    roles: list[str]
    scopes: list[str] | None
    credential: str
    expires: DateTime | None


class Me(Struct):
    """The caller's permissions, and properties of the server.

    Attributes:
        projects: null if the caller was not authenticated.
        rules: The policy rules that the caller may use on at least one object.
        auth: Name of the authentication strategy.
        console: Version of the console; null if the server has none.
    """

    project: ProjectId
    projects: list[ProjectId] | None
    roles: list[str]
    rules: list[str]
    admin: bool
    auth: str
    console: str | None
    version: str


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
