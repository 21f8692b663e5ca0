# SPDX-License-Identifier: Apache-2.0
"""Policies of queues: permissions of other accounts, and changes (SQS contract 8)."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from zq.sqs.permissions import allows

MINE, THEIRS, STRANGER = "111111111111", "222222222222", "333333333333"
QUEUE = (MINE, "jobs")
ARN = f"arn:aws:sqs:eu-north-1:{MINE}:jobs"
PLAIN: dict[str, Any] = {
    "Effect": "Allow",
    "Principal": {"AWS": f"arn:aws:iam::{THEIRS}:root"},
    "Action": "SQS:SendMessage",
    "Resource": ARN,
}
Connect = Callable[..., Any]


def judged(*statements: Any, account: str = THEIRS, action: str = "SendMessage") -> bool:
    return allows(json.dumps({"Version": "2008-10-17", "Statement": [*statements]}), account, action, QUEUE)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"Sid": "x", "Resource": "*"},
        {"Resource": ["arn:aws:sqs:us-east-1:1:other", f"arn:aws-cn:sqs:cn-north-1:{MINE}:jobs"]},
        {"Principal": "*"},
        {"Principal": {"AWS": "*"}},
        {"Principal": {"AWS": [STRANGER, THEIRS], "Service": "sns.amazonaws.com"}},
        {"Action": "*"},
        {"Action": ["sqs:*"]},
        {"Action": ["sqs:ReceiveMessage", "sqs:sendmessage"]},
    ],
)
def test_what_a_statement_grants(change: dict[str, Any]) -> None:
    """Accounts, actions and queues are named or ``*``; a denial matches in the same way."""
    statement = PLAIN | change
    assert judged(statement)
    assert judged({**statement, "Principal": STRANGER}, statement)
    for both in ((PLAIN, statement | {"Effect": "Deny"}), (statement | {"Effect": "Deny"}, PLAIN)):
        assert not judged(*both)


@pytest.mark.parametrize(
    "change",
    [
        {"Principal": {"AWS": f"arn:aws:iam::{STRANGER}:root"}},
        {"Principal": {"AWS": []}},
        {"Action": "SQS:ReceiveMessage"},
        {"Resource": f"arn:aws:sqs:eu-north-1:{MINE}:other"},
        {"Resource": f"arn:aws:sqs:eu-north-1:{THEIRS}:jobs"},
    ],
)
def test_a_statement_about_others_grants_and_denies_nothing(change: dict[str, Any]) -> None:
    assert not judged(PLAIN | change)
    assert judged(PLAIN, PLAIN | change | {"Effect": "Deny"})


@pytest.mark.parametrize(
    "change",
    [
        {"Condition": {"Bool": {"aws:SecureTransport": "true"}}},
        {"NotAction": "SQS:DeleteQueue"},
        {"NotPrincipal": {"AWS": STRANGER}},
        {"Principal": {"AWS": f"arn:aws:iam::{THEIRS}:user/ann"}},
        {"Principal": {"AWS": "2222*"}},
        {"Principal": {"Service": "sns.amazonaws.com"}},
        {"Principal": None},
        {"Action": "SQS:Send*"},
        {"Action": "SendMessage"},
        {"Action": None},
        {"Resource": f"arn:aws:sqs:*:{MINE}:jobs"},
        {"Resource": f"arn:aws:sqs:eu-north-1:{MINE}:j*"},
        {"Resource": 1},
    ],
)
def test_an_unknown_element_allows_nothing_and_denies_all(change: dict[str, Any]) -> None:
    """A policy is never interpreted more generously than it is written."""
    assert not judged(PLAIN | change)
    assert not judged(PLAIN, PLAIN | change | {"Effect": "Deny"})


@pytest.mark.parametrize("policy", ["", "{", "[]", "{}", '{"Statement": "x"}', '{"Statement": [1]}'])
def test_an_invalid_policy_allows_nothing(policy: str) -> None:
    assert not allows(policy, THEIRS, "SendMessage", QUEUE)
    for other in (1, None, PLAIN | {"Effect": "Maybe"}):
        assert not judged(PLAIN, other)


def test_one_statement_needs_no_list() -> None:
    assert allows(json.dumps({"Statement": PLAIN}), THEIRS, "SendMessage", QUEUE)


@contextmanager
def refused(code: str, message: str = "", status: int = 400) -> Iterator[None]:
    with pytest.raises(ClientError) as refusal:
        yield
    answer = refusal.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == (code, status)
    assert answer["Error"]["Message"].startswith(message)


def policy_of(sqs: Any, queue: str) -> Any:
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"]).get("Attributes")
    return json.loads(found["Policy"]) if found else None


def test_permissions_are_added_and_taken_back(sqs: Any, queue: str, account: str) -> None:
    """Each permission is a statement in AWS's form; the policy is removed with the last one."""
    arn = f"arn:aws:sqs:eu-north-1:{account}:jobs"
    sqs.add_permission(QueueUrl=queue, Label="one", AWSAccountIds=[THEIRS], Actions=["SendMessage"])
    actions = ["ReceiveMessage", "DeleteMessage"]
    sqs.add_permission(QueueUrl=queue, Label="two", AWSAccountIds=[THEIRS, STRANGER], Actions=actions)
    first = PLAIN | {"Sid": "one", "Resource": arn}
    principals = [f"arn:aws:iam::{other}:root" for other in (THEIRS, STRANGER)]
    second = first | {"Sid": "two", "Principal": {"AWS": principals}, "Action": [f"SQS:{each}" for each in actions]}
    shown = {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": [first, second]}
    assert policy_of(sqs, queue) == shown
    sqs.remove_permission(QueueUrl=queue, Label="one")
    assert policy_of(sqs, queue) == shown | {"Statement": [second]}
    sqs.remove_permission(QueueUrl=queue, Label="two")
    assert policy_of(sqs, queue) is None


def test_invalid_permissions_are_refused(sqs: Any, queue: str) -> None:
    """The errors are those of AWS."""
    terms = {"QueueUrl": queue, "Label": "test", "AWSAccountIds": [THEIRS], "Actions": ["SendMessage"]}
    sqs.add_permission(**terms)
    value = "Value {} for parameter {} is invalid. Reason: {}"
    with refused("InvalidParameterValue", value.format("test", "Label", "Already exists.")):
        sqs.add_permission(**terms)
    owner = value.format("SQS:DeleteQueue", "ActionName", "Only the queue owner is allowed to invoke this action.")
    with refused("InvalidParameterValue", owner):
        sqs.add_permission(**terms | {"Label": "b", "Actions": ["DeleteQueue"]})
    with refused("MissingParameter", "The request must contain the parameter Actions."):
        sqs.add_permission(**terms | {"Label": "b", "Actions": []})
    with refused("InvalidParameterValue", value.format("[]", "PrincipalId", "Unable to verify.")):
        sqs.add_permission(**terms | {"Label": "b", "AWSAccountIds": []})
    with refused("InvalidParameterValue"):
        sqs.add_permission(**terms | {"Label": "a b"})
    with refused("OverLimit", "8 Actions were found, maximum allowed is 7.", 403):
        sqs.add_permission(**terms | {"Label": "b", "Actions": ["SendMessage"] * 8})
    with refused("InvalidParameterValue", value.format("none", "Label", "can't find label on existing policy.")):
        sqs.remove_permission(QueueUrl=queue, Label="none")


def test_another_account_does_what_it_was_granted(sqs: Any, queue: str, connected: Connect, account: str) -> None:
    """The other account may use only the granted actions, and only on this queue; an action includes its batch."""
    key = f"{(int(account) + 1) % 10**12:012d}"
    other = connected(key)
    other.create_queue(QueueName="jobs")
    entries = [{"Id": "a", "MessageBody": "two"}]
    with refused("AccessDenied", status=403):
        other.send_message(QueueUrl=queue, MessageBody="one")
    sqs.add_permission(QueueUrl=queue, Label="a", AWSAccountIds=[key], Actions=["SendMessage", "GetQueueUrl"])
    other.send_message(QueueUrl=queue, MessageBody="one")
    assert "Failed" not in other.send_message_batch(QueueUrl=queue, Entries=entries)
    assert other.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId=account)["QueueUrl"] == queue
    taken = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, MessageSystemAttributeNames=["SenderId"])
    assert [(one["Body"], one["Attributes"]["SenderId"]) for one in taken["Messages"]] == [("one", key), ("two", key)]
    for ask in (other.receive_message, other.delete_queue, other.list_queue_tags, other.get_queue_attributes):
        with refused("AccessDenied", status=403):
            ask(QueueUrl=queue)
    sqs.add_permission(QueueUrl=queue, Label="b", AWSAccountIds=[key], Actions=["*"])
    shown = other.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    assert shown == {"QueueArn": f"arn:aws:sqs:eu-north-1:{account}:jobs"}
    with refused("AccessDenied", status=403):
        other.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "1"})
    sqs.remove_permission(QueueUrl=queue, Label="a")
    sqs.remove_permission(QueueUrl=queue, Label="b")
    with refused("AccessDenied", status=403):
        other.send_message(QueueUrl=queue, MessageBody="three")
