# SPDX-License-Identifier: Apache-2.0
"""Authentication by the request head, before the edge reads the body (``zq.http.heads.HeadAuthenticator``)."""

import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from falcon.testing import create_environ

from tests.http.stores import BrokenStore, down, untouched
from zq.auth.credentials import BURST, BearerStrategy
from zq.auth.proxy import ProxySecrets
from zq.auth.signatures import Signatures
from zq.auth.tokens import Grant, Tokens, TokenVerifier, format_token
from zq.clock import ManualClock
from zq.core import Broker
from zq.errors import NotAuthenticated, TooManyRequests
from zq.http import heads
from zq.http.app import create_app
from zq.http.authentication import Authentication
from zq.model.identity import SignedUrlOptions
from zq.sqs.authentication import SignedCallers
from zq.sqs.keys import SqsKeyLookup, SqsKeys
from zq.storage import connect

PEER = "192.0.2.1"


def head(credential: str = "", path: str = "/v2/queues/jobs/messages") -> dict[str, Any]:
    said = {"HTTP_AUTHORIZATION": credential} if credential else {}
    return {"REQUEST_METHOD": "POST", "PATH_INFO": path, "REMOTE_ADDR": PEER, **said}


def judging(strategy: BearerStrategy | None, proxy: ProxySecrets | None = None) -> Authentication:
    """Return an authentication without signed URLs."""
    storage = connect("memory:")
    signatures = Signatures(SignedUrlOptions, storage.documents, ManualClock(1_700_000_000.0))
    return Authentication(strategy, proxy, False, signatures)


def test_only_cached_credentials_are_judged() -> None:
    """The first lookup of a credential needs the store; afterwards its validity is cached, valid or not."""
    storage, clock = connect("memory:"), ManualClock(1_700_000_000.0)
    valid = f"Bearer {Tokens(storage.documents, clock).create(Grant(project='acme')).text}"
    other = f"Bearer {format_token('0' * 10, '0' * 43)}"
    judge = judging(BearerStrategy(TokenVerifier(storage.documents, clock), bare=True))
    for credential, expected in ((valid, True), (other, False)):
        assert judge.cached_validity(head(credential)) is None
        assert judge.look_up(head(credential)) is expected
        assert judge.cached_validity(head(credential)) is expected
    storage.close()


@pytest.mark.parametrize("credential", ["", "Basic YTpi", "Bearer nonsense"])
def test_an_invalid_credential_is_refused_without_the_store(credential: str) -> None:
    store = BrokenStore(untouched)
    strategy = BearerStrategy(TokenVerifier(store, ManualClock(1_700_000_000.0)), bare=True)
    judge = judging(strategy)
    assert judge.cached_validity(head(credential)) is False
    assert judge.cached_validity(head(credential, "/healthz")) is True, "who needs no credential may send a body"


def test_head_checks_count_no_failures_but_apply_the_limit() -> None:
    """The application counts failures, so that each request fails once; beyond the limit no credential is looked up."""
    storage, clock = connect("memory:"), ManualClock(1_700_000_000.0)
    strategy = BearerStrategy(TokenVerifier(storage.documents, clock), bare=True, monotonic=lambda: 1000.0)
    judge = judging(strategy)
    for _ in range(2 * BURST):
        assert judge.cached_validity(head()) is False
    for _ in range(BURST):
        with pytest.raises(NotAuthenticated):
            strategy.authenticate(head(), PEER)
    with pytest.raises(TooManyRequests):
        strategy.authenticate(head(), PEER)
    assert judge.cached_validity(head(f"Bearer {format_token('0' * 10, '0' * 43)}")) is False
    storage.close()


def test_a_proxy_is_known_by_its_secret(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("s" * 32)
    secrets.chmod(0o600)
    judge = judging(None, ProxySecrets(lambda: str(secrets)))
    assert judge.cached_validity(head()) is False
    assert judge.cached_validity(head() | {"HTTP_X_ZQ_PROXY_SECRET": "s" * 32}) is True


def test_a_credential_of_a_store_that_does_not_answer_is_neither_valid_nor_invalid() -> None:
    """Tokens, signatures and SQS keys are not rejected with 401, because clients discard a credential after 401."""
    store, clock = BrokenStore(down), ManualClock(1_700_000_000.0)
    documents: Any = store.documents
    token = head(f"Bearer {format_token('0' * 10, '0' * 43)}")
    assert judging(BearerStrategy(TokenVerifier(documents, clock), bare=True)).look_up(token) is None
    signatures = Signatures(lambda: SignedUrlOptions(secret_key="s" * 32), documents, clock)
    signed = {"HTTP_URL_SIGNATURE": "0" * 64, "HTTP_X_PROJECT_ID": "acme", "HTTP_URL_PATHS": "/v2/queues/q/messages"}
    assert Authentication(None, None, False, signatures).look_up(head() | signed) is None
    request = AWSRequest("POST", "http://localhost/", headers={"X-Amz-Target": "AmazonSQS.ListQueues"}, data=b"{}")
    SigV4Auth(Credentials("k" * 20, "s"), "sqs", "us-east-1").add_auth(request)
    headers = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in request.headers.items()}
    keys = SignedCallers(SqsKeyLookup(SqsKeys(documents, clock, {}), clock), time.time, False)
    assert keys.look_up(head(path="/") | headers | {"HTTP_HOST": "localhost", "QUERY_STRING": ""}) is None


@pytest.mark.parametrize("mark", [True, heads.UNKNOWN_CREDENTIAL])
@pytest.mark.parametrize("length", [{"CONTENT_LENGTH": "30"}, {"HTTP_TRANSFER_ENCODING": "chunked"}])
def test_a_withheld_body_of_a_valid_caller_is_answered_503(mark: object, length: dict[str, str]) -> None:
    """The store did not respond when the head was checked, but responds now: the client should retry."""
    storage, clock = connect("memory:"), ManualClock(1_700_000_000.0)
    token = Tokens(storage.documents, clock).create(Grant(project="acme")).text
    app = create_app(
        Broker(storage, clock), strategy=BearerStrategy(TokenVerifier(storage.documents, clock), bare=True)
    )
    said = {"Authorization": f"Bearer {token}", "Client-ID": "30387f00c63a4a30ac1f3e2cf1b0c3a1", "Host": "localhost"}
    environ = create_environ(path="/v2/queues/q/messages", method="POST", headers=said)
    environ |= {"CONTENT_TYPE": "application/json", heads.WITHHELD_KEY: mark, "wsgi.input": BytesIO(), **length}
    environ["wsgi.input_terminated"] = True
    answered: list[Any] = []
    b"".join(app(environ, lambda *given: answered.extend(given)))
    assert answered[0].startswith("503"), answered
    headers = {name.lower(): value for name, value in answered[1]}
    assert headers["connection"] == "close"
    assert "retry-after" in headers
    storage.close()
