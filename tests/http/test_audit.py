# SPDX-License-Identifier: Apache-2.0
"""The audit log: one line for each refusal and each listed change, without secrets (tenancy 9)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.scoped import Scoped
from tests.servers import wait_for
from zq import audit
from zq.audit import MAX_PER_SECOND, Audit
from zq.auth import open_tokens
from zq.auth.tokens import Grant, Tokens
from zq.clock import ManualClock
from zq.errors import StartRefused
from zq.model.audit import Entry
from zq.model.identity import AuthOptions, Identity
from zq.storage import connect

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
        "route": "/v2/queues/{queue}/messages",
        "rule": "messages:create",
        "object": "queue jobs",
        "outcome": "refused",
        "why": "This credential does not allow messages:create on queue jobs.",
    }


def test_a_credential_that_is_no_unicode_is_escaped(scoped: Scoped, log: Path) -> None:
    """The id of a token that another issuer signed may not be valid Unicode. Such a line used to be lost."""
    caller = scoped.api("observe:other")
    caller._headers["X-Auth-Token"] = scoped.strategy.admit(Identity(caller.project, credential="jwt:\ud800"))
    caller.delete(QUEUE, 204)
    assert lines(log)[0]["credential"] == "jwt:\\ud800"


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
    """Failed changes have a line too, because a caller attempted them."""
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
    """The number is logged once a second, even if no further request is refused."""
    delayed: list[tuple[float, Callable[[], None]]] = []
    now = [7.0]
    writer = Audit(lambda: now[0], lambda *what: delayed.append(what))
    for second, more in ((7.0, 20), (8.0, 1)):
        now[0] = second
        for _ in range(MAX_PER_SECOND + more):
            writer.log_refusal(Entry(outcome="refused", why="no"))
        writer.log_change(Entry(outcome="done"))
        assert lines(log)[-1]["outcome"] == "done", "what was done is always told"
        ((delay, tell),) = delayed
        assert delay == 1
        delayed.clear()
        tell()
        assert lines(log)[-1]["why"] == f"{more} more refusals within a second are not listed"
    writer.log_unlogged_count()
    assert len(lines(log)) == 2 * (MAX_PER_SECOND + 2)


def test_what_was_counted_is_told_by_a_thread_of_its_own(log: Path) -> None:
    writer = Audit(lambda: 7.0)
    for _ in range(MAX_PER_SECOND + 3):
        writer.log_refusal(Entry(outcome="refused", why="no"))
    wait_for(lambda: len(lines(log)) > MAX_PER_SECOND, 60, "the line with the number")
    assert lines(log)[MAX_PER_SECOND]["why"] == "3 more refusals within a second are not listed"


@pytest.mark.parametrize(("behind_proxy", "peer"), [(True, "192.0.2.7"), (False, "")])
def test_the_peer_is_the_client_and_not_the_proxy(scoped: Scoped, log: Path, behind_proxy: bool, peer: str) -> None:
    """This holds for refusals and for changes. Without ``behind_proxy`` the server ignores the header."""
    app, headers = scoped.build(behind_proxy=behind_proxy), {"X-Forwarded-For": "198.51.100.1, 192.0.2.7"}
    scoped.api("observe:other", app=app).put(QUEUE, 403, {}, headers)
    scoped.api(app=app).delete(QUEUE, 204, headers)
    assert [(line["outcome"], line["peer"]) for line in lines(log)] == [("refused", peer), ("done", peer)]


def test_a_token_that_a_deployment_begins_with_has_a_line(clock: ManualClock, log: Path, tmp_path: Path) -> None:
    """The start that adopts the token writes one line, which does not contain the secret."""
    storage = connect("memory:")
    text = Tokens(connect("memory:").documents, clock).create(Grant(project="elsewhere")).text
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    for _ in range(2):
        open_tokens(AuthOptions(bootstrap_token_file=str(file)), storage.documents, clock, Audit())
    (line,) = lines(log)
    assert {key: value for key, value in line.items() if value and key != "time"} == {
        "project": "admin",
        "method": "START",
        "object": f"token {text[3:13]}",
        "outcome": "done",
        "why": "[auth] bootstrap_token_file",
    }
    storage.close()


def test_the_file_is_for_its_owner_and_may_be_rotated_away(log: Path) -> None:
    assert log.stat().st_mode & 0o777 == 0o600
    writer = Audit()
    writer.log_change(Entry(outcome="done"))
    log.rename(log.with_suffix(".1"))
    writer.log_change(Entry(outcome="done"))
    assert len(lines(log)) == 1


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartRefused, match=r"\[log\] audit .* cannot be written: No such file or directory\."):
        audit.configure(str(tmp_path / "none" / "audit.log"))


def test_off_is_off(scoped: Scoped) -> None:
    audit.configure("off")
    assert not Audit().is_enabled
    scoped.api("observe:other").put(QUEUE, 403)
