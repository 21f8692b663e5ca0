# SPDX-License-Identifier: Apache-2.0
"""``zq export``, ``zq import``, ``zq bench``."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from tests.cli.conftest import Zq
from zq import model
from zq.cli.bench import percentile
from zq.cli.export_import import (
    RESTORED,
    SET_BY_SERVER,
    Importer,
    MessageLine,
    ResourceLine,
    group_batches,
    lost_members,
    to_message_line,
)
from zq.client import Message
from zq.errors import Invalid, QueuePaused, QuotaExceeded, ZqError
from zq.http.openapi import document
from zq.model.limits import Limits

HEADER = '{"is":"export","version":1}\n'


def fill_placeholder(zq: Zq) -> None:
    """Create a project with queues, topics, messages and metadata of every kind."""
    zq("queue", "create", "jobs", "_dead_letter_queue=jobs.dead", "_default_message_delay=1", "owner=shop")
    zq("post", "jobs", "-", given="".join(f'{{"n": {number}}}\n' for number in range(50)))
    zq("post", "jobs", "later", "--delay", "600", "--ttl", "900")
    zq("queue", "create", "empty")
    zq("topic", "create", "news", "size=3")
    zq("topic", "publish", "news", "-", given='"a"\n"b"\n')


def content(zq: Zq) -> list[Any]:
    """Return the project's export without header, ids and times."""
    exported = [msgspec.json.decode(line) for line in zq.run("export").stdout.splitlines()[1:]]
    return [{key: value for key, value in line.items() if key not in ("id", "ttl", "delay")} for line in exported]


def test_a_project_is_carried_into_another_one_and_a_repeat_adds_nothing(zq: Zq, tmp_path: Path) -> None:
    """The copy has metadata, order and delays, but not the default settings of the server."""
    fill_placeholder(zq)
    file = tmp_path / "project.ndjson"
    assert zq("export", "--to", str(file)) == [{"file": str(file), "messages": 53}]
    before = content(zq)
    assert {"is": "named", "of": "queue", "name": "empty", "metadata": {}} in before
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        assert other("import", str(file)) == [{"queues and topics": 3, "messages": 53}]
        assert content(other) == before
    (late,) = [message for message in other("list", "jobs", "--delayed", "--limit", "0") if message["body"] == "later"]
    assert 800 < late["ttl"] <= 900


def test_file_that_is_not_an_export_is_refused_with_its_line(zq: Zq, tmp_path: Path) -> None:
    """The import stops at that line."""
    file = tmp_path / "project.ndjson"
    named = '{"is":"named","of":"queue","name":"jobs","metadata":{}}\n'
    message = '{"is":"message","of":"foo","name":"jobs","id":"1","body":1,"ttl":60}\n'
    for number, text in (
        (1, named),
        (2, HEADER + message),
        (2, HEADER + HEADER),
        (3, HEADER + named + '{"n": 1}\n'),
    ):
        file.write_text(text)
        assert f"Line {number} is not a valid line of an export" in zq.refused(4, "import", str(file))
    assert zq("topic", "list") == []


def test_an_export_of_another_format_is_refused_before_any_change(zq: Zq, tmp_path: Path) -> None:
    zq("queue", "create", "jobs")
    text = zq.run("export").stdout
    assert text.startswith(HEADER)
    other, file = Zq(zq.env["ZQ_URL"], tmp_path), tmp_path / "project.ndjson"
    file.write_text(text.replace(HEADER, HEADER.replace("1", "2")))
    assert "has format 2, but this version of zq imports only format 1." in other.refused(4, "import", str(file))
    assert other("queue", "list") == []


def test_a_failed_export_leaves_the_earlier_one(zq: Zq, tmp_path: Path) -> None:
    """The failed export leaves no other file."""
    zq("queue", "create", "jobs")
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    before = file.read_text()
    assert "jobs" in before
    zq.refused(7, "--url", "http://127.0.0.1:1", "--retry", "0", "export", "--to", str(file))
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file]
    assert zq("export", "--to", "/dev/null")[0]["messages"] == 0
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_are_dots_are_listed_and_exported(zq: Zq, name: str) -> None:
    """Pagination links of such names work."""
    zq("post", name, "-", given="1\n2\n")
    assert [message["body"] for message in zq("list", name, "--limit", "0")] == [1, 2]
    assert len(content(zq)) == 3


