# SPDX-License-Identifier: Apache-2.0
"""SQS for operators: quotas, logs, metrics, and metadata in REST.

See SQS contract 1, 6; tenancy 5, 6.
"""

import json
import logging
from typing import Any

import pytest
from msgspec import structs
from webtest import TestApp

from tests.features import administration_of, sqs
from tests.http.api import Api
from tests.http.scoped import Impersonation
from tests.sqs.test_protocols import Caller, Serve, said
from zq.clock import ManualClock
from zq.core import Broker
from zq.events import Events
from zq.http.app import create_app
from zq.http.request_log import LogOptions
from zq.model.quotas import Quota, State
from zq.serving.features import EXTENSIONS
from zq.storage.api import Storage


class Bounded:
    """A server that authenticates REST requests and has quotas."""

    def __init__(self, storage: Storage, clock: ManualClock, account: str, **quota: int) -> None:
        self.broker = Broker(storage, clock, quota=structs.replace(Quota(), **quota), extensions=EXTENSIONS)
        features = [administration_of(self.broker), sqs(self.broker)]
        self.app = TestApp(create_app(self.broker, strategy=Impersonation(), features=features))
        self.caller = Caller(self.app, account)

    def refused(self, operation: str, code: str, status: int, **given: Any) -> str:
        told = self.caller.json(operation, status=status, **given)
        assert told.headers["x-amzn-query-error"] == f"{code};Sender"
        message: str = said(told)["message"]
        return message


def test_rates_of_a_project_hold_for_sqs(storage: Storage, clock: ManualClock, account: str) -> None:
    """A request above the rate fails with RequestThrottled, which SDKs retry; other projects continue (tenancy 6)."""
    bounded = Bounded(storage, clock, account, requests=1)
    for _ in range(2):
        assert "ratelimit" in bounded.caller.json("ListQueues").headers
    assert "requests per second" in bounded.refused("ListQueues", "RequestThrottled", 403)
    Caller(bounded.app, account[::-1]).json("ListQueues")


def test_a_project_that_is_suspended_may_do_nothing(storage: Storage, clock: ManualClock, account: str) -> None:
    """A read-only project may read (tenancy 5)."""
    bounded = Bounded(storage, clock, account)
    bounded.caller.json("CreateQueue", QueueName="jobs")
    quotas = bounded.broker.quotas
    assert quotas is not None
    quotas.write(account, lambda project: structs.replace(project, state=State.READ_ONLY))
    bounded.caller.json("GetQueueUrl", QueueName="jobs")
    assert bounded.refused("DeleteQueue", "AccessDenied", 403, QueueUrl="jobs") == "The project is read-only."
    quotas.write(account, lambda project: structs.replace(project, state=State.SUSPENDED))
    assert bounded.refused("GetQueueUrl", "AccessDenied", 403, QueueName="jobs") == "The project is suspended."


def test_other_accounts_cannot_use_a_suspended_project(storage: Storage, clock: ManualClock, account: str) -> None:
    """A queue's policy gives another account no more than the project itself may do."""
    bounded, other = Bounded(storage, clock, account), account[::-1]
    url = said(bounded.caller.json("CreateQueue", QueueName="jobs"))["QueueUrl"]
    terms: dict[str, Any] = {"Label": "a", "AWSAccountIds": [other], "Actions": ["SendMessage", "GetQueueAttributes"]}
    bounded.caller.json("AddPermission", QueueUrl=url, **terms)
    quotas, bounded.caller = bounded.broker.quotas, Caller(bounded.app, other)
    assert quotas is not None
    message: dict[str, Any] = {"QueueUrl": url, "MessageBody": "one"}
    bounded.caller.json("SendMessage", **message)
    quotas.write(account, lambda project: structs.replace(project, state=State.READ_ONLY))
    bounded.caller.json("GetQueueAttributes", QueueUrl=url)
    assert bounded.refused("SendMessage", "AccessDenied", 403, **message) == "The project is read-only."
    quotas.write(account, lambda project: structs.replace(project, state=State.SUSPENDED))
    refusal = bounded.refused("GetQueueAttributes", "AccessDenied", 403, QueueUrl=url)
    assert refusal == "The project is suspended."


def test_a_project_has_as_many_queues_as_it_may(storage: Storage, clock: ManualClock, account: str) -> None:
    """Creating another queue fails with OverLimit (tenancy 6)."""
    bounded = Bounded(storage, clock, account, queues=1)
    for _ in range(2):
        bounded.caller.json("CreateQueue", QueueName="jobs")
    assert (
        bounded.refused("CreateQueue", "OverLimit", 403, QueueName="more") == "The project may have at most 1 queues."
    )


