# SPDX-License-Identifier: Apache-2.0
"""Who asks: what every strategy of authentication comes to."""

from typing import Final

from msgspec import Struct

from zq.model import Seconds

# The role of those whose credential names none.
MEMBER: Final = "member"
# Algorithms by which JSON Web Tokens may be signed, where they are allowed.
ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
# In the environment of a request: the subject of the caller's certificate, and until when that is valid.
CERTIFICATE: Final = "zq.certificate"
# The role that administers the deployment.
ADMIN: Final = "admin"


class Identity(Struct, frozen=True):
    """One caller, and what the credential gives. ``expires`` None = never."""

    project: str
    user: str = ""
    roles: frozenset[str] = frozenset()
    """In lower case."""
    scopes: tuple[str, ...] | None = None
    """What of the project may be touched; None = all of it."""
    credential: str = ""
    """Names the credential in logs; "" = there was none, the caller is believed."""
    expires: Seconds | None = None


class JwtOptions(Struct, frozen=True, kw_only=True):
    """Which JSON Web Tokens are believed, and what their claims mean: section ``[auth]``, without the prefix jwt_."""

    issuer: str = ""
    audience: str = ""
    jwks: str = ""
    """A file, or an https URL."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    project_claim: str = "zq_project"
    """A path of names with dots between, as are the next two."""
    roles_claim: str = "zq_roles"
    scope_claim: str = "zq_scopes"
    leeway: int = 30
    """Seconds, as are the next two."""
    max_age: int = 86400
    max_stale: int = 3600
    type: str = ""
    """What ``typ`` of the header must be; "" = anything."""


class AuthOptions(Struct, frozen=True, kw_only=True):
    """How callers prove who they are."""

    strategy: str = ""
    """Empty: they are believed."""
    proxy_secret_file: str = ""
    token_max_days: int = 366
    bootstrap_token_file: str = ""
    jwt: JwtOptions = JwtOptions()
    behind_proxy: bool = False
    """The last address of ``X-Forwarded-For`` is the caller's."""
    certificates: str = ""
    """A file that says whom the subjects of certificates are."""


class ShareOptions(Struct, frozen=True, kw_only=True):
    """How URLs are signed: section ``[signed_url]``."""

    secrets: tuple[str, ...] = ()
    """The first signs, all verify; none: nothing can be signed, and no signature is valid."""
    max_seconds: int = 604_800
    """For how long a signature may be valid."""
