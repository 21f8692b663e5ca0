# SPDX-License-Identifier: Apache-2.0
"""Queues whose names only SQS can create, in REST and the tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Zq
from tests.sqs.conftest import REGION
from tests.tables import every_row
from zq import errors
from zq.client import BuryTerms, Client, MoveTerms

LONG = ["orders-" + "x" * 58, "orders-" + "y" * 73]
"""Names of 65 and 80 characters."""


@pytest.fixture
def rest(sqs: Any, url: str, account: str) -> Any:
    """Yield a REST client of a project that has both queues between two others."""
    for name in ("a", *LONG, "z"):
        sqs.create_queue(QueueName=name)
    with Client(url, account) as client:
        yield client


@every_row("name", LONG)
def test_rest_reaches_a_queue_that_only_sqs_can_name(rest: Client, name: str) -> None:
    """Every verb works, and a post does not create a deleted queue again."""
    queue = rest.queue(name)
    posted = queue.post_batch(["a", "b", "c", "d"])
    assert [message.body for message in queue.list()] == ["a", "b", "c", "d"]
    assert queue.get(posted[0]).body == "a"
    claim = queue.claim(1)
    queue.settle(claim.id, delete=[message.id for message in claim.messages])
    assert [message.body for message in queue.pop(1)] == ["b"]
    queue.delete_messages([posted[2]])
    assert queue.stats().total == 1
    assert queue.update({"owner": "shop"})["owner"] == "shop"
    assert queue.create() is False
    queue.purge()
    queue.delete()
    queue.delete()
    for refused in (lambda: queue.post(1), queue.create, queue.stats):
        with pytest.raises(errors.InvalidName, match="1 to 64 characters"):
            refused()


@every_row("name", LONG)
def test_rest_accepts_a_queue_that_only_sqs_can_name_wherever_a_body_names_one(rest: Client, name: str) -> None:
    """Moves, dead letters and commits accept the name while the queue exists."""
    target, queue = rest.queue(name), rest.queue("a")
    queue.update({"_dead_letter_queue": name})
    queue.post_batch(["moved", "buried"])
    claim = queue.claim(2)
    queue.settle(claim.id, move=[MoveTerms(claim.messages[0].id, name)], bury=[BuryTerms(claim.messages[1].id, "why")])
    assert [message.body for message in target.pop(2)] == ["moved", "buried"]
    queue.post("redriven")
    queue.redrive(to=name)
    held = target.claim(1)
    committed = rest.commit(f"job-{len(name)}", 1, settle=[(name, held.id)])
    assert (committed.deleted, target.stats().total) == (1, 0)


def test_rest_refuses_a_long_name_of_no_queue_wherever_a_body_names_one(rest: Client) -> None:
    """A body creates no queue that REST itself cannot create."""
    name, queue = "x" * 65, rest.queue("plain")
    message = queue.post(1)
    claim = queue.claim(1)
    refused: dict[str, Callable[[], object]] = {
        "_dead_letter_queue must be a queue name": lambda: queue.update({"_dead_letter_queue": name}),
        "to must be a queue name": lambda: queue.redrive(to=name),
        "queue must be a queue name": lambda: queue.settle(claim.id, move=[MoveTerms(message, name)]),
    }
    for sentence, call in refused.items():
        with pytest.raises((errors.Invalid, errors.InvalidBody), match=f"{sentence}.* 1 to 64 characters"):
            call()


@every_row("name", ["x" * 65, "x" * 81, "a b" + "x" * 65])
def test_rest_refuses_a_long_name_of_no_queue(rest: Client, name: str) -> None:
    """REST creates names of up to 64 characters."""
    with pytest.raises(errors.InvalidName, match="1 to 64 characters"):
        rest.queue(name).stats()


def test_tools_that_walk_a_project_show_long_names(
    rest: Client, sqs: Any, url: str, account: str, tmp_path: Path
) -> None:
    """Lists, statistics, dead letters and exports include all queues."""
    names = sorted(["a", *LONG, "z"])
    for name in names:
        rest.queue(name).post(name)
    policy = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{account}:{LONG[1]}", "maxReceiveCount": 3}
    sqs.set_queue_attributes(QueueUrl="a", Attributes={"RedrivePolicy": json.dumps(policy)})
    zq = Zq(url, tmp_path)
    zq.env["ZQ_PROJECT"] = account
    assert [(row["name"], row["total"]) for row in zq("queue", "list")] == [(name, 1) for name in names]
    assert zq("queue", "list")[0]["dead_letters"] == 1
    assert [row["name"] for row in zq("queue", "stats")] == names
    assert sorted(row["name"] for row in zq("top", "--once", "--interval", "0.1")) == names
    assert [row["name"] for row in zq("dlq", "list")] == [LONG[1]]
    exported = zq.run("export")
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert sorted(line["name"] for line in lines if line["is"] == "message") == names
    imported = Zq(url, tmp_path).run("import", "-", given=exported.stdout)
    assert (imported.exit_code, '"messages":2}' in imported.stdout) == (1, True)
    assert all(f"queue {name} could not be restored: A queue name must be" in imported.stderr for name in LONG)
