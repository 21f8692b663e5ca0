# SPDX-License-Identifier: Apache-2.0
"""Middleware that checks the request line and headers before routing and before the body is read.

The middleware rejects:

- a request line or header that a proxy and the server may interpret differently (``zq.http.heads``);
- an unknown ``Host``. This check prevents DNS rebinding, in which a web page resolves its own host name to this server.
  The browser then sends that name as ``Host``;
- cross-site requests with side effects.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NoReturn

import falcon

from zq.errors import Invalid, InvalidHeader, NotAuthorized, Unavailable
from zq.http import heads, query
from zq.http.context import Request
from zq.http.tenant import CONTROL

# Environment keys in which servers provide the raw request target.
TARGET, OTHER_TARGET = "RAW_URI", "REQUEST_URI"
# Syntax of a Host header.
HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::[0-9]*)?", re.ASCII)
# Entry of allowed_hosts that accepts any Host.
ANY_HOST: Final = "*"
# Error sentence of a 421.
UNKNOWN_HOST: Final = "This Host is not one of [server] allowed_hosts."
# Error sentence of a 403 for a cross-site request with side effects.
CROSS_SITE: Final = "The server rejects changes that are requested by a page of another site."
# Methods without side effects.
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class Admission:
    """Falcon middleware that checks the request line and headers.

    Cross-site requests that can have side effects are rejected with 403:

    - requests with a method other than GET and HEAD;
    - GET and HEAD requests for which earlier code has set ``req.context.links_change``, such as SQS requests.

    Args:
        trusts_network: Whether the network is trusted. If so, HTTP/1.0 requests need no ``Host``.
        guarded: Whether callers are authenticated. If so, any ``Host`` is accepted, and HTTP/1.0 requests need no
            ``Host``, because a web page that uses DNS rebinding has no credentials.
    """

    def __init__(self, trusts_network: bool, guarded: bool, allowed_hosts: Callable[[], Collection[str]]) -> None:
        self._needs_host = not (trusts_network or guarded)
        self._guarded = guarded
        self._allowed_hosts = allowed_hosts

    def process_request(self, req: Request, _resp: falcon.Response) -> None:
        env = req.env
        target = env[TARGET] if TARGET in env else env.get(OTHER_TARGET, "")
        sentence = env.get(heads.ERROR_KEY)
        if sentence is None and ("%" in target or target.startswith("//")):  # no other target is invalid
            sentence = heads.check_target(target)
        if sentence is not None:
            _reject_head(sentence)
        if env.get(heads.WITHHELD_KEY) == heads.UNKNOWN_CREDENTIAL:
            raise Unavailable("The credential cannot be checked because the store does not answer. Try again later.")
        may_change = req.method not in SAFE_METHODS or req.context.links_change
        if may_change and env.get("HTTP_SEC_FETCH_SITE") == "cross-site":
            raise NotAuthorized(CROSS_SITE)
        name = env.get("HTTP_HOST")
        if name is None:
            if self._needs_host or env.get("SERVER_PROTOCOL") != "HTTP/1.0":
                raise InvalidHeader("Invalid header value", "The header Host is missing.")
        elif not (self._guarded or _is_literal(name) or self._is_allowed(_host(name))):
            raise falcon.HTTPError(falcon.HTTP_421, title=falcon.HTTP_421, description=UNKNOWN_HOST)

    def _is_allowed(self, host: str) -> bool:
        allowed = self._allowed_hosts()
        return host in allowed or ANY_HOST in allowed

    def process_response(self, req: Request, resp: falcon.Response, _resource: object, _req_succeeded: bool) -> None:
        if req.context.body_is_read or CONTROL in req.env:  # the control socket serves one request per connection
            return
        if query.CHUNKED in req.env or req.env.get("CONTENT_LENGTH") not in (None, "", "0"):
            resp.set_header("Connection", "close")  # the edge must not read the refused body


def _reject_head(sentence: str) -> NoReturn:
    if sentence in heads.TARGETS:
        raise Invalid(sentence)
    raise InvalidHeader("Invalid header value", sentence)


@lru_cache(maxsize=1024)
def _host(value: str) -> str:
    found = HOST.fullmatch(value)
    return found[1].lower() if found else ""


@lru_cache(maxsize=1024)
def _is_literal(value: str) -> bool:
    """Return whether the host is an IP address or ``localhost``, which cannot be rebound through DNS."""
    name = _host(value)
    try:
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name.strip("[]")))
    except ValueError:
        return False
