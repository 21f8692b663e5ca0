# SPDX-License-Identifier: Apache-2.0
"""The authentication of SQS requests: by their signatures (``[sqs] auth = sigv4``), or not at all (``none``).

Form, key and time of a signature are checked with the head of the request, before its body is read. The server's edge
makes the same check, so that it never reads the body of an unknown client. The signature itself covers the hash of the
body.
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
from zq.sqs.call import Who
from zq.sqs.errors import SqsError
from zq.sqs.keys import Holder, SqsKeyLookup
from zq.sqs.recognition import is_sqs
from zq.sqs.settings import SqsOptions
from zq.sqs.sigv4 import Claim, Head, Refusal

# Headers that WSGI has under names of its own.
BARE: Final = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}

# What an access key is said to be for, in a header or in a query: its id, a date, a region.
CREDENTIAL: Final = re.compile(r"Credential=([^/,\s&]{1,128})(?:/[0-9]{8}/([a-z0-9-]{1,64})/)?", re.ASCII)
# The parameter by which the oldest clients name their key.
OLD_KEY: Final = re.compile(r"AWSAccessKeyId=([0-9]{12})(?:&|$)", re.ASCII)


class SignedCallers:
    """The authentication of requests by their signatures."""

    def __init__(self, keys: SqsKeyLookup, now: Callable[[], Seconds], behind_proxy: bool) -> None:
        """``now`` returns the store's time. ``behind_proxy``: the last ``X-Forwarded-For`` is the client."""
        self._keys = keys
        self._now = now
        self._behind_proxy = behind_proxy

    def __call__(self, req: falcon.Request) -> Callable[[bytes], Who]:
        """Check the head, and return a function that checks the body and returns the caller.

        Raises ``SqsError``, ``TooManyRequests``, ``Unavailable``.
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
        """Return whether the body of a request with this head may be read; None if the store must be asked."""
        claim = self._claim(env)
        return claim is not None and self._keys.known(claim.key)

    def look_up(self, env: Mapping[str, Any]) -> bool | None:
        """Look the key up in the store; return None if the store does not answer."""
        claim = self._claim(env)
        try:
            return claim is not None and bool(self._keys.find(claim.key, peer_of(env, self._behind_proxy)))
        except (Refusal, TooManyRequests):
            return False
        except Unavailable:
            return None

    def _claim(self, env: Mapping[str, Any]) -> Claim | None:
        """Return the signature's claim in the head; None if it is wrong with any key."""
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
    """Return a request's head as the client signed it, with the headers that other middleware has set aside."""
    target: str = env.get("RAW_URI") or env.get("REQUEST_URI") or ""
    if not target.startswith("/"):  # a server that does not say how the path was written, or a proxy's form of it
        target = quote(env.get("SCRIPT_NAME", "") + env["PATH_INFO"], safe="/-_.~", encoding="latin-1")
    said = {**env, **env.get(PRESENTED, {})}
    headers = {name[5:].replace("_", "-").lower(): value for name, value in said.items() if name[:5] == "HTTP_"}
    headers |= {header: env[name] for name, header in BARE.items() if env.get(name)}
    secure = env.get("wsgi.url_scheme") == "https"
    return Head(env["REQUEST_METHOD"], target.partition("?")[0], env.get("QUERY_STRING", ""), headers, secure)


def _signed(head: Head, claim: Claim, holder: Holder, body: bytes) -> Who:
    with _translated():
        sigv4.check_signature(claim, head, holder.secret, sha256(body).hexdigest())
        sigv4.refuse_session(head)
    return Who(holder.project, claim.key, claim.region, holder.actions)


@contextmanager
def _translated() -> Iterator[None]:
    """Raise each ``Refusal`` as the ``SqsError`` that clients know."""
    try:
        yield
    except Refusal as refusal:
        raise SqsError(refusal.code, refusal.code, refusal.message, refusal.status) from refusal


class BelievedCallers:
    """The authentication that believes every caller except pages of another origin, which browsers name in ``Origin``.

    An access key id that is an account names the project. All other requests belong to the project of the options.
    """

    def __init__(self, options: SqsOptions) -> None:
        self._options = options
        self._anybody = Who(options.project, "")

    def __call__(self, req: falcon.Request) -> Callable[[bytes], Who]:
        """Check the head, and return a function that returns the caller. Raises ``NotAuthorized``."""
        origin = req.env.get("HTTP_ORIGIN")
        if origin is not None and not _is_own(origin, req, self._options.public_url):
            raise NotAuthorized(CROSS_SITE)
        credential = req.env.get("HTTP_AUTHORIZATION") or unquote(req.query_string)
        if not credential:
            return lambda _body: self._anybody
        found = CREDENTIAL.search(credential)
        key, region = (found[1], found[2] or "") if found else ("", "")
        if found is None and (old := OLD_KEY.search(credential)):
            key = old[1]
        who = Who(key if ACCOUNT.fullmatch(key) else self._options.project, "", region)
        return lambda _body: who

    def applies(self, env: Mapping[str, Any]) -> bool:
        """Return whether a request with this head is an SQS request."""
        return is_sqs(env)

    def known(self, _env: Mapping[str, Any]) -> bool:
        """Return True: the body of every request may be read."""
        return True

    def look_up(self, _env: Mapping[str, Any]) -> bool:
        """Return True: there is no credential."""
        return True


def _is_own(origin: str, req: falcon.Request, public_url: str) -> bool:
    """Return whether an ``Origin`` is the server itself: by the ``Host`` of the request, or by its public URL."""
    own = _parts(f"{req.scheme}://{req.env.get('HTTP_HOST', '')}"), _parts(public_url)
    return (named := _parts(origin)) is not None and named in own


def _parts(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL; None for another text."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or "@" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)
