# SPDX-License-Identifier: Apache-2.0
"""The key set (JWKS) of a JSON Web Token issuer, read from a file or fetched over HTTPS in the background."""

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPException, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlsplit

import jwt
from msgspec import Struct

from zq.errors import StartRefused, Unavailable
from zq.model.addresses import is_public

LOG = logging.getLogger(__name__)
# Maximum size of a key set in bytes.
MAX_SIZE: Final = 262_144
# Timeout of a fetch in seconds.
TIMEOUT: Final = 5.0
TOO_SLOW: Final = f"no complete response within {TIMEOUT:g} seconds"
# Seconds between regular fetches.
REFRESH_INTERVAL: Final = 600.0
# Seconds between fetches after a failure, or while tokens with unknown keys arrive.
RETRY_INTERVAL: Final = 60.0
# Minimum size of an RSA key in bits.
MIN_RSA: Final = 2048
# Required key type and curves by algorithm.
KEY_REQUIREMENTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", ())),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}


class Key(Struct, frozen=True):
    """A public key of the issuer. If ``algorithm`` is set, the key is valid for this algorithm only."""

    id: str
    kind: str
    curve: str
    algorithm: str
    key: Any

    def fits(self, algorithm: str) -> bool:
        """Return whether the key can verify signatures of this algorithm."""
        kind, curves = KEY_REQUIREMENTS.get(algorithm, ("", ()))
        return self.kind == kind and (not curves or self.curve in curves) and self.algorithm in ("", algorithm)


def parse(raw: bytes) -> list[Key]:
    """Parse a key set and return its usable keys. Raises ``ValueError`` if it is not a JSON Web Key Set."""
    document = json.loads(raw)
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("the content is not a JSON Web Key Set")
    return [key for given in document["keys"] if isinstance(given, dict) and (key := _key(given)) is not None]


