# SPDX-License-Identifier: Apache-2.0
"""Checks of options beyond minimum and maximum, and of options that depend on each other."""

import os
from typing import Final
from urllib.parse import unquote

from zq.auth import STRATEGIES
from zq.errors import StartRefused
from zq.model import store_uri
from zq.model.identity import AuthOptions, ShareOptions
from zq.serving.settings.sections import ServerOptions

# Minimum length in bytes of a secret for signed URLs.
MIN_SECRET: Final = 32


def parse_strategy(given: str) -> str:
    """Return the authentication strategy without blanks. Raises ``StartRefused`` for an unknown strategy."""
    strategy = given.replace(" ", "")
    if strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES[1:-1])
        raise StartRefused(f"auth_strategy must be empty, {names} or {STRATEGIES[-1]}; it is {strategy[:100]!r}.")
    return strategy


def check_share(share: ShareOptions) -> None:
    """Raise ``StartRefused`` if a secret of signed URLs is missing or too short."""
    if share.secrets and not share.secret_key:
        raise StartRefused("[signed_url] old_secret_keys requires secret_key.")
    if any(len(secret.encode()) < MIN_SECRET for secret in share.secrets):
        raise StartRefused(f"[signed_url] secret_key and old_secret_keys must be at least {MIN_SECRET} bytes each.")


def resolve_control_path(given: str, uri: str) -> str:
    """Return the path of the control socket, or "" for no socket.

    By default only the store ``rocksdb:`` has a socket, because several processes can open other stores.
    """
    if given:
        return "" if given == "none" else os.path.abspath(given)
    parts = store_uri.split(uri)
    return os.path.abspath(os.path.join(unquote(parts.path), "control.sock")) if parts.scheme == "rocksdb" else ""


def check_tls(server: ServerOptions, auth: AuthOptions) -> None:
    """Raise ``StartRefused`` if TLS or client certificate options lack other required options."""
    if bool(server.tls_cert) != bool(server.tls_key):
        raise StartRefused("[server] tls_cert and tls_key must both be set, or neither.")
    if server.tls_client_ca and not server.tls_cert:
        raise StartRefused("[server] tls_client_ca requires tls_cert and tls_key.")
    if auth.certificates and not (auth.strategy == "token" and server.engine == "gunicorn" and server.tls_client_ca):
        raise StartRefused(
            "[auth] certificates requires auth_strategy = token, engine = auto or gunicorn, and [server] tls_client_ca."
        )