def test_a_message_that_fills_a_post_is_brought_in(zq: Zq, tmp_path: Path) -> None:
    """The message is imported without its ttl, which would exceed the limit; a message that is too large is skipped."""
    largest = 262_144 - len('{"messages":[{"body":""}]}')
    zq("post", "jobs", "-", "--text", given="x" * largest)
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    with file.open("a") as more:
        more.write('{"is":"message","of":"queue","name":"jobs","id":"a1","body":"%s","ttl":60}\n' % ("y" * 262_144))
        more.write('{"is":"message","of":"queue","name":"jobs","id":"a2","body":"z","ttl":60}\n')
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        result = other.run("import", str(file))
        assert (result.exit_code, '"messages":2}' in result.stdout) == (1, True)
        assert "gets the default ttl and delay" in result.stderr
        assert "Message a1 of queue jobs is skipped: The body must be at most 262144 bytes" in result.stderr
        assert "zq: 1 messages were rejected." in result.stderr
        assert [message["body"] for message in other("list", "jobs")] == ["x" * largest, "z"]


def test_settings_that_forbid_posts_are_applied_after_the_messages(zq: Zq, tmp_path: Path) -> None:
    """A queue has all its settings after the import, and they reject no message; a repeat adds nothing."""
    rules = {
        "posts": ["_paused=posts"],
        "claims": ["_paused=claims"],
        "all": ["_paused=all"],
        "small": ["_max_messages_post_size=30"],
        "grouped": ["_grouped=ordered"],
        "delayed": ["_default_message_delay=60"],
    }
    for name, members in rules.items():
        zq("queue", "create", name, *(members if name == "grouped" else []))
        for body in ("first message", "second message"):
            zq("post", name, body, *(["--group", "a"] if name == "grouped" else []))
        zq("queue", "set", name, *(members if name != "grouped" else []))
    zq("topic", "publish", "news", "Oslo")
    zq("topic", "set", "news", "_max_messages_post_size=1")
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    before = content(zq)
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        assert other("import", str(file)) == [{"queues and topics": 7, "messages": 13}]
        assert content(other) == before
    assert "paused" in other.refused(6, "post", "posts", "1")
    assert "must be at most 30 bytes" in other.refused(4, "post", "small", "first message")


def test_a_batch_that_a_paused_queue_refuses_takes_no_other_with_it(zq: Zq, tmp_path: Path) -> None:
    """The file has no pause, so the import keeps the queue's."""
    zq("post", "jobs", "-", given="1\n2\n")
    zq("topic", "publish", "news", "Oslo")
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    other("queue", "create", "jobs", "_paused=posts")
    result = other.run("import", str(file))
    assert (result.exit_code, '"messages":1}' in result.stdout) == (1, True)
    assert "2 messages of queue jobs are skipped: Posts to the queue jobs are paused" in result.stderr
    assert other("topic", "stats", "news")[0]["total"] == 1


def test_a_message_that_is_refused_takes_no_other_with_it(zq: Zq, tmp_path: Path) -> None:
    """The batch of a message that is rejected for any reason is posted again in parts."""
    file = tmp_path / "project.ndjson"
    line = '{"is":"message","of":"queue","name":"jobs","id":"%d","body":%d,"ttl":%d}\n'
    file.write_text(HEADER + "".join(line % (number, number, 10**9 if number == 3 else 60) for number in range(7)))
    result = zq.run("import", str(file))
    assert (result.exit_code, '"messages":7}' in result.stdout) == (1, True)
    assert "Message 3 of queue jobs gets the default ttl and delay: " in result.stderr
    assert [message["body"] for message in zq("list", "jobs")] == [0, 1, 2, 3, 4, 5, 6]


def test_an_import_comes_through_a_pipe(zq: Zq, tmp_path: Path) -> None:
    """The import reads standard input and named pipes."""
    fill_placeholder(zq)
    text = zq.run("export").stdout
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    assert other("import", "-", given=text) == [{"queues and topics": 3, "messages": 53}]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        pool.submit(pipe.write_text, text)
        assert other("import", str(pipe)) == [{"queues and topics": 3, "messages": 53}]
    assert content(other) == content(zq)


def test_members_that_an_import_cannot_restore_are_named(zq: Zq, tmp_path: Path) -> None:
    """Dead letters lose their origin, so that a redrive of the copy needs a target; the export is complete."""
    zq("queue", "create", "orders", "_dead_letter_queue=orders.dead")
    zq("post", "orders", "-", given="1\n2\n3\n")
    first, second = zq("claim", "orders", "--limit", "2")
    zq("settle", "orders", first["claim"], "--bury", first["id"], "--bury", second["id"])
    file = tmp_path / "project.ndjson"
    result = zq.run("export", "--to", str(file))
    assert (result.exit_code, '"messages":3}' in result.stdout) == (1, True)
    assert "2 messages of queue orders.dead will lose these members: origin, origin_claim_count" in result.stderr
    assert "zq: 2 messages have members that an import cannot restore." in result.stderr
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    assert other("import", str(file))[0]["messages"] == 3
    assert other("dlq", "redrive", "orders.dead", "--to", "orders")[0]["moved"] == 2