def _key(given: dict[str, Any]) -> Key | None:
    if given.get("kty") not in ("RSA", "EC", "OKP") or given.get("use", "sig") != "sig" or "d" in given:
        return None
    try:
        made = jwt.PyJWK({name: value for name, value in given.items() if name != "alg"}, _reading_algorithm(given)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if given["kty"] == "RSA" and made.key_size < MIN_RSA:
        return None
    return Key(str(given.get("kid", "")), given["kty"], str(given.get("crv", "")), str(given.get("alg", "")), made)


def _reading_algorithm(given: dict[str, Any]) -> str:
    """Return an algorithm with which PyJWT can parse the JSON Web Key ``given``."""
    fitting = [name for name, (kind, curves) in KEY_REQUIREMENTS.items() if kind == given["kty"]]
    return next((name for name in fitting if given.get("crv") in KEY_REQUIREMENTS[name][1]), fitting[0])


class KeySet:
    """The keys of one issuer, as last read from ``source``: a file or an https URL.

    If the URL cannot be fetched, the last key set stays valid for ``REFRESH_INTERVAL`` plus ``max_stale`` seconds. The
    constructor raises ``StartRefused`` if the source is not valid.
    """

    def __init__(
        self,
        source: str,
        max_stale: float,
        fetch: "Callable[[str], bytes] | None" = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._max_stale = max_stale
        self._monotonic = monotonic
        self._remote = "://" in source
        self._fetch = fetch or (fetch_https if self._remote else _read)
        self._keys: Sequence[Key] = ()
        self._fetched_at: float | None = None
        self._attempted_at = 0.0
        self._refresh_requested = threading.Event()
        if self._remote and not source.startswith("https://"):
            raise StartRefused("[auth] jwt_jwks must be a file or an https URL.")
        if not self._remote and not self.refresh():
            raise StartRefused(f"[auth] jwt_jwks must be a file with a JSON Web Key Set; {source} is not.")

    def start(self) -> None:
        """Start a background thread that refreshes the key set."""
        threading.Thread(target=self._run, name="zq-jwks", daemon=True).start()

    def find(self, id: str, algorithm: str) -> list[Key]:
        """Return the keys for this key id ("" = any) and algorithm. Raises ``Unavailable`` if the keys are stale."""
        if self._fetched_at is None or self._monotonic() - self._fetched_at > REFRESH_INTERVAL + self._max_stale:
            self._refresh_requested.set()
            raise Unavailable("The keys of the issuer are temporarily unavailable. Try again later.")
        found = [key for key in self._keys if key.fits(algorithm) and id in ("", key.id)]
        if not found and id not in {key.id for key in self._keys}:
            self._refresh_requested.set()
        return found

    def refresh(self) -> bool:
        """Read the key set again. On failure, keep the previous one and return ``False``."""
        self._attempted_at = self._monotonic()
        self._refresh_requested.clear()
        try:
            keys = parse(self._fetch(self._source))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            LOG.warning("The keys at %s cannot be fetched: %s", self._source, error)
            return False
        self._keys, self._fetched_at = keys, self._monotonic()
        return True

    def seconds_until_refresh(self, succeeded: bool) -> float:
        """Return the seconds until the next refresh. ``succeeded``: whether the last refresh succeeded."""
        hurried = self._refresh_requested.is_set() or not succeeded
        return max(0.0, self._attempted_at + (RETRY_INTERVAL if hurried else REFRESH_INTERVAL) - self._monotonic())

    def _run(self) -> None:
        succeeded = self.refresh() if self._remote else True
        while True:
            pause = self.seconds_until_refresh(succeeded)
            if pause <= 0:
                succeeded = self.refresh()
            elif self._refresh_requested.is_set() or not succeeded:
                time.sleep(pause)
            else:
                self._refresh_requested.wait(pause)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_SIZE)


def fetch_https(url: str) -> bytes:
    """Fetch a public https URL. Redirects are not followed.

    Raises ``OSError`` or ``HTTPException`` if the connection fails or times out, and ``ValueError`` if the URL has a
    user or no host, the host has an address that is not public, the status is not 200, or the response is too large.
    """
    parts = urlsplit(url)
    if parts.username is not None or not parts.hostname:
        raise ValueError("the URL must have a host and no user")
    deadline = time.monotonic() + TIMEOUT
    connection = _PinnedConnection(
        parts.hostname, parts.port or 443, timeout=TIMEOUT, context=ssl.create_default_context()
    )
    watch = threading.Timer(TIMEOUT, connection.hang_up)  # a socket's timeout applies to each read separately
    watch.daemon = True
    watch.start()
    try:
        target = parts.path or "/"
        connection.request("GET", f"{target}?{parts.query}" if parts.query else target, headers={"Accept": "*/*"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"status {reply.status}")  # redirects are not followed
        return _read_body(reply, connection, deadline)
    except (OSError, HTTPException) as error:
        if time.monotonic() >= deadline:
            raise TimeoutError(TOO_SLOW) from error
        raise
    finally:
        watch.cancel()
        connection.close()


def _read_body(reply: Any, connection: HTTPSConnection, deadline: float) -> bytes:
    raw = bytearray()
    while piece := reply.read1(65536):
        raw += piece
        left = deadline - time.monotonic()
        if len(raw) > MAX_SIZE:
            raise ValueError(f"the response is larger than {MAX_SIZE} bytes")
        if left <= 0:
            raise TimeoutError(TOO_SLOW)
        if connection.sock is not None:
            connection.sock.settimeout(left)
    if time.monotonic() >= deadline:
        raise TimeoutError(TOO_SLOW)
    return bytes(raw)


class _PinnedConnection(HTTPSConnection):
    """An HTTPS connection that accepts only public addresses, as a protection against DNS rebinding.

    ``connect`` resolves the host name once, checks all addresses, and connects to a checked address. ``connect`` raises
    ``ValueError`` if an address is not public.
    """

    def connect(self) -> None:
        addresses = [each[4][0] for each in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]
        if not addresses or not all(is_public(str(address)) for address in addresses):
            raise ValueError(f"{self.host} has an address that is not public")
        plain = socket.create_connection((str(addresses[0]), self.port), self.timeout)
        self.sock = self._context.wrap_socket(  # type: ignore[attr-defined]
            plain, server_hostname=self.host, do_handshake_on_connect=False
        )
        self.sock.do_handshake()

    def hang_up(self) -> None:
        """Shut down the socket, which aborts a blocking read in another thread."""
        if self.sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
