# SPDX-License-Identifier: Apache-2.0
"""The operations on queues with boto3: names, attributes, policies, tags, purges (SQS contract 2, 5, 6)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from msgspec.structs import fields

from tests.cli.conftest import Zq
from tests.sqs.conftest import REGION, Connect
from tests.sqs.test_protocols import Caller, Serve, said, texts
from zq.clock import ManualClock
from zq.core import Broker
from zq.model import Draft, QueueRef
from zq.model.documents import DocumentRef
from zq.sqs import errors
from zq.sqs.accounts import ACCOUNTS, KIND, Accounts
from zq.sqs.limits import NUMBERS
from zq.sqs.operations import OPERATIONS
from zq.storage.api import Storage

DEFAULTS = {
    "VisibilityTimeout": "30",
    "MessageRetentionPeriod": "345600",
    "DelaySeconds": "0",
    "MaximumMessageSize": "1048576",
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "false",
    "ApproximateNumberOfMessages": "0",
    "ApproximateNumberOfMessagesNotVisible": "0",
    "ApproximateNumberOfMessagesDelayed": "0",
}
SETTABLE = [name for name in NUMBERS if not name.startswith("Kms")]


@contextmanager
def refused(code: str, message: str | None = None) -> Iterator[None]:
    """Assert that the client raises an error with this query code; ``message``: the whole text."""
    with pytest.raises(ClientError) as error:
        yield
    told = error.value.response["Error"]
    assert told["Code"].removeprefix("AWS.SimpleQueueService.") == code, told
    assert message in (None, told["Message"])


def attributes(sqs: Any, url: str, *names: str) -> dict[str, str]:
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names or ["All"]).get(
        "Attributes", {}
    )
    return found


def created(sqs: Any, name: str, **given: str) -> str:
    url: str = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    return url


def arn(account: str, name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{account}:{name}"


def redrive(target: str, count: object = 3) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": count})


@pytest.mark.every_store
def test_a_queue_from_its_creation_to_its_end(sqs: Any, url: str, account: str, clock: ManualClock) -> None:
    """The test calls each operation on queues once, on each store (SQS contract 5)."""
    queue = sqs.create_queue(QueueName="jobs", Attributes={"DelaySeconds": "7"}, tags={"team": "blue"})["QueueUrl"]
    assert queue == f"{url}/{account}/jobs"
    moment = str(int(clock.now()))
    moments = {"CreatedTimestamp": moment, "LastModifiedTimestamp": moment, "QueueArn": arn(account, "jobs")}
    assert attributes(sqs, queue) == DEFAULTS | moments | {"DelaySeconds": "7"}
    assert sqs.get_queue_url(QueueName="jobs")["QueueUrl"] == queue
    assert sqs.list_queues()["QueueUrls"] == [queue]
    clock.advance(2)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "5"})
    changed = {"VisibilityTimeout": "5", "LastModifiedTimestamp": str(int(clock.now())), "CreatedTimestamp": moment}
    assert attributes(sqs, queue, *changed, "DelaySeconds") == changed | {"DelaySeconds": "7"}
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "red", "cost": ""})
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "red", "cost": ""}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["team", "none"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"cost": ""}
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == []
    sqs.purge_queue(QueueUrl=queue)
    sqs.delete_queue(QueueUrl=queue)
    assert "QueueUrls" not in sqs.list_queues()
    with refused("NonExistentQueue", "The specified queue does not exist."):
        sqs.delete_queue(QueueUrl=queue)


def test_a_repeated_creation_succeeds_with_equal_attributes(sqs: Any) -> None:
    """Numbers are compared by value and policies as JSON; omitted attributes are not compared (SQS contract 5)."""
    target = attributes(sqs, created(sqs, "dead"), "QueueArn")["QueueArn"]
    policy = '{"Version": "2012-10-17", "Statement": []}'
    queue = created(sqs, "jobs", VisibilityTimeout="5", RedrivePolicy=redrive(target), Policy=policy)
    assert created(sqs, "jobs") == queue
    same = {"VisibilityTimeout": "05", "DelaySeconds": "0", "Policy": '{"Statement":[],"Version":"2012-10-17"}'}
    assert created(sqs, "jobs", **same, RedrivePolicy=redrive(target, "3")) == queue
    exists = "A queue already exists with the same name and a different value for attribute "
    for name, value in {"DelaySeconds": "1", "RedrivePolicy": redrive(target, 4), "Policy": "{}"}.items():
        with refused("QueueAlreadyExists", exists + name):
            created(sqs, "jobs", **same | {name: value})


def test_numbers_have_their_bounds(sqs: Any) -> None:
    """The minimum and maximum are accepted and returned; other values change nothing (SQS contract 6)."""
    queue = created(sqs, "jobs")
    for name in SETTABLE:
        least, most, _ = NUMBERS[name]
        for value in (least, most):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: str(value)})
            assert attributes(sqs, queue, name) == {name: str(value)}
        for wrong in (str(least - 1), str(most + 1), "", "many", "1.5", "٣"):
            with refused("InvalidAttributeValue", f"Invalid value for the parameter {name}."):
                sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: wrong})
        assert attributes(sqs, queue, name) == {name: str(most)}


def test_names_of_attributes_are_known_or_refused(sqs: Any) -> None:
    """Unknown attributes are refused, computed ones and those of FIFO queues cannot be set (SQS contract 4, 6).

    Readers may name the last two kinds.
    """
    queue = created(sqs, "jobs")
    only = "You can specify the {} only when FifoQueue is set to true."
    for name, message in {
        "Colour": "Unknown Attribute Colour.",
        "All": "Unknown Attribute All.",
        "QueueArn": "Unknown Attribute QueueArn.",
        "CreatedTimestamp": "Unknown Attribute CreatedTimestamp.",
        "ContentBasedDeduplication": "Unknown Attribute ContentBasedDeduplication.",
        "DeduplicationScope": only.format("DeduplicationScope"),
        "FifoThroughputLimit": only.format("FifoThroughputLimit"),
    }.items():
        with refused("InvalidAttributeName", message):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: "1"})
        with refused("InvalidAttributeName", message):
            created(sqs, "other", **{name: "1"})
    with refused("InvalidAttributeName", "Unknown Attribute Colour."):
        attributes(sqs, queue, "DelaySeconds", "Colour")
    assert attributes(sqs, queue, "FifoQueue", "RedrivePolicy", "DelaySeconds") == {"DelaySeconds": "0"}
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    assert sqs.list_queues()["QueueUrls"] == [queue]


def test_a_queue_is_fifo_or_standard_for_ever(sqs: Any) -> None:
    """The name determines the kind of a queue, which never changes (SQS contract 2, 6)."""
    fifo_name = (
        "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with "
        ".fifo suffix and be 1 to 80 in length"
    )
    for name in ("jobs", ".fifo", "a.b.fifo", "n" * 76 + ".fifo"):
        with refused("InvalidParameterValue", fifo_name):
            created(sqs, name, FifoQueue="true")
    with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
        created(sqs, "jobs", FifoQueue="false")
    standard, fifo = created(sqs, "jobs"), created(sqs, "jobs.fifo", FifoQueue="true")
    for value in ("true", "false"):
        with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
            sqs.set_queue_attributes(QueueUrl=standard, Attributes={"FifoQueue": value})
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "True", "DelaySeconds": "3"})
    assert attributes(sqs, fifo, "FifoQueue", "DelaySeconds") == {"FifoQueue": "true", "DelaySeconds": "3"}
    for value in ("false", "yes"):
        with refused(
            "InvalidAttributeValue",
            "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
        ):
            sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": value})


BOOLEANS = ("FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled")


@pytest.mark.parametrize("spelling", ["true", "True", "TRUE"])
def test_booleans_of_attributes_have_any_case(sqs: Any, spelling: str) -> None:
    """The rule applies to creation, repeated creation and changes; values are shown in lower case (SQS contract 6)."""
    given, shown = dict.fromkeys(BOOLEANS, spelling), dict.fromkeys(BOOLEANS, "true")
    queue = created(sqs, "jobs.fifo", **given)
    assert attributes(sqs, queue, *BOOLEANS) == shown
    assert created(sqs, "jobs.fifo", **given) == created(sqs, "jobs.fifo", **shown) == queue
    false = {"true": "false", "True": "False", "TRUE": "FALSE"}[spelling]
    for name in BOOLEANS[1:]:
        with refused("QueueAlreadyExists"):
            created(sqs, "jobs.fifo", **given | {name: false})
        for value, text in ((false, "false"), (spelling, "true")):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: value})
            assert attributes(sqs, queue, name) == {name: text}
        for wrong in ("", "yes", "1"):
            with refused("InvalidAttributeValue", f"Invalid value for the parameter {name}."):
                sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: wrong})
    for refusing in (false, "yes", ""):
        with refused("InvalidAttributeName", "Unknown Attribute FifoQueue."):
            created(sqs, "jobs", FifoQueue=refusing)
    with refused("InvalidAttributeName", errors.two_encryptions().message):
        created(sqs, "other", KmsMasterKeyId="alias/mine", SqsManagedSseEnabled=spelling)


def test_names_of_new_queues(sqs: Any, account: str) -> None:
    """A name has up to 80 letters, digits, hyphens and underscores (SQS contract 2)."""
    for name in ("a", "A-b_9", "n" * 80):
        assert created(sqs, name).endswith(f"/{account}/{name}")
    for name in ("", "n" * 81, "a.b", "jobs.fifo", "ä", "a/b", "a b", "a\n"):
        with refused(
            "InvalidParameterValue",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        ):
            created(sqs, name)


def test_a_queue_is_found_by_whatever_leads_to_it(connected: Connect, account: str) -> None:
    """Only the last two segments of a URL count, whatever its host, region and path; a bare name suffices.

    See SQS contract 2.
    """
    sqs = connected()
    queue = created(sqs, "jobs")
    for named in (f"https://sqs.example.org/{account}/jobs", f"{queue}/", f"/queue/eu-west-1/{account}/jobs", "jobs"):
        assert attributes(sqs, named, "DelaySeconds") == {"DelaySeconds": "0"}, named
    elsewhere = connected(region="ap-south-1")
    assert elsewhere.list_queues()["QueueUrls"] == [queue]
    assert attributes(elsewhere, queue, "QueueArn")["QueueArn"] == f"arn:aws:sqs:ap-south-1:{account}:jobs"
    for nothing in ("other", "", "a b", "x/"):
        with refused("MissingParameter" if not nothing else "NonExistentQueue"):
            attributes(sqs, nothing, "DelaySeconds")


def test_queues_of_others_are_out_of_reach(connected: Connect, account: str, broker: Broker) -> None:
    """For a known account access is denied, and an unknown one does not exist; queues of others are not listed.

    See SQS contract 2.
    """
    sqs, other = connected(), connected(f"{(int(account) + 1) % ACCOUNTS:012d}")
    queue = created(sqs, "jobs")
    with refused("NonExistentQueue"):
        other.get_queue_url(QueueName="jobs")
    with refused("AccessDenied"):
        other.delete_queue(QueueUrl=queue)
    with refused("AccessDenied"):
        other.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId=account)
    with refused("NonExistentQueue"):
        other.delete_queue(QueueUrl=queue.replace(account, f"{(int(account) + 2) % ACCOUNTS:012d}"))
    assert "QueueUrls" not in other.list_queues()
    assert sqs.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId=account)["QueueUrl"] == queue


@pytest.mark.every_store
def test_an_account_is_a_projects_for_ever(storage: Storage, clock: ManualClock) -> None:
    """All servers assign the same account, or the next free one; a project of twelve digits is its own account.

    See SQS contract 2.
    """
    project = f"acme-{clock.now()}"
    first = Accounts(storage, clock).get_or_assign(project)
    assert len(first) == 12
    assert Accounts(storage, clock).get_or_assign(project) == first
    assert Accounts(storage, clock).find_project(first)
    assert Accounts(storage, clock).get_or_assign(first) == first
    digits = f"{first}-other"
    taken = Accounts(storage, clock).get_or_assign(digits)
    late = f"{(int(taken) + 1) % ACCOUNTS:012d}"
    for name in (taken, digits):  # as if another project had its place
        storage.documents.delete(DocumentRef("", KIND, name), clock.now())
    storage.documents.put(DocumentRef("", KIND, taken), b"somebody", clock.now())
    assert Accounts(storage, clock).get_or_assign(digits) == late


def test_dead_letters_go_to_a_queue_that_takes_them(sqs: Any, account: str) -> None:
    """The target must exist, be another queue of the account, and allow it; an empty text removes the policy.

    See SQS contract 6.
    """
    created(sqs, "dead")
    queue = created(sqs, "jobs", RedrivePolicy=redrive(arn(account, "dead"), "3"))
    shown = json.loads(attributes(sqs, queue, "RedrivePolicy")["RedrivePolicy"])
    assert shown == {"deadLetterTargetArn": arn(account, "dead"), "maxReceiveCount": 3}
    assert sqs.list_dead_letter_source_queues(QueueUrl="dead")["queueUrls"] == [queue]
    wrong = {
        redrive(arn(account, "none")): "Dead letter target does not exist.",
        redrive(arn(account, "jobs.fifo")): "Dead letter target does not exist.",
        redrive(arn("1" * 12, "dead")): "Dead letter target must be a queue of the same account.",
        redrive("dead"): "Dead letter target must be a queue of the same account.",
        redrive(
            arn(account, "dead"), 0
        ): "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive.",
        redrive(
            arn(account, "dead"), 1001
        ): "Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive.",
        redrive(arn(account, "dead"), ""): "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
        redrive(""): "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
        "dead": "Redrive policy is not a valid JSON map.",
        "[]": "Redrive policy is not a valid JSON map.",
    }
    for policy, reason in wrong.items():
        with refused(
            "InvalidParameterValue", f"Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}"
        ):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": ""})
    assert attributes(sqs, queue, "RedrivePolicy") == {}
    assert sqs.list_dead_letter_source_queues(QueueUrl="dead")["queueUrls"] == []


@pytest.mark.every_store
@pytest.mark.parametrize("fifo", [False, True])
def test_a_queue_may_be_its_own_dead_letter_queue(sqs: Any, account: str, clock: ManualClock, fifo: bool) -> None:
    """The messages stay in the queue and their receive counts continue, as on AWS."""
    name, more = ("own.fifo", {"FifoQueue": "true", "ContentBasedDeduplication": "true"}) if fifo else ("own", {})
    queue = created(sqs, name, **more)
    policy = {"RedrivePolicy": redrive(arn(account, name), 2), "VisibilityTimeout": "1"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=policy)
    assert sqs.list_dead_letter_source_queues(QueueUrl=queue)["queueUrls"] == [queue]
    sqs.send_message(QueueUrl=queue, MessageBody="poison", **({"MessageGroupId": "g"} if fifo else {}))
    counts = []
    for _ in range(6):
        (message,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"])["Messages"]
        counts.append(message["Attributes"]["ApproximateReceiveCount"])
        clock.advance(1.1)
    assert counts == ["1", "2", "3", "4", "5", "6"]


def test_a_queue_chooses_whose_dead_letters_it_takes(sqs: Any, account: str) -> None:
    """A queue accepts all, none, or named source queues, which is checked when a source names it (SQS contract 6)."""
    dead, queue = created(sqs, "dead"), created(sqs, "jobs")
    policy = {"RedrivePolicy": redrive(arn(account, "dead"))}
    by_queue = {"redrivePermission": "byQueue", "sourceQueueArns": [arn(account, "jobs")]}
    for allowed in ("", {"redrivePermission": "allowAll"}, by_queue):
        text = allowed and json.dumps(allowed)
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": text})
        assert attributes(sqs, dead, "RedriveAllowPolicy").get("RedriveAllowPolicy", "") == text
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=policy)
    for forbidden in ({"redrivePermission": "denyAll"}, by_queue | {"sourceQueueArns": [arn(account, "other")]}):
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(forbidden)})
        with refused("InvalidParameterValue"):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes=policy)
    many = [arn(account, f"q{number}") for number in range(11)]
    for wrong in (
        *("{}", "all", '{"redrivePermission": "some"}', '{"redrivePermission": "byQueue"}'),
        json.dumps(by_queue | {"sourceQueueArns": many}),
        json.dumps(by_queue | {"sourceQueueArns": ["jobs"]}),
        json.dumps(by_queue | {"redrivePermission": "allowAll"}),
    ):
        with refused("InvalidParameterValue"):
            sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": wrong})


def test_names_beyond_those_of_rest_are_taken_for_dead_letters(sqs: Any, account: str, broker: Broker) -> None:
    """A queue with a name of 80 characters may be named if SQS knows it, and no other one (SQS contract 2)."""
    long = "n" * 80
    created(sqs, long)
    queue = created(sqs, "jobs", RedrivePolicy=redrive(arn(account, long)))
    assert long in attributes(sqs, queue, "RedrivePolicy")["RedrivePolicy"]
    assert sqs.list_dead_letter_source_queues(QueueUrl=long)["queueUrls"] == [queue]


def test_an_export_and_import_keep_attributes(sqs: Any, url: str, account: str, tmp_path: Path) -> None:
    """A consumer that routes by attributes finds them in the copy."""
    queue = sqs.create_queue(QueueName="mail")["QueueUrl"]
    attributes = {"retries": {"DataType": "Number", "StringValue": "3"}}
    sqs.send_message(QueueUrl=queue, MessageBody="x", MessageAttributes=attributes)
    zq = Zq(url, tmp_path)
    zq.env["ZQ_PROJECT"] = account
    path = str(tmp_path / "project.ndjson")
    assert zq.run("export", "--to", path).exit_code == 0
    sqs.purge_queue(QueueUrl=queue)
    assert zq.run("import", path).exit_code == 0
    [message] = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"] == attributes


def test_encryption_is_shown_as_requested(sqs: Any) -> None:
    """Keys are returned; an empty text or the default time removes them.

    Two kinds of encryption at the same time are refused (SQS contract 6).
    """
    queue = created(sqs, "jobs", KmsMasterKeyId="alias/mine", KmsDataKeyReusePeriodSeconds="600")
    names = ("KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
    shown = {"KmsMasterKeyId": "alias/mine", "KmsDataKeyReusePeriodSeconds": "600", "SqsManagedSseEnabled": "false"}
    assert attributes(sqs, queue, *names) == shown
    with refused(
        "InvalidAttributeName",
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    ):
        both = {"KmsMasterKeyId": "alias/mine", "SqsManagedSseEnabled": "true"}
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=both)
    usual = {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=usual)
    assert attributes(sqs, queue, *names) == {"SqsManagedSseEnabled": "false"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
    assert attributes(sqs, queue, *names) == {"SqsManagedSseEnabled": "true"}
    for name, wrong in {"SqsManagedSseEnabled": "yes", "KmsDataKeyReusePeriodSeconds": "59", "Policy": "all"}.items():
        with refused("InvalidAttributeValue", f"Invalid value for the parameter {name}."):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: wrong})


@pytest.mark.every_store
def test_lists_are_pages_in_the_order_of_names(sqs: Any, url: str, account: str) -> None:
    """A list may have a prefix, and has a token if there are more queues than the requested size (SQS contract 5)."""
    names = sorted(["Jobs", "a", "jobs", "jobs-1", "jobs-2", "jobs_3", "joc", "z"])
    for name in reversed(names):
        created(sqs, name)

    def listed(**given: Any) -> tuple[list[str], str]:
        page = sqs.list_queues(**given)
        return [found.removeprefix(f"{url}/{account}/") for found in page.get("QueueUrls", [])], page.get(
            "NextToken", ""
        )

    assert listed() == (names, "")
    assert listed(QueueNamePrefix="jobs") == (["jobs", "jobs-1", "jobs-2", "jobs_3"], "")
    assert listed(QueueNamePrefix="x") == listed(QueueNamePrefix="a b") == ([], "")
    assert listed(MaxResults=8) == (names, "")
    found, token = listed(MaxResults=3)
    while token:
        more, token = listed(MaxResults=3, NextToken=token)
        found += more
    assert found == names
    page, token = listed(QueueNamePrefix="jobs", MaxResults=3)
    assert (page, listed(QueueNamePrefix="jobs", MaxResults=3, NextToken=token)) == (
        ["jobs", "jobs-1", "jobs-2"],
        (["jobs_3"], ""),
    )
    for wrong in ({"NextToken": "?"}, {"NextToken": "€"}, {"MaxResults": 0}, {"MaxResults": 1001}):
        with refused("InvalidParameterValue"):
            listed(**wrong)


def test_sources_of_dead_letters_are_pages_too(sqs: Any, account: str) -> None:
    """The lists are pages as for queues (SQS contract 5)."""
    created(sqs, "dead")
    urls = [created(sqs, f"q{number}", RedrivePolicy=redrive(arn(account, "dead"))) for number in range(3)]
    page = sqs.list_dead_letter_source_queues(QueueUrl="dead", MaxResults=2)
    assert page["queueUrls"] == urls[:2]
    rest = sqs.list_dead_letter_source_queues(QueueUrl="dead", MaxResults=2, NextToken=page["NextToken"])
    assert (rest["queueUrls"], "NextToken" in rest) == (urls[2:], False)


@pytest.mark.every_store
def test_a_queue_is_purged_now_and_then(sqs: Any, broker: Broker, account: str, clock: ManualClock) -> None:
    """A purge removes messages in any state; the next one of the queue is refused for a minute (SQS contract 5)."""
    queue, ref = created(sqs, "jobs"), QueueRef(account, "jobs")
    counts = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed")
    drafts = [Draft(f"{number:032x}", b'"x"', 600, delay, "c") for number, delay in enumerate((0, 0, 9))]
    broker.storage.messages.post(ref, drafts, clock.now())
    assert attributes(sqs, queue, *counts) == dict(zip(counts, ("2", "1"), strict=True))
    sqs.purge_queue(QueueUrl=queue)
    assert attributes(sqs, queue, *counts) == dict.fromkeys(counts, "0")
    with refused("PurgeQueueInProgress", "Only one PurgeQueue operation on jobs is allowed every 60 seconds."):
        sqs.purge_queue(QueueUrl=queue)
    clock.advance(61)
    sqs.purge_queue(QueueUrl=queue)
    sqs.delete_queue(QueueUrl=queue)
    created(sqs, "jobs")
    sqs.purge_queue(QueueUrl=queue)


@pytest.mark.every_store
def test_a_deleted_name_is_reserved(served: Serve, account: str, clock: ManualClock) -> None:
    """Both protocols refuse the name for ``name_rest`` seconds; by default, they do not (SQS contract 4).

    Other names, other accounts and existing queues are not affected.
    """
    app = served(name_rest=30)
    caller, sentence = Caller(app, account), errors.queue_deleted_recently(30).message
    for name in ("jobs", "others"):
        caller.json("CreateQueue", QueueName=name)
    caller.json("DeleteQueue", QueueUrl="jobs")
    clock.advance(29)
    refusal = caller.json("CreateQueue", QueueName="jobs", status=400)
    assert said(refusal) == {"__type": "com.amazonaws.sqs#QueueDeletedRecently", "message": sentence}
    assert refusal.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.QueueDeletedRecently;Sender"
    refusal = caller.form({"Action": "CreateQueue", "QueueName": "jobs"}, status=400)
    assert texts(refusal, "Error/Code") == ["AWS.SimpleQueueService.QueueDeletedRecently"]
    assert texts(refusal, "Error/Message") == [sentence]
    caller.json("CreateQueue", QueueName="others")
    Caller(app, f"{(int(account) + 1) % 10**12:012d}").json("CreateQueue", QueueName="jobs")
    clock.advance(1)
    caller.json("CreateQueue", QueueName="jobs")
    caller.json("DeleteQueue", QueueUrl="jobs")
    at_once = Caller(served(), account)
    at_once.json("CreateQueue", QueueName="jobs")
    caller.json("CreateQueue", QueueName="jobs")
    at_once.json("DeleteQueue", QueueUrl="jobs")


def test_tags_have_their_bounds(sqs: Any) -> None:
    """A queue has up to 50 tags with keys of 1 to 128 and values of up to 256 characters (SQS contract 5)."""
    queue = created(sqs, "jobs")
    sqs.tag_queue(QueueUrl=queue, Tags={"k" * 128: "v" * 256, **{f"t{number}": "" for number in range(49)}})
    keys = "Tag keys must be between 1 and 128 characters in length."
    for tags, message in {
        ("one more", ""): "Too many tags added for queue jobs.",
        ("", "x"): None,
        ("k" * 129, ""): None,
        ("t0", "v" * 257): "Tag values must be between 0 and 256 characters in length.",
    }.items():
        with refused("InvalidParameterValue", message):
            sqs.tag_queue(QueueUrl=queue, Tags=dict([tags]))
    sqs.untag_queue(QueueUrl=queue, TagKeys=["t1", "t2"])
    with refused("InvalidParameterValue", keys):
        sqs.tag_queue(QueueUrl=queue, Tags={"": ""})
    with refused("InvalidParameterValue", keys):
        sqs.untag_queue(QueueUrl=queue, TagKeys=[])
    with refused("MissingParameter", "The request must contain the parameter Tags."):
        sqs.tag_queue(QueueUrl=queue, Tags={})
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName="other", tags={"k" * 129: ""})
    assert len(sqs.list_queue_tags(QueueUrl=queue)["Tags"]) == 48


def test_the_table_has_all_operations_of_the_botocore_model(sqs: Any) -> None:
    """The table has every operation of the service, and only parameters of the model (SQS contract 5)."""
    service = sqs.meta.service_model
    known = set(service.operation_names)
    assert OPERATIONS.keys() == known
    for name, operation in OPERATIONS.items():
        members = set(service.operation_model(name).input_shape.members)
        assert {field.encode_name for field in fields(operation.params)} <= members, name
