# SPDX-License-Identifier: Apache-2.0
"""Authentication options, and the caller's identity, which every authentication strategy produces."""

from typing import Annotated, Final

from msgspec import Struct

from zq.model import Seconds
from zq.model.options import Option, Text, Texts

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
    """An authenticated caller and the rights of its credential."""

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
    """The options of JSON Web Tokens in section ``[auth]``, without the prefix ``jwt_``."""

    issuer: Text = ""
    """For jwt: required value of iss."""
    audience: Text = ""
    """For jwt: required value of aud, or one of its values."""
    jwks: Text = ""
    """For jwt: the issuer's key set (JWKS), as a file or an https URL."""
    algorithms: Texts = ("RS256", "ES256", "EdDSA")
    """Accepted signature algorithms; never none or HS256."""
    project_claim: Text = "zq_project"
    """Claim with the project; dots select nested claims."""
    roles_claim: Text = "zq_roles"
    """Claim with the roles; dots select nested claims."""
    scope_claim: Text = "zq_scopes"
    """Claim with the scopes; dots select nested claims."""
    leeway: Annotated[int, Option(0, 60)] = 30
    """Maximum clock difference to the issuer in seconds."""
    max_age: Annotated[int, Option(1, 31_622_400)] = 86_400
    """Maximum seconds between iat and exp of a token."""
    type: Text = ""
    """Required typ of the token header, such as at+jwt. Empty: any."""
    max_stale: Annotated[int, Option(0, 604_800, name="jwks_max_stale")] = 3600
    """Seconds for which the last keys stay in use if jwt_jwks is unavailable."""


class AuthOptions(Struct, frozen=True, kw_only=True):
    """Options for authentication and for the policy."""

    strategy: Annotated[str, Option(name="auth_strategy", section="DEFAULT")] = ""
    """Authentication strategy: proxy, token, jwt, token,jwt or keystone. Empty: no authentication; the server trusts
    request headers."""
    proxy_secret_file: Annotated[str, Option(reload=True)] = ""
    """For proxy: a file (mode 0600 or 0640) with one or two secrets of at least 32 bytes, one per line. The proxy
    authenticates with one of them in the header X-ZQ-Proxy-Secret."""
    token_max_days: Annotated[int, Option(1, 3660)] = 366
    """Maximum lifetime of a token in days."""
    bootstrap_token_file: Text = ""
    """A file (mode 0600 or 0640) with an administrator's token. The server stores the token while no other
    administrator token exists, unless the token was revoked."""
    certificates: Annotated[str, Option(reload=True)] = ""
    """For token, with gunicorn and tls_client_ca: a TOML file that maps certificate subjects to projects, roles and
    scopes."""
    policy_file: Annotated[str, Option(reload=True, section="oslo_policy")] = ""
    """Policy file in oslo.policy format, which maps rules to roles; needs the extra policy. Empty: the rules in
    api-ref/policy.md."""
    jwt: JwtOptions = JwtOptions()
    behind_proxy: bool = False
    """Whether the last address in ``X-Forwarded-For`` is the caller's."""


class SignedUrlOptions(Struct, frozen=True, kw_only=True):
    """The options of signed URLs: section ``[signed_url]``."""

    secret_key: Annotated[str, Option(reload=True, secret=True)] = ""
    """Secret of at least 32 bytes that signs URLs. Signed URLs give access to a queue without an account. Empty: no
    signed URL is valid."""
    old_secret_keys: Annotated[tuple[str, ...], Option(reload=True, secret=True)] = ()
    """Former values of secret_key, separated by commas. URLs signed with them remain valid."""
    max_seconds: Annotated[int, Option(60, 3_153_600_000, reload=True, name="max_share_seconds")] = 604_800
    """Maximum lifetime of a signed URL in seconds."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Secrets of signed URLs.

        The first secret signs URLs. A signature made with any of these secrets is valid. Without secrets, signed URLs
        are disabled.
        """
        return tuple(filter(None, (self.secret_key, *self.old_secret_keys)))
