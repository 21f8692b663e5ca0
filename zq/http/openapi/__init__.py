# SPDX-License-Identifier: Apache-2.0
"""``/v2/openapi.json``: the interface as OpenAPI 3.1 (extensions 10).

Bodies come from the values that decode and encode them, bounds from the limits in force, statuses from the table of
faults; parameters and what each operation answers are written down here. ``tests/http/test_openapi.py`` compares all
that with the routes, ``tests/http/test_fuzz.py`` with what the server does.
"""

from functools import lru_cache
from typing import Any

import falcon

from zq import __version__, wire
from zq.http.openapi import paths, schemas
from zq.http.openapi.operations import error_answers
from zq.http.openapi.parameters import RESPONSE_HEADERS, shared_parameters
from zq.http.tenant import Audience
from zq.limits import Limits

DESCRIPTION = """\
Queues and topics over HTTP with the wire contract of OpenStack Zaqar v2, and more. Unknown parameters and members are
ignored, an empty parameter counts as absent, integers are written without a fraction, a known path answers 405 to a
method that is not here. Every error has a title and mostly a description. Any request may get 400 for a head that could
mean two things, 421 for a Host that is not the server's, and 408 if its body does not come in time; other statuses than
those named come only from what stands between client and server.
"""
TAGS = {
    "queues": "Queues and their metadata.",
    "messages": "Messages, dead letters and history.",
    "claims": "Work on messages: claim, renew, release, settle.",
    "transactions": "Fences, staged posts and commits of batch jobs.",
    "topics": "Topics, their messages and live streams.",
    "service": "Versions, limits, probes and metrics.",
}


class OpenApiDocument:
    """``/v2/openapi.json``"""

    audience = Audience.PROBE

    def __init__(self, limits: Limits, strict_client_id: bool) -> None:
        self._document = _encoded(limits, strict_client_id)

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = self._document


@lru_cache(maxsize=8)
def _encoded(limits: Limits, strict_client_id: bool) -> bytes:
    return wire.encode(document(limits, strict_client_id))


def document(limits: Limits, strict_client_id: bool = True) -> dict[str, Any]:
    """What a server with these limits serves and takes."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "zq",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in TAGS.items()],
        "paths": paths.paths(limits),
        "components": {
            "schemas": schemas.schemas(limits),
            "parameters": shared_parameters(limits, strict_client_id),
            "headers": RESPONSE_HEADERS,
            "responses": error_answers(),
        },
    }