def test_credentials_of_rest_are_not_required(storage: Storage, clock: ManualClock, account: str) -> None:
    """SQS has its own credentials; other paths still require those of REST (SQS contract 1)."""
    bounded = Bounded(storage, clock, account)
    bounded.caller.json("CreateQueue", QueueName="jobs")
    for path in ("/v2/queues", f"/v2/queues/{account}/stats", "/sqs"):
        bounded.app.get(path, headers={"X-Project-ID": account, "Client-ID": "0" * 32}, status=401)
    head_authenticator = bounded.app.app.head_authenticator
    head = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "QUERY_STRING": ""}
    assert head_authenticator.cached_validity(head) is True  # which lets engines read its body


def test_requests_are_counted_and_logged_by_operation(
    served: Serve, account: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of different operation names in the metrics is bounded (SQS contract 1)."""
    counted: list[tuple[str, str, int]] = []

    class Counted(Events):
        def answered(self, method: str, route: str, status: int, seconds: float, waited: bool) -> None:
            counted.append((method, route, status))

    caplog.set_level(logging.INFO, "zq.requests")
    caller = Caller(served({"events": Counted(), "log": lambda: LogOptions(requests=True)}), account)
    caller.json("CreateQueue", QueueName="jobs")
    caller.link({"Action": "ListQueueTags"}, f"/{account}/jobs")
    caller.json("DropTable", status=400)
    caller.app.get("/v2/", headers={"X-Project-ID": "acme", "Client-ID": "0" * 32})
    assert counted == [
        ("POST", "sqs:CreateQueue", 200),
        ("GET", "sqs:ListQueueTags", 200),
        ("POST", "sqs", 400),
        ("GET", "/v2/", 200),
    ]
    created, listed = [record for record in caplog.records if record.name == "zq.requests"][:2]
    assert (created.__dict__["project"], created.__dict__["queue"], created.__dict__["path"]) == (account, "jobs", "/")
    assert listed.__dict__["path"] == f"/{account}/jobs"


def test_changes_are_kept_for_administrators(broker: Broker, served: Serve, account: str) -> None:
    """An audit record has the change, its time and its queue, as for REST."""
    caller = Caller(served(), account)
    caller.json("CreateQueue", QueueName="jobs")
    caller.json("TagQueue", QueueUrl="jobs", Tags={"a": "b"})
    caller.form({"Action": "DeleteQueue", "QueueUrl": "jobs"})
    dead = said(caller.json("CreateQueue", QueueName="dead"))["QueueUrl"]
    arn = f"arn:aws:sqs:eu-north-1:{account}:dead"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})
    caller.json("CreateQueue", QueueName="other", Attributes={"RedrivePolicy": policy})
    handle = said(caller.json("StartMessageMoveTask", SourceArn=arn))["TaskHandle"]
    caller.json("ListMessageMoveTasks", SourceArn=arn)
    caller.json("CancelMessageMoveTask", TaskHandle=handle)
    caller.json("PurgeQueue", QueueUrl=dead)
    broker.trail.finish()
    rest = {"Client-ID": "30387f00-39a0-11e2-be4a-a8d15f34bae2", "X-Project-ID": account}
    entries = caller.app.get("/v2/audit", headers=rest).json["entries"]
    assert [(entry["rule"], entry["object"], entry["outcome"]) for entry in entries] == [
        ("queues:purge", "queue dead", "done"),
        ("messages:delete_all", "queue dead", "done"),
        ("messages:delete_all", "queue dead", "done"),
        ("queues:delete", "queue jobs", "done"),
        ("queues:update", "queue jobs", "done"),
    ]


def test_rest_and_sqs_change_the_same_queue(served: Serve, account: str) -> None:
    """A queue that REST created has defaults, and each interface sees changes of the other (SQS contract 6)."""
    app = served(project=f"acme-{account}")
    rest, caller = Api(app.app, f"-{account}"), Caller(app, "somebody")
    rest.put("/v2/queues/a.b", 201, {"_default_message_delay": 9})

    def shown(*names: str) -> dict[str, str]:
        found: dict[str, str] = said(caller.json("GetQueueAttributes", QueueUrl="a.b", AttributeNames=names))[
            "Attributes"
        ]
        return found

    made = {"DelaySeconds": "9", "MessageRetentionPeriod": "3600", "VisibilityTimeout": "30"}
    assert shown(*made, "CreatedTimestamp", "RedrivePolicy") == made
    caller.json("SetQueueAttributes", QueueUrl="a.b", Attributes={"DelaySeconds": "8", "VisibilityTimeout": "7"})
    metadata = rest.get("/v2/queues/a.b", 200).json
    assert (metadata["_default_message_delay"], metadata["_sqs"]["visibility"]) == (8, 7)
    rest.put("/v2/queues/dead", 201)
    rest.patch("/v2/queues/a.b", 200, add_rules("dead", 4))
    assert '"maxReceiveCount": 4' in shown("RedrivePolicy")["RedrivePolicy"]
    rest.delete("/v2/queues/a.b", 204)
    caller.json("GetQueueUrl", status=400, QueueName="a.b")


@pytest.mark.every_store
def test_dead_letters_live_as_long_as_their_queue_says(broker: Broker, served: Serve, account: str) -> None:
    """The retention counts from the move and is that of the dead-letter queue at that time (SQS contract 10).

    ``_dead_letter_queue_messages_ttl`` overrides it.
    """
    app = served(project=f"acme-{account}")
    rest, caller = Api(app.app, f"-{account}"), Caller(app, "somebody")
    caller.json("CreateQueue", QueueName="dead", Attributes={"MessageRetentionPeriod": "1000"})
    queue = said(caller.json("GetQueueAttributes", QueueUrl="dead", AttributeNames=["QueueArn"]))["Attributes"][
        "QueueArn"
    ]
    policy = json.dumps({"deadLetterTargetArn": queue, "maxReceiveCount": 1})
    caller.json("CreateQueue", QueueName="jobs", Attributes={"RedrivePolicy": policy, "MessageRetentionPeriod": "600"})
    caller.json("SetQueueAttributes", QueueUrl="dead", Attributes={"MessageRetentionPeriod": "2000"})

    def buried() -> int:
        rest.send("jobs", 1)
        claim, _ = rest.claim("jobs")
        rest.delete(claim, 204)
        rest.post("/v2/queues/jobs/claims", 204, {})
        (letter,) = rest.delete("/v2/queues/dead/messages?pop=1", 200).json["messages"]
        ttl: int = letter["ttl"]
        return ttl

    assert buried() == 2000
    rest.patch(
        "/v2/queues/jobs", 200, [{"op": "add", "path": "/metadata/_dead_letter_queue_messages_ttl", "value": 99}]
    )
    assert buried() == 99


def add_rules(target: str, count: int) -> list[dict[str, Any]]:
    rules = {"_dead_letter_queue": target, "_max_claim_count": count}
    return [{"op": "add", "path": f"/metadata/{key}", "value": value} for key, value in rules.items()]


@pytest.mark.one_store
def test_sqs_metadata_are_checked_when_rest_writes_them(served: Serve, account: str) -> None:
    """``_sqs`` must contain valid attributes; null removes it (SQS contract 6)."""
    rest = Api(served().app, f"-{account}")
    fine = {"visibility": 0, "wait": 20, "tags": {"k": ""}, "redrive_allow": {"redrivePermission": "denyAll"}}
    rest.put("/v2/queues/jobs", 201, {"_sqs": fine})
    for wrong in (
        *({"visibility": 43201}, {"visibility": "5"}, {"max_size": 1023}, {"wait": -1}, {"colour": 1}, {"fifo": True}),
        *({"tags": {"": "x"}}, {"tags": {"k": 5}}, {"tags": {f"t{number}": "" for number in range(51)}}, {"kms": "k"}),
        *({"redrive_allow": {"redrivePermission": "some"}}, {"policy": {}}, {"created": -1}, [], "x", 5),
    ):
        patch = [{"op": "replace", "path": "/metadata/_sqs", "value": wrong}]
        told = rest.patch("/v2/queues/jobs", 400, patch).json
        assert told["description"].startswith("_sqs"), wrong
        rest.put("/v2/queues/other", 400, {"_sqs": wrong})
    assert rest.get("/v2/queues/jobs", 200).json["_sqs"] == fine
    rest.patch("/v2/queues/jobs", 200, [{"op": "replace", "path": "/metadata/_sqs", "value": None}])
    long = {"_dead_letter_queue": "n" * 80}
    rest.put("/v2/queues/long", 400, long)
    rest.put("/v2/queues/long", 201, long | {"_sqs": {"created": 1}})
