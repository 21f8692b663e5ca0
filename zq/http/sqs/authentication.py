# SPDX-License-Identifier: Apache-2.0
"""Who calls: callers prove it by a signature (``[sqs] auth = sigv4``), or are believed (``none``).

Of a signature, form, key and moment are judged by the head alone, before a body is read; engines ask the same first, so
that a body of a stranger is never taken. The signature itself needs the body, whose hash it covers.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import falcon

from zq.auth import sigv4
from zq.auth.sigv4 import Claim, Head, Refusal
from zq.auth.sqs_keys import Holder, SqsKeyLookup
from zq.core.accounts import ACCOUNT
from zq.errors import NotAuthorized, TooManyRequests, Unavailable
from zq.http.admission import CROSS_SITE
from zq.http.authentication import peer_of
from zq.http.sqs.call import Authenticate, Who
from zq.http.sqs.errors import SqsError
from zq.http.tenant import PRESENTED
from zq.model import Seconds
from zq.model.sqs import SqsOptions

# Headers that WSGI has under names of its own.
BARE: Final = {"CONTENT_TYPE": "content-type", "CONTENT_LENGTH": "content-length"}

# What an access key is said to be for, in a header or in a query: its id, a date, a region.
CREDENTIAL: Final = re.compile(r"Credential=([^/,\s&]{1,128})(?:/[0-9]{8}/([a-z0-9-]{1,64})/)?", re.ASCII)
# The parameter by which the oldest clients name their key.
OLD_KEY: Final = re.compile(r"AWSAccessKeyId=([0-9]{12})(?:&|$)", re.ASCII)


class SignedCallers:
    """Tells who has signed a request. It is the engines' ``Judge`` of such requests, too."""

    def __init__(self, keys: SqsKeyLookup, now: Callable[[], Seconds], behind_proxy: bool) -> None:
        """``now``: the store's time; ``behind_proxy``: the last ``X-Forwarded-For`` is the caller."""
        self._keys = keys
        self._now = now
        self._behind_proxy = behind_proxy

    def __call__(self, req: falcon.Request) -> Callable[[bytes], Who]:
        """Judge the head; what is returned judges the body. Raises ``SqsError``, ``TooManyRequests``,
        ``Unavailable``."""
        head = head_of(req.env)
        with _translated():
            claim = sigv4.read(head)
            holder = self._keys.find(claim.key, peer_of(req.env, self._behind_proxy))
            self._check(claim, head)
        return lambda body: _signed(head, claim, holder, body)

    def known(self, env: Mapping[str, Any]) -> bool | None:
        """Whether a request of this head is to have its body read; None if the store must be asked."""
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
        """What the head says of its signature; None if that is right with no key."""
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
    """A request's head as it was sent, and signed: also what was put aside since."""
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
    """Raise what is refused as clients of SQS know it."""
    try:
        yield
    except Refusal as refusal:
        raise SqsError(refusal.code, refusal.code, refusal.message, refusal.status) from refusal


def believed(options: SqsOptions) -> Authenticate:
    """Return what believes each caller, but a page of another origin, which a browser names in ``Origin``.

    An access key id that is an account names the project; all others are of the one that the options name.
    """

    anybody = Who(options.project, "")

    def authenticate(req: falcon.Request) -> Callable[[bytes], Who]:
        origin = req.env.get("HTTP_ORIGIN")
        if origin is not None and not _is_own(origin, req, options.public_url):
            raise NotAuthorized(CROSS_SITE)
        said = req.env.get("HTTP_AUTHORIZATION") or unquote(req.query_string)
        if not said:
            return lambda _body: anybody
        found = CREDENTIAL.search(said)
        key, region = (found[1], found[2] or "") if found else ("", "")
        if found is None and (old := OLD_KEY.search(said)):
            key = old[1]
        project = key if ACCOUNT.fullmatch(key) else options.project
        return lambda _body: Who(project, "", region)

    return authenticate


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
