# SPDX-License-Identifier: Apache-2.0
"""The audit log: one line for each refusal and each change of its list, and never what must not be told (tenancy 9)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.scoped import Scoped
from zq import audit
from zq.audit import MOST, Audit, Entry
from zq.errors import StartRefused

pytestmark = pytest.mark.one_store

QUEUE = "/v2/queues/jobs"
SECRET = "BODYSECRET"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "audit.log"
    audit.configure(str(path))
    yield path
    audit.configure("off")


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_refusal_has_a_line_that_says_who_was_refused_what(scoped: Scoped, log: Path) -> None:
    caller = scoped.api("observe:other")
    refused = caller.post(f"{QUEUE}/messages", 403, {"messages": [{"body": SECRET}]})
    (line,) = lines(log)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "request_id": refused.headers["X-OpenStack-Request-ID"],
        "project": caller.project,
        "credential": "test",
        "peer": line["peer"],
        "method": "POST",
        "rule": "messages:create",
        "object": "queue jobs",
        "outcome": "refused",
        "why": "This credential does not allow messages:create on queue jobs.",
    }


def test_a_target_that_is_refused_is_named(scoped: Scoped, log: Path) -> None:
    scoped.api("manage:queue/dead").post("/v2/queues/dead/redrive", 403, {"to": "secrets"})
    assert lines(log)[0]["why"] == "This credential does not allow messages:create on queue secrets."


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("DELETE", QUEUE, None, 204),
        ("POST", f"{QUEUE}/purge", {}, 400),
        ("POST", f"{QUEUE}/purge", None, 204),
        ("DELETE", "/v2/topics/news", None, 204),
        ("POST", "/v2/topics/news/purge", None, 204),
        ("POST", f"{QUEUE}/redrive", None, 200),
        ("POST", f"{QUEUE}/history/replay", {"ids": ["a" * 32]}, 404),
    ],
)
def test_changes_of_the_list_have_a_line(
    scoped: Scoped, log: Path, method: str, path: str, body: Any, status: int
) -> None:
    """Also those that failed: somebody has tried."""
    scoped.api().call(method, path, status, body)
    (line,) = lines(log)
    assert line["outcome"] == ("done" if status < 400 else f"failed with {status}")
    assert line["object"] in ("queue jobs", "topic news")


def test_daily_work_leaves_no_line(scoped: Scoped, log: Path) -> None:
    caller = scoped.api()
    caller.put(QUEUE, 201)
    caller.send("jobs", SECRET)
    claim, _ = caller.claim("jobs")
    caller.post(f"{claim}/settle", 200, {"delete": "*"})
    caller.get("/v2/queues/jobs/messages/none", 404)
    assert lines(log) == []


def test_neither_bodies_nor_credentials_are_told(scoped: Scoped, log: Path) -> None:
    caller = scoped.api("observe:other")
    caller.put(QUEUE, 403, {"secret": SECRET})
    caller.post(f"{QUEUE}/messages?stage={SECRET[:4]}", 403, {"messages": [{"body": SECRET}]})
    text = log.read_text()
    assert SECRET not in text
    assert "X-Auth-Token" not in text


def test_refusals_beyond_a_hundred_a_second_are_counted(log: Path) -> None:
    now = [7.0]
    writer = Audit(lambda: now[0])
    for _ in range(MOST + 20):
        writer.refused(Entry(outcome="refused", why="no"))
    writer.did(Entry(outcome="done"))
    assert len(lines(log)) == MOST + 1, "what was done is always told"
    now[0] = 8.0
    writer.refused(Entry(outcome="refused", why="no"))
    assert lines(log)[MOST + 1]["why"] == "20 more refusals of an earlier second are not listed"
    assert len(lines(log)) == MOST + 3


def test_the_file_is_for_its_owner_and_may_be_rotated_away(log: Path) -> None:
    assert log.stat().st_mode & 0o777 == 0o600
    writer = Audit()
    writer.did(Entry(outcome="done"))
    log.rename(log.with_suffix(".1"))
    writer.did(Entry(outcome="done"))
    assert len(lines(log)) == 1


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"\[log\] audit .* cannot be written: No such file or directory\."):
        audit.configure(str(tmp_path / "none" / "audit.log"))


def test_off_is_off(scoped: Scoped) -> None:
    audit.configure("off")
    assert not Audit().on
    scoped.api("observe:other").put(QUEUE, 403)
