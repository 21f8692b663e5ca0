# SPDX-License-Identifier: Apache-2.0
"""Pre-signed URLs: given out for a queue, and revoked for a project (contract 10). What they are: ``signatures``."""

from typing import Any, Final

import falcon

from zq import wire
from zq.auth.signatures import METHODS, PATHS, Signatures, moment, scope_of, shown
from zq.errors import Invalid, InvalidBody, NotAuthorized
from zq.http import query
from zq.model import QueueRef, Seconds
from zq.model.identity import Identity
from zq.model.scopes import exceed, parse
from zq.wire.tokens import ShareTerms, share_terms

# Seconds that a signature is valid, unless it says otherwise.
DEFAULT: Final = 86400
EXCEEDS: Final = "A signed URL must not be for more than the credential that asks for it."


class QueueShare:
    """``/v2/queues/{queue}/share``"""

    policy = {"POST": "queues:share"}

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    def on_post(self, req: falcon.Request, resp: falcon.Response, queue: str) -> None:
        terms = share_terms(query.body(req))
        paths = _known("paths", terms.paths, PATHS) or ["messages"]
        methods = _known("methods", terms.methods, METHODS) or ["GET"]
        identity: Identity = req.context.identity
        if exceed(parse([scope_of(queue, methods)]), parse(identity.scopes)):
            raise NotAuthorized(EXCEEDS)
        expires = self._expiry(terms, identity)
        resp.data = wire.encode(self._signed(req.context.queue, paths, methods, expires))

    def _expiry(self, terms: ShareTerms, identity: Identity) -> Seconds:
        """Until when; by default for a day, or for as long as may be."""
        now, most = self._signatures.clock.now(), self._signatures.options().max_seconds
        last = min(now + most, identity.expires or now + most)
        if terms.expires is None:
            return min(now + DEFAULT, last)
        try:
            asked = moment(terms.expires)
        except ValueError as error:
            raise InvalidBody("expires must be a date and a time by ISO 8601, as 2030-01-01T00:00:00.") from error
        if not now < asked <= last:
            raise Invalid(f"expires must be from now until {shown(last)}; it is {shown(asked)}.")
        return asked

    def _signed(self, queue: QueueRef, paths: list[str], methods: list[str], expires: Seconds) -> dict[str, Any]:
        whole = sorted(f"/v2/queues/{queue.name}/{path}" for path in paths)
        return {
            "paths": whole,
            "methods": sorted(methods),
            "project": queue.project,
            "expires": shown(expires),
            "signature": self._signatures.sign(queue.project, whole, methods, expires),
        }


class ShareRevocation:
    """``/v2/share/revoke``"""

    policy = {"POST": "share:revoke"}

    def __init__(self, signatures: Signatures) -> None:
        self._signatures = signatures

    def on_post(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._signatures.revoke(req.context.project)
        resp.status = falcon.HTTP_204


def _known(name: str, given: list[str] | None, names: Any) -> list[str]:
    """Each once. Raises ``Invalid`` for one that may not be there."""
    if unknown := set(given or ()) - set(names):
        raise Invalid(f"{name} must be of {', '.join(names)}; it names {min(unknown)[:64]!r}.")
    return list(dict.fromkeys(given or ()))
