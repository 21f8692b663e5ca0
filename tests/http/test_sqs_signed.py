# SPDX-License-Identifier: Apache-2.0
"""Signed requests of SQS: the store's clock and the project's rates apply (SQS contract 3)."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from webtest import TestApp, TestResponse

from tests.features import sqs
from zq.clock import ManualClock
from zq.core import Broker
from zq.events import Events
from zq.http.app import create_app
from zq.model.quotas import Quota
from zq.sqs.keys import NewKey, SqsKeys
from zq.sqs.settings import SqsOptions
from zq.storage.api import Storage

MISMATCH = "SignatureDoesNotMatch"


class FailureList(Events):
    """A list of the reasons of rejected credentials."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def auth_failed(self, reason: str) -> None:
        self.failures.append(reason)


class Signer:
    """A client that signs requests to a server in this process, by default with the server's time."""

    def __init__(self, storage: Storage, clock: ManualClock, patch: pytest.MonkeyPatch, **quota: int) -> None:
        self.keys = SqsKeys(storage.documents, clock, {})
        bounds = Quota(**dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25} | quota)
        broker = Broker(storage, clock, quota=bounds)
        self.events = FailureList()
        features = [sqs(broker, SqsOptions(enabled=True))]
        self._web = TestApp(create_app(broker, features=features, events=self.events))
        self._clock = clock
        self._patch = patch

    def ask(self, key: NewKey, operation: str = "ListQueues", late: float = 0.0, body: bytes = b"{}") -> TestResponse:
        moment = datetime.fromtimestamp(self._clock.now() + late, UTC).replace(tzinfo=None)
        self._patch.setattr("botocore.auth.get_current_datetime", lambda: moment)
        headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
        request = AWSRequest("POST", "http://localhost:8888/", headers=headers, data=body)
        SigV4Auth(Credentials(key.key.id, key.secret), "sqs", "us-east-1").add_auth(request)
        return self._web.post("/", body, {"Host": "localhost:8888", **request.headers}, expect_errors=True)


def outcome(answer: TestResponse) -> tuple[int, Any]:
    """Return the status and the error code, after a check that both kinds of clients find the same code."""
    if answer.status_int < 400:
        return answer.status_int, None
    code = json.loads(answer.body)["__type"].rpartition("#")[2]
    assert answer.headers["x-amzn-query-error"] == f"{code};Sender"
    return answer.status_int, code


def test_the_moment_is_judged_by_the_store_s_clock(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, project_suffix: str
) -> None:
    """The time may differ by a quarter of an hour; an expired key is refused even if it is cached."""
    signer = Signer(storage, clock, monkeypatch)
    key = signer.keys.create(f"signed{project_suffix}", days=1, plain=True)
    assert outcome(signer.ask(key)) == (200, None)
    assert outcome(signer.ask(key, late=-890)) == (200, None)
    for late in (-1000, 1000):
        assert outcome(signer.ask(key, late=late)) == (403, MISMATCH)
    clock.advance(86_400)
    assert outcome(signer.ask(key)) == (403, "InvalidClientTokenId")


def test_an_operation_that_a_key_does_not_allow_is_told_after_its_signature(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, project_suffix: str
) -> None:
    """A wrong signature gets the same error whether or not the operation exists."""
    signer = Signer(storage, clock, monkeypatch)
    key = signer.keys.create(f"signed{project_suffix}", ["ListQueues"], plain=True)
    assert outcome(signer.ask(key)) == (200, None)
    assert outcome(signer.ask(key, "CreateQueue")) == (403, "AccessDenied")
    wrong = key._replace(secret="x")
    assert [outcome(signer.ask(wrong, operation)) for operation in ("CreateQueue", "Fly")] == [(403, MISMATCH)] * 2
    assert signer.ask(key, "Fly").headers["x-amzn-query-error"] == "InvalidAction;Sender"
    assert signer.events.failures == ["forbidden", "unauthenticated", "unauthenticated"]


def test_rates_are_the_project_s(
    storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, project_suffix: str
) -> None:
    """Two keys of a project share its rate; another project is not affected."""
    signer = Signer(storage, clock, monkeypatch, requests=1)
    first, second = (signer.keys.create(f"signed{project_suffix}", plain=True) for _ in range(2))
    answers = {outcome(signer.ask(key)) for _ in range(10) for key in (first, second)}
    assert answers == {(200, None), (403, "RequestThrottled")}
    assert outcome(signer.ask(signer.keys.create(f"other{project_suffix}", plain=True))) == (200, None)
