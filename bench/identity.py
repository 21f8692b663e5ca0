# SPDX-License-Identifier: Apache-2.0
"""Processor time that authentication adds to a request with a cached credential, in microseconds (tenancy 6).

``python -m bench.identity`` prints the best of five rounds: the step with a token, with a proxy's secret, and without a
strategy. The limit of the contract is 3.
"""

import time
from collections.abc import Callable
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any, Final

from zq.auth.credentials import BearerStrategy
from zq.auth.proxy import ProxySecrets
from zq.auth.tokens import Grant, Tokens, TokenVerifier
from zq.clock import ManualClock
from zq.http.authentication import Authentication
from zq.storage import connect

ROUNDS: Final = 5
CALLS: Final = 20_000
# The part of an engine's environment that is the same for all requests.
ENVIRONMENT: Final = {
    **dict.fromkeys(("SCRIPT_NAME", "QUERY_STRING", "RAW_URI", "SERVER_NAME", "SERVER_PORT", "REMOTE_PORT"), "x"),
    **dict.fromkeys(("wsgi.version", "wsgi.errors", "wsgi.multithread", "wsgi.multiprocess", "wsgi.run_once"), "x"),
    **dict.fromkeys(("HTTP_HOST", "HTTP_ACCEPT", "HTTP_USER_AGENT", "HTTP_CLIENT_ID", "HTTP_CONNECTION"), "x"),
    **{"REQUEST_METHOD": "POST", "PATH_INFO": "/v2/queues/q/messages", "REMOTE_ADDR": "127.0.0.1"},
    **{"CONTENT_LENGTH": "10", "CONTENT_TYPE": "application/json", "wsgi.input": "x", "wsgi.url_scheme": "http"},
}


def cost(step: Authentication, headers: dict[str, str]) -> float:
    """Return the microseconds of a step, without the creation of its request."""
    base = {**ENVIRONMENT, **headers}
    response: Any = None

    def run(call: Callable[[Any, Any], object]) -> float:
        begun = time.process_time()
        for _ in range(CALLS):
            call(SimpleNamespace(env=dict(base), context=SimpleNamespace()), response)
        return time.process_time() - begun

    nothing: Callable[[Any, Any], object] = lambda _req, _resp: None  # noqa: E731
    best = min(run(step.process_request) for _ in range(ROUNDS)) - min(run(nothing) for _ in range(ROUNDS))
    return 1e6 * best / CALLS


def main() -> None:
    """Print the three results."""
    storage, clock = connect("memory:"), ManualClock(time.time())
    token = Tokens(storage.documents, clock).create(Grant(project="acme")).text
    bearer = {"HTTP_AUTHORIZATION": f"Bearer {token}"}
    with NamedTemporaryFile("w") as file:
        file.write("s" * 40)
        file.flush()
        proxy = ProxySecrets(lambda: file.name)
        rows = {
            "no strategy": (Authentication(None, None, False), {}),
            "token": (
                Authentication(BearerStrategy(TokenVerifier(storage.documents, clock), bare=True), None, False),
                bearer,
            ),
            "token, project named": (
                Authentication(BearerStrategy(TokenVerifier(storage.documents, clock), bare=True), None, False),
                bearer | {"HTTP_X_PROJECT_ID": "acme"},
            ),
            "proxy": (
                Authentication(None, proxy, False),
                {"HTTP_X_ZQ_PROXY_SECRET": "s" * 40, "HTTP_X_PROJECT_ID": "acme", "HTTP_X_ROLES": "member"},
            ),
        }
        for name, (step, headers) in rows.items():
            print(f"{name:24}{cost(step, headers):6.2f} µs")
    storage.close()


if __name__ == "__main__":
    main()
