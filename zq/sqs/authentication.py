# SPDX-License-Identifier: Apache-2.0
"""Authentication of SQS requests by their signatures (``[sqs] auth = sigv4``), or no authentication (``none``).

The form, key and time of a signature are checked with the head of the request. The server's edge makes this check, too,
so that it never reads the body of an unknown client. The signature itself covers the hash of the body, and is checked
after the body is read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import falcon

from zq.errors import NotAuthorized, TooManyRequests, Unavailable
from zq.http.admission import CROSS_SITE
from zq.http.authentication import peer_of
from zq.http.tenant import PRESENTED
from zq.model import Seconds
from zq.sqs import sigv4
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Caller
from zq.sqs.errors import SqsError
from zq.sqs.keys import Holder, SqsKeyLookup
from zq.sqs.recognition import is_sqs
from zq.sqs.settings import SqsOptions
from zq.sqs.sigv4 import Claim, Head, Refusal

# Headers whose WSGI variables lack the prefix ``HTTP_``.
UNPREFIXED_HEADERS: Final = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}

# A credential in a header or a query: the access key id, the date, and the region.
CREDENTIAL: Final = re.compile(r"Credential=([^/,\s&]{1,128})(?:/[0-9]{8}/([a-z0-9-]{1,64})/)?", re.ASCII)
# The query parameter by which the oldest clients name their access key.
OLD_KEY: Final = re.compile(r"AWSAccessKeyId=([0-9]{12})(?:&|$)", re.ASCII)


class SignedCallers:
    """Authentication of requests by their signatures."""

    def __init__(self, keys: SqsKeyLookup, now: Callable[[], Seconds], behind_proxy: bool) -> None:
        """Create the authentication.

        Args:
            keys: The lookup of access keys.
            now: Returns the store's time.
            behind_proxy: True if the last entry of ``X-Forwarded-For`` is the client's address.
        """
        self._keys = keys
        self._now = now
        self._behind_proxy = behind_proxy

    def __call__(self, req: falcon.Request) -> Callable[[bytes], Caller]:
        """Check the head, and return a function that verifies the signature of a body and returns the caller.

        Both raise ``SqsError``, ``TooManyRequests``, ``Unavailable``.
        """
        head = head_of(req.env)
        with _translated():
            claim = sigv4.read(head)
            holder = self._keys.find(claim.key, peer_of(req.env, self._behind_proxy))
            self._check(claim, head)
        return lambda body: _signed(head, claim, holder, body)

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether a request with this head is an SQS request."""
        return is_sqs(env)

    def known(self, env: Mapping[str, Any]) -> bool | None:
        """Return whether the body of a request with this head may be read; None if only the store can decide."""
        claim = self._claim(env)
        return claim is not None and self._keys.known(claim.key)

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look up the key in the store, and return whether the body may be read; None if the store is unavailable."""
        claim = self._claim(env)
        try:
            return claim is not None and bool(self._keys.find(claim.key, peer_of(env, self._behind_proxy)))
        except (Refusal, TooManyRequests):
            return False
        except Unavailable:
            return None

    def _claim(self, env: Mapping[str, Any]) -> Claim | None:
        """Return the signature's claim in the head; None if no key can make it valid."""
        head = head_of(env)
        try:
            claim = sigv4.read(head)
            self._check(claim, head)
        except Refusal:
            return None
        return claim

    def _check(self, claim: Claim, head: Head) -> None:
        sigv4.check_moment(claim, self._now())
        sigv4.check_headers(claim, head)


def head_of(env: Mapping[str, Any]) -> Head:
    """Return the head as the client signed it, including headers that other middleware has removed."""
    target: str = env.get("RAW_URI") or env.get("REQUEST_URI") or ""
    if not target.startswith("/"):  # the HTTP server does not pass the raw path, or a proxy has rewritten it
        target = quote(env.get("SCRIPT_NAME", "") + env["PATH_INFO"], safe="/-_.~", encoding="latin-1")
    merged = {**env, **env.get(PRESENTED, {})}
    headers = {name[5:].replace("_", "-").lower(): value for name, value in merged.items() if name[:5] == "HTTP_"}
    headers |= {header: env[name] for name, header in UNPREFIXED_HEADERS.items() if env.get(name)}
    secure = env.get("wsgi.url_scheme") == "https"
    return Head(env["REQUEST_METHOD"], target.partition("?")[0], env.get("QUERY_STRING", ""), headers, secure)


def _signed(head: Head, claim: Claim, holder: Holder, body: bytes) -> Caller:
    with _translated():
        sigv4.check_signature(claim, head, holder.secret, sha256(body).hexdigest())
        sigv4.refuse_session(head)
    return Caller(holder.project, claim.key, claim.region, holder.actions)


@contextmanager
def _translated() -> Iterator[None]:
    """Translate each ``Refusal`` into the ``SqsError`` with its code; a context manager."""
    try:
        yield
    except Refusal as refusal:
        raise SqsError(refusal.code, refusal.code, refusal.message, refusal.status) from refusal


class UnauthenticatedCallers:
    """No authentication: every caller is accepted, except pages of another origin, which browsers name in ``Origin``.

    If the access key id is an account, it names the project. All other requests belong to the project of the options.
    """

    def __init__(self, options: SqsOptions) -> None:
        self._options = options
        self._default_caller = Caller(options.project, "")

    def __call__(self, req: falcon.Request) -> Callable[[bytes], Caller]:
        """Check ``Origin``, and return a function that returns the caller. Raises ``NotAuthorized``."""
        origin = req.env.get("HTTP_ORIGIN")
        if origin is not None and not _is_own(origin, req, self._options.public_url):
            raise NotAuthorized(CROSS_SITE)
        credential = req.env.get("HTTP_AUTHORIZATION") or unquote(req.query_string)
        if not credential:
            return lambda _body: self._default_caller
        found = CREDENTIAL.search(credential)
        key, region = (found[1], found[2] or "") if found else ("", "")
        if found is None and (old := OLD_KEY.search(credential)):
            key = old[1]
        caller = Caller(key if ACCOUNT.fullmatch(key) else self._options.project, "", region)
        return lambda _body: caller

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether a request with this head is an SQS request."""
        return is_sqs(env)

    def known(self, _env: Mapping[str, Any]) -> bool:
        """Return True, because the body of every request may be read."""
        return True

    def look_up(self, _env: Mapping[str, Any]) -> bool:
        """Return True, because there is no credential to look up."""
        return True


def _is_own(origin: str, req: falcon.Request, public_url: str) -> bool:
    """Return whether ``origin`` equals the server's origin by the request's ``Host`` or by the public URL."""
    own = _parts(f"{req.scheme}://{req.env.get('HTTP_HOST', '')}"), _parts(public_url)
    return (named := _parts(origin)) is not None and named in own


def _parts(url: str) -> tuple[str, str, int] | None:
    """Return the scheme, host and port of a URL; None for an invalid URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
