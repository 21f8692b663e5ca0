# SPDX-License-Identifier: Apache-2.0
"""Authentication of SQS requests: AWS Signature Version 4 (``[sqs] auth = sigv4``) or none (``none``).

The access key and the timestamp are checked before the body is read. The signature covers a hash of the body, so it is
verified after the body has been read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from zq.errors import NotAuthorized, TooManyRequests, Unavailable
from zq.http.admission import CROSS_SITE
from zq.http.authentication import get_peer
from zq.http.context import Request
from zq.http.tenant import IDENTITY_KEY
from zq.model import Seconds
from zq.sqs import sigv4
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Caller
from zq.sqs.errors import SqsError
from zq.sqs.keys import SqsKeyLookup, ValidKey
from zq.sqs.recognition import is_sqs
from zq.sqs.settings import SqsOptions
from zq.sqs.sigv4 import Head, RequestSignature, SignatureRejection

# Headers whose WSGI variables lack the prefix ``HTTP_``.
UNPREFIXED_HEADERS: Final = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}

# A credential in the Authorization header or the query string, with groups for the access key id and the region.
CREDENTIAL: Final = re.compile(r"Credential=([^/,\s&]{1,128})(?:/[0-9]{8}/([a-z0-9-]{1,64})/)?", re.ASCII)
# The query parameter in which clients of Signature Version 2 send their access key id.
OLD_KEY: Final = re.compile(r"AWSAccessKeyId=([0-9]{12})(?:&|$)", re.ASCII)


class SignedCallers:
    """Authenticator for signed SQS requests (AWS Signature Version 4)."""

    def __init__(self, keys: SqsKeyLookup, now: Callable[[], Seconds], behind_proxy: bool) -> None:
        """Create the authenticator.

        If ``behind_proxy`` is true, the last ``X-Forwarded-For`` entry is the client's address.
        """
        self._keys = keys
        self._now = now
        self._behind_proxy = behind_proxy

    def __call__(self, req: Request) -> Callable[[bytes], Caller]:
        """Check the request head, and return a function that verifies the signature and returns the caller.

        The returned function takes the raw body. It raises ``SqsError`` if the signature is not valid.

        Raises:
            SqsError: The head is not valid, or the access key does not exist.
            TooManyRequests: The client address has too many failures.
        """
        head = read_head(req.env)
        with _translate_refusals():
            parsed = sigv4.read(head)
            holder = self._keys.find(parsed.key, get_peer(req.env, self._behind_proxy))
            self._check(parsed, head)
        return lambda body: _verify(head, parsed, holder, body)

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether the request head belongs to an SQS request."""
        return is_sqs(env)

    def cached_validity(self, env: Mapping[str, Any]) -> bool | None:
        """Return whether the request head and its access key are valid, or None if the key is not in the cache."""
        parsed = self._parse_signature(env)
        return parsed is not None and self._keys.cached_validity(parsed.key)

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Return whether the request head and its access key are valid, or None if the store is unavailable."""
        parsed = self._parse_signature(env)
        try:
            return parsed is not None and bool(self._keys.find(parsed.key, get_peer(env, self._behind_proxy)))
        except (SignatureRejection, TooManyRequests):
            return False
        except Unavailable:
            return None

    def _parse_signature(self, env: Mapping[str, Any]) -> RequestSignature | None:
        head = read_head(env)
        try:
            parsed = sigv4.read(head)
            self._check(parsed, head)
        except SignatureRejection:
            return None
        return parsed

    def _check(self, parsed: RequestSignature, head: Head) -> None:
        sigv4.check_time(parsed, self._now())
        sigv4.check_headers(parsed, head)


def read_head(env: Mapping[str, Any]) -> Head:
    """Return the request head that the client signed, including headers that other middleware has removed."""
    target: str = env.get("RAW_URI") or env.get("REQUEST_URI") or ""
    if not target.startswith("/"):  # no raw path, or an absolute URI
        target = quote(env.get("SCRIPT_NAME", "") + env["PATH_INFO"], safe="/-_.~", encoding="latin-1")
    merged = {**env, **env.get(IDENTITY_KEY, {})}
    headers = {name[5:].replace("_", "-").lower(): value for name, value in merged.items() if name[:5] == "HTTP_"}
    headers |= {header: env[name] for name, header in UNPREFIXED_HEADERS.items() if env.get(name)}
    secure = env.get("wsgi.url_scheme") == "https"
    return Head(env["REQUEST_METHOD"], target.partition("?")[0], env.get("QUERY_STRING", ""), headers, secure)


def _verify(head: Head, parsed: RequestSignature, holder: ValidKey, body: bytes) -> Caller:
    with _translate_refusals():
        sigv4.check_signature(parsed, head, holder.secret, sha256(body).hexdigest())
        sigv4.reject_session(head)
    return Caller(holder.project, parsed.key, parsed.region, holder.actions)


@contextmanager
def _translate_refusals() -> Iterator[None]:
    try:
        yield
    except SignatureRejection as refusal:
        raise SqsError(refusal.code, refusal.code, refusal.message, refusal.status) from refusal


class UnauthenticatedCallers:
    """Authenticator for SQS requests when authentication is off; it does not verify signatures.

    The access key id of a request selects the project. If it does not name a project, the option ``[sqs] project``
    applies.
    """

    def __init__(self, options: SqsOptions) -> None:
        self._options = options
        self._default_caller = Caller(options.project, "")

    def __call__(self, req: Request) -> Callable[[bytes], Caller]:
        """Return a function that returns the caller for any request body.

        Raises ``NotAuthorized`` for a cross-origin request of a browser.
        """
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
        return is_sqs(env)

    def cached_validity(self, _env: Mapping[str, Any]) -> bool:
        return True

    def look_up(self, _env: Mapping[str, Any]) -> bool:
        return True


def _is_own(origin: str, req: Request, public_url: str) -> bool:
    own = _parts(f"{req.scheme}://{req.env.get('HTTP_HOST', '')}"), _parts(public_url)
    return (named := _parts(origin)) is not None and named in own


def _parts(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