SET_MEMBERS: dict[str, Any] = {
    "id": "a",
    "ttl": 300,
    "age": 60,
    "raw": Raw(b"[1]"),
    "href": "/v2/queues/jobs/messages/a",
    "checksum": "MD5:a",
    "claim_count": 2,
    "sequence": 7,
    "created": datetime(2026, 1, 1, tzinfo=UTC),
    "expires": datetime(2026, 1, 1, 0, 5, tzinfo=UTC),
    "available_at": datetime(2026, 1, 1, 0, 3, tzinfo=UTC),
    "origin": "orders",
    "origin_claim_count": 3,
    "reason": "torn",
    "body_start": "[1]",
    "body_bytes": 3,
    "attributes": {"retries": "3"},
    "group": "g",
    "deduplication_id": "once",
    "aws_trace_header": "Root=1",
}

LOST = {"claim_count", "origin", "origin_claim_count", "reason", "deduplication_id", "aws_trace_header"}
"""Members that an import cannot restore."""


def test_each_member_of_a_message_is_restored_renewed_or_named() -> None:
    """A new member of the message type fails this test until an import restores it or names it as lost."""
    assert {*Message.__struct_fields__} == {*SET_MEMBERS}
    whole = Message(**SET_MEMBERS)
    assert {*Message.__struct_fields__} == RESTORED | SET_BY_SERVER | {*lost_members(whole)}
    assert {*lost_members(whole)} == LOST
    line = to_message_line("queue", "jobs", whole)
    assert (bytes(line.body), line.ttl, line.delay, line.group) == (b"[1]", 240, 120, "g")
    assert line.attributes == {"retries": "3"}


NOT_SHOWN = {"client", "first_claimed"}
"""Members of stored messages that no response contains, so that an export cannot have them."""
ANSWERED_AS = {"available": "available_at", "claim": "href"}


def test_an_export_sees_each_member_that_a_stored_message_has() -> None:
    """With ``detailed``, the server shows every stored member and the client decodes it."""
    stored = {ANSWERED_AS.get(member, member) for member in model.Message.__struct_fields__} - NOT_SHOWN
    shown = {*document(Limits())["components"]["schemas"]["Message"]["properties"]}
    assert stored <= shown
    assert shown == {*Message.__struct_encode_fields__}


def test_claim_counts_are_named_as_lost(zq: Zq) -> None:
    """Claimed and released messages have a claim count."""
    zq("post", "jobs", "-", given="1\n2\n3\n")
    zq("release", "jobs", zq("claim", "jobs", "--limit", "1")[0]["claim"])
    zq("claim", "jobs", "--limit", "2")
    result = zq.run("export")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 5)
    assert "2 messages of queue jobs will lose these members: claim_count." in result.stderr


def test_delayed_messages_of_a_queue_that_ignores_delays_are_named(zq: Zq, tmp_path: Path) -> None:
    """The messages are ready immediately in the copy, and each import has a non-zero exit code."""
    zq("queue", "create", "jobs", "_default_message_delay=1")
    zq("post", "jobs", "-", "--delay", "600", "--ttl", "900", given="1\n2\n")
    zq("queue", "set", "jobs", "_default_message_delay=0")
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        result = other.run("import", str(file))
        assert (result.exit_code, '"messages":2}' in result.stdout) == (1, True)
        assert "2 delayed messages of queue jobs are ready at once: the queue ignores delays" in result.stderr
        assert "zq: 2 messages were imported without their ttl or delay; see the notes above." in result.stderr
    assert len(other("claim", "jobs")) == 2


def test_ready_messages_of_a_delayed_queue_are_ready_in_the_copy(zq: Zq, tmp_path: Path) -> None:
    """The queue's default delay does not apply to the copies, and delayed messages stay delayed."""
    zq("post", "jobs", "-", given="1\n2\n")
    zq("queue", "set", "jobs", "_default_message_delay=600")
    zq("post", "jobs", "3")
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        assert other("import", str(file)) == [{"queues and topics": 1, "messages": 3}]
        assert [message["body"] for message in other("list", "jobs")] == [1, 2]


def test_an_import_that_a_broken_line_ends_applies_the_settings_that_forbid_posts(zq: Zq, tmp_path: Path) -> None:
    """Consumers and producers must not find a paused queue open afterwards."""
    zq("queue", "create", "posts", "_paused=posts")
    zq("queue", "create", "small", "_max_messages_post_size=30")
    file = tmp_path / "project.ndjson"
    zq("export", "--to", str(file))
    with file.open("a") as more:
        more.write('{"is":"message","of":"queue","name":"small","id":"a1","body":1,"ttl":60}\nbroken\n')
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        assert "is not a valid line of an export" in other.refused(4, "import", str(file))
        assert other("queue", "show", "posts")[0]["_paused"] == "posts"
        assert other("queue", "show", "small")[0]["_max_messages_post_size"] == 30


