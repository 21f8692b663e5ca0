# SPDX-License-Identifier: Apache-2.0
"""HTTP resources that issue and revoke pre-signed URLs (contract 10); see ``zq.auth.signatures``."""

from typing import Any, Final

import falcon

from zq import wire
from zq.auth.signatures import METHODS, PATHS, Signatures, format_time, make_scope, parse_time
from zq.errors import Invalid, InvalidBody, NotAuthorized
from zq.http import query
from zq.http.context import Request
from zq.model import QueueRef, Seconds
from zq.model.identity import Identity
from zq.model.scopes import parse, scopes_exceed
from zq.wire.tokens import ShareTerms, share_terms

# Default validity of a signature in seconds.
DEFAULT: Final = 86400
EXCEEDS_SIGNER: Final = "A signed URL must not exceed the rights of the credential that signs it."


class QueueShare:
    """``/v2/queues/{queue}/share``: sign a URL for a queue."""

    policy = {"POST": "queues:share"}

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    def on_post(self, req: Request, resp: falcon.Response, queue: str) -> None:
        terms = share_terms(query.body(req))
        paths = _check_names("paths", terms.paths, PATHS) or ["messages"]
        methods = _check_names("methods", terms.methods, METHODS) or ["GET"]
        identity: Identity = req.context.identity
        if scopes_exceed(parse([make_scope(queue, methods)]), parse(identity.scopes)):
            raise NotAuthorized(EXCEEDS_SIGNER)
        expires = self._expiry(terms, identity)
        resp.data = wire.encode(self._signed(req.context.queue, paths, methods, expires))

    def _expiry(self, terms: ShareTerms, identity: Identity) -> Seconds:
        """Return the requested expiry time, by default one day from now or the latest allowed time.

        The default is the earlier of the two. Raises ``InvalidBody`` for a malformed time, and ``Invalid`` for a time
        that is past or too late.
        """
        now, most = self._signatures.clock.now(), self._signatures.options().max_seconds
        last = min(now + most, identity.expires or now + most)
        if terms.expires is None:
            return min(now + DEFAULT, last)
        try:
            asked = parse_time(terms.expires)
        except ValueError as error:
            raise InvalidBody("expires must be an ISO 8601 date and time, such as 2030-01-01T00:00:00.") from error
        if not now < asked <= last:
            raise Invalid(f"expires must be between now and {format_time(last)}, not {format_time(asked)}.")
        return asked

    def _signed(self, queue: QueueRef, paths: list[str], methods: list[str], expires: Seconds) -> dict[str, Any]:
        whole = sorted(f"/v2/queues/{queue.name}/{path}" for path in paths)
        return {
            "paths": whole,
            "methods": sorted(methods),
            "project": queue.project,
            "expires": format_time(expires),
            "signature": self._signatures.sign(queue.project, whole, methods, expires),
        }


class ShareRevocation:
    """``/v2/share/revoke``: revoke all signed URLs of the project."""

    policy = {"POST": "share:revoke"}

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        self._signatures.revoke(req.context.project)
        resp.status = falcon.HTTP_204


def _check_names(name: str, given: list[str] | None, names: Any) -> list[str]:
    if unknown := set(given or ()) - set(names):
        raise Invalid(f"{name} may contain {', '.join(names)}, not {min(unknown)[:64]!r}.")
    return list(dict.fromkeys(given or ()))
