# SPDX-License-Identifier: Apache-2.0
"""Authentication strategies. The option ``auth_strategy`` selects one. A strategy returns the caller's ``Identity``.

The libraries for JSON Web Tokens and Keystone are large, so they are imported only if their strategy is configured.
"""

import logging
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Final

from zq.audit import Audit
from zq.auth.certificates import Certificates, read_identities
from zq.auth.credentials import BearerStrategy
from zq.auth.files import read_private
from zq.auth.proxy import ProxySecrets, read_secrets
from zq.auth.tokens import Tokens, TokenVerifier, default_max_tokens, parse_token
from zq.clock import Clock
from zq.errors import StartRefused
from zq.model.audit import Entry
from zq.model.identity import ADMIN, ALGORITHMS, AuthOptions, JwtOptions
from zq.storage.api import DocumentController

if TYPE_CHECKING:
    from zq.auth.jwks import KeySet
    from zq.auth.jwt import JwtVerifier
    from zq.auth.keystone import Keystone

LOG = logging.getLogger(__name__)
STRATEGIES: Final = ("", "proxy", "token", "jwt", "token,jwt", "keystone")


def open_tokens(
    options: AuthOptions,
    documents: DocumentController,
    clock: Clock,
    audit: Audit,
    max_tokens: Callable[[str], int] = default_max_tokens,
) -> Tokens:
    """Open the token store. If a bootstrap token is configured, add this token as described at ``Tokens.adopt``.

    ``max_tokens`` returns the maximum number of tokens of a project. Raises ``StartRefused`` if the file with the
    bootstrap token is not valid.
    """
    denied_for = options.jwt.max_age + 2 * options.jwt.leeway
    tokens = Tokens(documents, clock, options.token_max_days, denied_for, max_tokens)
    if options.bootstrap_token_file:
        text = _bootstrap_token(options.bootstrap_token_file)
        if tokens.adopt(text, ADMIN):
            LOG.info("The token of [auth] bootstrap_token_file is now an administrator's token.")
            object, why = f"token {text.split('_')[1]}", "[auth] bootstrap_token_file"
            audit.log_change(Entry(project=ADMIN, method="START", object=object, outcome="done", why=why))
        elif tokens.was_revoked(text):
            LOG.warning("The token of [auth] bootstrap_token_file was revoked and is not accepted again.")
    return tokens


def _bootstrap_token(path: str) -> str:
    option = "[auth] bootstrap_token_file"
    text = read_private(option, path).decode("ascii", "replace").strip()
    if parse_token(text) is None:
        raise StartRefused(f"{option} must contain a token as printed by zq-server token create; {path} does not.")
    return text


def _import_keystone() -> ModuleType:
    try:
        from zq.auth import keystone
    except ImportError as error:
        raise StartRefused("auth_strategy = keystone requires an extra: pip install 'zq-queue[keystone]'.") from error
    return keystone


def _key_set(options: JwtOptions) -> "KeySet":
    try:
        from zq.auth.jwks import KeySet
    except ImportError as error:
        raise StartRefused("auth_strategy = jwt requires an extra: pip install 'zq-queue[jwt]'.") from error
    return KeySet(options.jwks, options.max_stale)


def _jwt_verifier(options: JwtOptions, documents: DocumentController, clock: Clock) -> "JwtVerifier":
    keys = _key_set(options)
    from zq.auth.jwt import JwtVerifier

    return JwtVerifier(options, keys, documents, clock)


def check(options: AuthOptions, path: str | None = None) -> None:
    """Raise ``StartRefused`` if an authentication option or a file that an option names is not valid.

    ``path`` is the configuration file, which only the strategy ``keystone`` reads.
    """
    if options.strategy == "proxy":
        read_secrets(options.proxy_secret_file)
    if "jwt" in options.strategy:
        check_jwt(options.jwt)
        _key_set(options.jwt)
    if options.strategy == "keystone":
        _import_keystone().create_middleware(None, path)
    if options.certificates:
        read_identities(options.certificates)
    if options.bootstrap_token_file:
        _bootstrap_token(options.bootstrap_token_file)


def check_jwt(options: JwtOptions) -> None:
    """Raise ``StartRefused`` if an option of JSON Web Tokens is missing or not valid."""
    for name in ("issuer", "audience", "jwks"):
        if not getattr(options, name):
            raise StartRefused(f"[auth] jwt_{name} must be set for auth_strategy = jwt.")
    wrong = [name for name in options.algorithms if name not in ALGORITHMS]
    if wrong or not options.algorithms:
        raise StartRefused(
            f"[auth] jwt_algorithms must be one or more of {', '.join(ALGORITHMS)}; "
            f"{', '.join(wrong)[:100] + ' is not supported' if wrong else 'it is empty'}."
        )


def create_strategy(
    options: Callable[[], AuthOptions], documents: DocumentController, clock: Clock, path: str | None = None
) -> "BearerStrategy | Keystone | ProxySecrets | None":
    """Create the configured authentication strategy. Return ``None`` if authentication is off.

    Raises ``StartRefused`` if the strategy is unknown, a library is not installed, or a configured file is not valid.

    Args:
        options: Returns the current options. Each reload of a secret file or certificate file calls this function.
        path: The configuration file, which only the strategy ``keystone`` reads.
    """
    chosen = options()
    if chosen.strategy == "":
        return None
    if chosen.strategy == "proxy":
        return ProxySecrets(lambda: options().proxy_secret_file)
    tokens = TokenVerifier(documents, clock)
    if chosen.strategy == "token":
        certificates = Certificates(lambda: options().certificates, clock) if chosen.certificates else None
        return BearerStrategy(tokens, bare=True, certificates=certificates)
    if chosen.strategy in ("jwt", "token,jwt"):
        verifier = _jwt_verifier(chosen.jwt, documents, clock)
        bearers = BearerStrategy(
            *([tokens] if "token" in chosen.strategy else []), verifier, bare="token" in chosen.strategy
        )
        verifier.listen(bearers.forget)
        verifier.start()
        return bearers
    if chosen.strategy == "keystone":
        created: Keystone = _import_keystone().Keystone(path, clock)
        return created
    raise StartRefused(f"auth_strategy must be one of {', '.join(filter(None, STRATEGIES))}, or empty.")