class Refusing:
    """A client whose queues reject posts with these errors in turn and then accept them."""

    def __init__(self, *errors: ZqError) -> None:
        self._errors = [*errors]

    def queue(self, name: str) -> "Refusing":
        return self

    def post_batch(self, bodies: object, key: str) -> None:
        if self._errors:
            raise self._errors.pop(0)


@pytest.mark.parametrize("refusal", [QuotaExceeded("The project is full."), QueuePaused.of("jobs"), Invalid("No.")])
def test_a_second_refusal_of_a_message_leaves_it_out(refusal: ZqError, capsys: pytest.CaptureFixture[str]) -> None:
    """The second rejection is that of the post without the ttl; the import continues."""
    importer = Importer(Refusing(Invalid("The ttl is too long."), refusal))
    first, second = [MessageLine("queue", "jobs", id, Raw(b"1"), 60) for id in ("a", "b")]
    assert [importer.send([first]), importer.send([second])] == [0, 1]
    assert "a of queue jobs is skipped" in capsys.readouterr().err


def test_batches_of_an_import_depend_on_the_file_alone() -> None:
    """Batches are split by the queue's size limit, by count, and by target."""
    lines = [ResourceLine("queue", "small", {"_max_messages_post_size": 300}), ResourceLine("queue", "big", {})]
    small = [MessageLine("queue", "small", str(number), Raw(b"1" * 36), 60) for number in range(5)]
    big = [MessageLine("queue", "big", str(number), Raw(b"1"), 60) for number in range(1001)]
    cut = [len(part) for part in group_batches([*lines, *small, *big]) if not isinstance(part, ResourceLine)]
    assert cut == [3, 2, 1000, 1]


def test_a_bench_measures_each_verb_and_leaves_nothing(zq: Zq) -> None:
    """All messages are posted, claimed and deleted, and the queue is deleted."""
    rows = zq("bench", "--messages", "58", "--batch", "10", "--concurrency", "2", "--size", "10")
    assert [(row["verb"], row["requests"], row["messages"]) for row in rows] == [
        ("post", 6, 58),
        ("claim", 6, 58),
        ("delete", 6, 58),
    ]
    assert all(0 < row["p50"] <= row["p99"] <= row["p100"] for row in rows)
    assert zq("queue", "list") == []


def test_a_percentile_is_a_span_that_was_measured() -> None:
    """The percentile is computed by the nearest-rank method."""
    spans = [float(number) for number in range(1, 201)]
    assert [percentile(spans, part) for part in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert percentile([7.0], 50) == 7
    assert percentile([], 50) == 0


def test_attributes_survive_export_and_import(zq: Zq, tmp_path: Path) -> None:
    """Each attribute keeps its type, and a listing shows it."""
    given = ["a=x", "b:Number=1.5", "c:Binary=AAEC", "d:String.uuid=7=f", "e:Number=0.10"]
    zq("post", "jobs", '"body"', *(part for each in given for part in ("--attribute", each)))
    expected = {
        "a": "x",
        "b": 1.5,
        "c": {"type": "Binary", "value": "AAEC"},
        "d": {"type": "String.uuid", "value": "7=f"},
        "e": {"type": "Number", "value": "0.10"},
    }
    assert [one["attributes"] for one in zq("list", "jobs")] == [expected]
    path = tmp_path / "export"
    zq("export", "--to", str(path))
    zq("pop", "jobs")
    zq("import", str(path))
    assert [one["attributes"] for one in zq("list", "jobs")] == [expected]


def test_attributes_of_topics_survive_export_and_import(zq: Zq, tmp_path: Path) -> None:
    zq("topic", "publish", "news", "1", "--attribute", "a=x")
    path = tmp_path / "export"
    zq("export", "--to", str(path))
    zq("topic", "purge", "news", "--yes")
    zq("import", str(path))
    assert [event["attributes"] for event in zq("tail", "news", "--from", "0", "--limit", "1")] == [{"a": "x"}]


@pytest.mark.parametrize("given", ["a", "=x", ":Number=5"])
def test_an_attribute_without_a_name_or_a_value_is_refused(zq: Zq, given: str) -> None:
    result = zq.run("post", "jobs", "1", "--attribute", given)
    assert result.exit_code == 2
    assert "NAME=VALUE" in result.stderr
