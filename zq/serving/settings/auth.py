# SPDX-License-Identifier: Apache-2.0
"""Authentication options: section ``[auth]`` and related options of other sections."""

import os
from typing import Any, Final
from urllib.parse import unquote

from oslo_config import cfg

from zq.errors import StartRefused
from zq.limits import MAX_LIFE
from zq.model import store_uri
from zq.model.identity import AuthOptions, JwtOptions, ShareOptions

JWT: Final = JwtOptions()
STRATEGIES: Final = ("", "proxy", "token", "jwt", "token,jwt", "keystone")
# The section of keystonemiddleware, whose options are not checked here.
KEYSTONE: Final = "keystone_authtoken"

STRATEGY: Final = cfg.StrOpt(
    "auth_strategy",
    default="",
    help="Authentication strategy: proxy, token, jwt, token,jwt or keystone. Empty: no authentication; the server "
    "trusts request headers.",
)
CONTROL: Final = cfg.StrOpt(
    "control",
    default="",
    help="Path of the Unix socket through which zq-server token reaches a server with an embedded store; none: no "
    "socket. Default: control.sock in the store directory.",
)
AUTH: Final = [
    cfg.StrOpt(
        "proxy_secret_file",
        default="",
        mutable=True,
        help="For proxy: a file (mode 0600 or 0640) with one or two secrets of at least 32 bytes, one per line. The "
        "proxy authenticates with one of them in the header X-ZQ-Proxy-Secret.",
    ),
    cfg.IntOpt("token_max_days", default=366, min=1, max=3660, help="Maximum lifetime of a token in days."),
    cfg.StrOpt(
        "bootstrap_token_file",
        default="",
        help="A file (mode 0600 or 0640) with an administrator's token. The server stores the token while no other "
        "administrator token exists, unless the token was revoked.",
    ),
    cfg.StrOpt("jwt_issuer", default="", help="For jwt: required value of iss."),
    cfg.StrOpt("jwt_audience", default="", help="For jwt: required value of aud, or one of its values."),
    cfg.StrOpt("jwt_jwks", default="", help="For jwt: the issuer's key set (JWKS), as a file or an https URL."),
    cfg.ListOpt(
        "jwt_algorithms", default=list(JWT.algorithms), help="Accepted signature algorithms; never none or HS256."
    ),
    cfg.StrOpt(
        "jwt_project_claim", default=JWT.project_claim, help="Claim with the project; dots select nested claims."
    ),
    cfg.StrOpt("jwt_roles_claim", default=JWT.roles_claim, help="Claim with the roles; dots select nested claims."),
    cfg.StrOpt("jwt_scope_claim", default=JWT.scope_claim, help="Claim with the scopes; dots select nested claims."),
    cfg.IntOpt(
        "jwt_leeway",
        default=JWT.leeway,
        min=0,
        max=60,
        help="Maximum clock difference to the issuer in seconds.",
    ),
    cfg.IntOpt(
        "jwt_max_age",
        default=JWT.max_age,
        min=1,
        max=31_622_400,
        help="Maximum seconds between iat and exp of a token.",
    ),
    cfg.StrOpt("jwt_type", default="", help="Required typ of the token header, such as at+jwt. Empty: any."),
    cfg.IntOpt(
        "jwks_max_stale",
        default=JWT.max_stale,
        min=0,
        max=604_800,
        help="Seconds for which the last keys stay in use if jwt_jwks is unavailable.",
    ),
]

# Minimum length in bytes of a secret for signed URLs.
MIN_SECRET: Final = 32
SIGNED_URL: Final = [
    cfg.StrOpt(
        "secret_key",
        default="",
        secret=True,
        mutable=True,
        help="Secret of at least 32 bytes that signs URLs. Signed URLs give access to a queue without an account. "
        "Empty: no signed URL is valid.",
    ),
    cfg.ListOpt(
        "old_secret_keys",
        default=[],
        secret=True,
        mutable=True,
        help="Former values of secret_key, separated by commas. URLs signed with them remain valid.",
    ),
    cfg.IntOpt(
        "max_share_seconds",
        default=604_800,
        min=60,
        max=MAX_LIFE,
        mutable=True,
        help="Maximum lifetime of a signed URL in seconds.",
    ),
]


def share_options(conf: cfg.ConfigOpts) -> ShareOptions:
    """Return the options of signed URLs. Raises ``StartRefused``."""
    secrets = tuple(filter(None, [conf.signed_url.secret_key, *conf.signed_url.old_secret_keys]))
    if secrets and not conf.signed_url.secret_key:
        raise StartRefused("[signed_url] old_secret_keys needs secret_key.")
    if any(len(secret.encode()) < MIN_SECRET for secret in secrets):
        raise StartRefused(f"[signed_url] secret_key and old_secret_keys must be at least {MIN_SECRET} bytes each.")
    return ShareOptions(secrets=secrets, max_seconds=conf.signed_url.max_share_seconds)


def control_path(given: str, uri: str) -> str:
    """Return the path of the control socket, or "" for no socket.

    By default only the store ``rocksdb:`` has a socket, because several processes can open other stores.
    """
    if given:
        return "" if given == "none" else os.path.abspath(given)
    parts = store_uri.split(uri)
    return os.path.abspath(os.path.join(unquote(parts.path), "control.sock")) if parts.scheme == "rocksdb" else ""


def auth_options(conf: cfg.ConfigOpts) -> AuthOptions:
    """Return the options of authentication. Raises ``StartRefused``."""
    given: dict[str, Any] = {option.dest: conf.auth[option.dest] for option in AUTH}
    strategy = conf.auth_strategy.replace(" ", "")
    if strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES[1:-1])
        raise StartRefused(f"auth_strategy must be empty, {names} or {STRATEGIES[-1]}; it is {strategy[:100]!r}.")
    jwt = JwtOptions(
        issuer=given["jwt_issuer"],
        audience=given["jwt_audience"],
        jwks=given["jwt_jwks"],
        algorithms=tuple(given["jwt_algorithms"]),
        project_claim=given["jwt_project_claim"],
        roles_claim=given["jwt_roles_claim"],
        scope_claim=given["jwt_scope_claim"],
        leeway=given["jwt_leeway"],
        max_age=given["jwt_max_age"],
        max_stale=given["jwks_max_stale"],
        type=given["jwt_type"],
    )
    return AuthOptions(
        strategy=strategy,
        proxy_secret_file=given["proxy_secret_file"],
        token_max_days=given["token_max_days"],
        bootstrap_token_file=given["bootstrap_token_file"],
        jwt=jwt,
        behind_proxy=conf.server.behind_proxy,
        certificates=conf.auth.certificates,
    )
