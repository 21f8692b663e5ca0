# SPDX-License-Identifier: Apache-2.0
"""The caller's identity, which every authentication strategy produces, and the authentication options."""

from typing import Final

from msgspec import Struct

from zq.model import Seconds

# The role of callers whose credential contains no role.
MEMBER: Final = "member"
# Signature algorithms that the operator may allow for JSON Web Tokens.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
# WSGI environment key of the certificate's subject and expiry.
CERTIFICATE: Final = "zq.certificate"
# The role of administrators of the deployment.
ADMIN: Final = "admin"


class Identity(Struct, frozen=True):
    """An authenticated caller and the rights of its credential.

    Attributes:
        expires: Expiry time of the credential; ``None`` = no expiry.
    """

    project: str
    user: str = ""
    roles: frozenset[str] = frozenset()
    """Role names in lower case."""
    scopes: tuple[str, ...] | None = None
    """Scopes that limit access to the project; ``None`` = no limit."""
    credential: str = ""
    """Name of the credential in logs; "" if the caller was not authenticated."""
    expires: Seconds | None = None


class JwtOptions(Struct, frozen=True, kw_only=True):
    """The options for JSON Web Tokens: section ``[auth]``, without the prefix jwt_."""

    issuer: str = ""
    audience: str = ""
    jwks: str = ""
    """Path of a file, or an https URL."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    project_claim: str = "zq_project"
    """Path of the claim: names separated by dots. The next two options have the same format."""
    roles_claim: str = "zq_roles"
    scope_claim: str = "zq_scopes"
    leeway: int = 30
    """Tolerance for expiry times in seconds. The next two options are in seconds too."""
    max_age: int = 86400
    max_stale: int = 3600
    type: str = ""
    """Required value of the header field ``typ``; "" = any value."""


class AuthOptions(Struct, frozen=True, kw_only=True):
    """The authentication options."""

    strategy: str = ""
    """Name of the strategy; "" = callers are trusted without authentication."""
    proxy_secret_file: str = ""
    token_max_days: int = 366
    bootstrap_token_file: str = ""
    jwt: JwtOptions = JwtOptions()
    behind_proxy: bool = False
    """Whether the last address in ``X-Forwarded-For`` is the caller's."""
    certificates: str = ""
    """Path of a file that maps certificate subjects to identities."""


class ShareOptions(Struct, frozen=True, kw_only=True):
    """The options of signed URLs: section ``[signed_url]``."""

    secrets: tuple[str, ...] = ()
    """The first secret signs; all of them verify. Without secrets, signed URLs are disabled."""
    max_seconds: int = 604_800
    """Maximum validity of a signature in seconds."""
