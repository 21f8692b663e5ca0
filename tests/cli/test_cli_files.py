# SPDX-License-Identifier: Apache-2.0
"""``zq post --file``: after any interruption each line is stored exactly once."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.conftest import Zq
from tests.servers import wait_for
from zq.cli import progress
from zq.cli.content import InvalidInput
from zq.cli.uploads import Batch, ResumeFile, Sender, Upload, UploadTerms, resume, resume_path, split_batches
from zq.errors import Conflict, InvalidBody, Unavailable

LINES = 20_000


def written(folder: Path, count: int, pad: int = 0) -> Path:
    file = folder / "events.ndjson"
    file.write_text("".join(json.dumps({"n": number, "pad": "x" * pad}) + "\n" for number in range(count)))
    return file


def stored(zq: Zq) -> list[int]:
    found = zq("consume", "events", "--until-empty", "--wait", "0")
    return [message["body"]["n"] for message in found]


def test_a_file_is_posted_in_order_and_leaves_no_resume_file(zq: Zq, tmp_path: Path) -> None:
    """A second run is a new post of all lines."""
    file = written(tmp_path, 2500)
    assert zq("post", "events", "--file", str(file))[0]["stored"] == 2500
    assert not resume_path(file).exists()
    assert stored(zq) == list(range(2500))
    assert zq("post", "events", "--file", str(file), "--concurrency", "3")[0]["stored"] == 2500
    assert sorted(stored(zq)) == list(range(2500))


def test_a_post_that_was_killed_goes_on_and_stores_each_line_once(zq: Zq, tmp_path: Path) -> None:
    """The process is killed while batches are in flight; idempotency keys cover the gap of the resume file."""
    file = written(tmp_path, LINES, pad=100)
    zq("queue", "create", "events")
    with zq.start("post", "events", "--file", str(file), "--concurrency", "4", forked=False) as process:
        wait_for(lambda: zq("queue", "stats", "events")[0]["total"] > 1000, 60, "some are stored")
        process.send_signal(signal.SIGKILL)
    note = msgspec.json.decode(resume_path(file).read_bytes(), type=Upload)
    assert note.line < LINES
    assert process.returncode == -signal.SIGKILL
    result = zq.run("post", "events", "--file", str(file))
    assert result.exit_code == 0, result.output
    assert zq("queue", "stats", "events")[0]["total"] == LINES
    assert not resume_path(file).exists()


TERMS = UploadTerms("http://zq", "acme", "events", None, None, False)


def test_a_repeat_after_a_failure_sends_the_same_batches_under_the_same_lines(tmp_path: Path) -> None:
    """A repeated batch has its original first and last line, so that the server knows its idempotency key."""
    file = written(tmp_path, 5000)
    whole = list(cut(file, resumed(file, TERMS, 20_000)))
    for failing in range(len(whole)):
        sent: list[Batch] = []

        def post(batch: Batch, sent: list[Batch] = sent, failing: int = failing) -> None:
            if batch.first == whole[failing].first and batch not in sent:
                sent.append(batch)
                raise Unavailable("away")
            sent.append(batch)

        with pytest.raises(Unavailable):
            send(file, 20_000, post)
        noted = resumed(file, TERMS, 20_000)
        assert noted.line == (whole[failing - 1].last if failing else 0)
        assert send(file, 999, post) == 5000
        assert all(batch in whole for batch in sent)
        assert {batch.first for batch in sent} == {batch.first for batch in whole}


def resumed(file: Path, terms: UploadTerms, batch_bytes: int) -> Upload:
    with ResumeFile(file) as note:
        return resume(note, terms, batch_bytes)


def send(file: Path, batch_bytes: int, post: Callable[[Batch], object]) -> int:
    """Post with three batches in flight and return the total number of stored messages."""
    with ResumeFile(file) as note:
        sender = Sender(note, resume(note, TERMS, batch_bytes), post, 3)
        sender.send(lambda *_: None)
    return sender.upload.messages


def cut(file: Path, upload: Upload) -> list[Batch]:
    with file.open("rb") as opened:
        return list(split_batches(opened, upload))


def test_batches_keep_the_bounds(tmp_path: Path) -> None:
    """A batch has at most 1,000 messages and the given bytes; a message that is almost too large has its own batch."""
    file = tmp_path / "events.ndjson"
    file.write_text("1\n" * 2500 + '"' + "x" * 5000 + '"\n' + "2\n")
    resume_path(file).unlink(missing_ok=True)
    cuts = cut(file, resumed(file, TERMS, 262_144))
    assert [len(batch.bodies) for batch in cuts] == [1000, 1000, 502]
    resume_path(file).unlink()
    assert [len(batch.bodies) for batch in cut(file, resumed(file, TERMS, 5026))][-2:] == [1, 1]
    resume_path(file).unlink()
    with pytest.raises(InvalidInput, match=r"Line 2501 is too long: the request has 5,026 bytes"):
        cut(file, resumed(file, TERMS, 5025))


def test_lines_that_are_no_json_are_named_and_what_was_before_is_stored(zq: Zq, tmp_path: Path) -> None:
    """After a repair of the bad line the same command resumes, but not with --text."""
    file = tmp_path / "events.ndjson"
    file.write_text('{"n": 0}\n' * 1000 + "\n{torn}\n" + '{"n": 1}\n')
    stderr = zq.refused(4, "post", "events", "--file", str(file))
    assert "Line 1002 is not valid JSON" in stderr
    assert "Messages posted so far: 1,000 (up to line 1,000). Run the same command to resume." in stderr
    file.write_text(file.read_text().replace('"n": 0', '"n": 9'))
    assert "has changed" in zq.refused(6, "post", "events", "--file", str(file))
    file.write_text(file.read_text().replace('"n": 9', '"n": 0'))
    assert "a different text" in zq.refused(6, "post", "events", "--file", str(file), "--text")
    file.write_text(file.read_text().replace("{torn}", '"repaired, and longer"'))
    zq("post", "events", "--file", str(file))
    assert zq("queue", "stats", "events")[0]["total"] == 1002
    file.write_bytes("häh\n{}\n".encode())
    zq("post", "texts", "--file", str(file), "--text")
    assert [message["body"] for message in zq("list", "texts")] == ["häh", "{}"]


def test_a_post_is_not_resumed_otherwise_than_it_was_begun(tmp_path: Path) -> None:
    """Another queue or a changed file is rejected; the error names the resume file and --restart."""
    file = written(tmp_path, 10)
    resumed(file, TERMS, 1000)
    other: Any = UploadTerms("http://zq", "acme", "others", None, None, False)
    with pytest.raises(Conflict, match=r"a different queue.*--restart"):
        resumed(file, other, 1000)
    written(tmp_path, 11)
    with pytest.raises(Conflict, match="has changed"):
        resumed(file, TERMS, 1000)
    resume_path(file).write_text("{")
    with pytest.raises(Conflict, match="cannot be read"):
        resumed(file, TERMS, 1000)


def test_restart_forgets_what_was_interrupted(zq: Zq, tmp_path: Path) -> None:
    """All lines of the file are posted."""
    file = written(tmp_path, 5)
    resumed(file, UploadTerms("http://elsewhere", "acme", "events", None, None, False), 1000)
    assert "a different url" in zq.refused(6, "post", "events", "--file", str(file))
    assert zq("post", "events", "--file", str(file), "--restart")[0]["stored"] == 5


def test_what_the_server_refuses_does_not_count_as_repaired(tmp_path: Path) -> None:
    """The file must not change, because later batches than the rejected one may be stored."""
    file = written(tmp_path, 3000)

    def post(batch: Batch) -> None:
        if batch.first == 1001:
            raise InvalidBody("too deep")

    with pytest.raises(InvalidBody):
        send(file, 262_144, post)
    assert resumed(file, TERMS, 262_144).line == 1000
    written(tmp_path, 3001)
    with pytest.raises(Conflict, match="has changed"):
        resumed(file, TERMS, 262_144)


def test_long_post_shows_progress(zq: Zq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long post shows a rate on a terminal; a short post shows nothing."""
    file = written(tmp_path, 3000)
    assert "messages" not in zq.run("post", "events", "--file", str(file), FORCE_COLOR="1").stderr
    monkeypatch.setattr(progress, "BAR_DELAY", 0)
    shown = zq.run("post", "events", "--file", str(file), FORCE_COLOR="1").stderr
    assert "3,000 messages" in shown
    assert "/s" in shown
    assert zq.run("post", "events", "--file", str(file)).stderr == ""


def test_file_option_rejects_a_pipe(zq: Zq) -> None:
    """A pipe cannot be read again; "-" reads pipes."""
    assert "regular file" in zq.refused(2, "post", "events", "--file", "/dev/null")


def test_a_line_that_is_not_utf8_is_no_text(tmp_path: Path) -> None:
    """The error names the line."""
    file = tmp_path / "events.ndjson"
    file.write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(InvalidBody, match="Line 2 is not UTF-8"):
        cut(file, resumed(file, UploadTerms("http://zq", "acme", "events", None, None, True), 1000))


def test_one_run_at_a_time_posts_a_file(zq: Zq, tmp_path: Path) -> None:
    """The lock holds whether or not the other run has replaced the resume file, and ends with that run."""
    file = written(tmp_path, 5)
    with ResumeFile(file) as note:
        assert "Another run is posting this file." in zq.refused(6, "post", "events", "--file", str(file))
        upload = resume(note, TERMS, 1000)
        assert "Another run" in zq.refused(6, "post", "events", "--file", str(file), "--restart")
    assert resumed(file, TERMS, 1000).run == upload.run
    assert zq("post", "events", "--file", str(file), "--restart")[0]["stored"] == 5


@pytest.mark.parametrize("wrong", [b'"\xff"', b'"%s"' % (b"x" * 500)], ids=["not UTF-8", "too large"])
def test_a_line_that_can_never_be_stored_can_be_repaired(zq: Zq, tmp_path: Path, wrong: bytes) -> None:
    """The error names the line, and after a repair the same command resumes."""
    zq("queue", "create", "events", "_max_messages_post_size=400")
    file = tmp_path / "events.ndjson"
    file.write_bytes(b"1\n2\n" + wrong + b"\n4\n")
    stderr = zq.refused(4, "post", "events", "--file", str(file))
    assert "Line 3 " in stderr
    file.write_bytes(b'1\n2\n"repaired"\n4\n')
    zq("post", "events", "--file", str(file))
    assert stored_bodies(zq) == [1, 2, "repaired", 4]


def test_a_line_that_is_too_large_goes_on_when_the_queue_takes_more(zq: Zq, tmp_path: Path) -> None:
    """The file need not change if the queue accepts larger posts."""
    zq("queue", "create", "events", "_max_messages_post_size=400")
    file = tmp_path / "events.ndjson"
    file.write_text(f'1\n"{"x" * 500}"\n')
    assert "the request has 526 bytes" in zq.refused(4, "post", "events", "--file", str(file))
    zq("queue", "set", "events", "_max_messages_post_size=600")
    zq("post", "events", "--file", str(file))
    assert stored_bodies(zq) == [1, "x" * 500]


def stored_bodies(zq: Zq) -> list[Any]:
    return [message["body"] for message in zq("list", "events")]


def test_attributes_apply_to_each_line(zq: Zq, tmp_path: Path) -> None:
    """Attributes apply to lines of files, standard input and publishes, and count towards the request size."""
    given, expected = ("--attribute", "kind=x", "--attribute", "n:Number=1.5"), {"kind": "x", "n": 1.5}
    zq("queue", "create", "events", "_max_messages_post_size=1000")
    zq("post", "events", "--file", str(written(tmp_path, 40)), *given)
    assert [message["attributes"] for message in zq("list", "events")] == [expected] * 40
    zq("post", "others", "-", *given, given="1\n2\n")
    assert [message["attributes"] for message in zq("list", "others")] == [expected] * 2
    zq("topic", "publish", "news", "-", *given, given="1\n2\n")
    assert [event["attributes"] for event in zq("tail", "news", "--from", "0", "--limit", "2")] == [expected] * 2


def test_a_post_is_not_resumed_with_other_attributes(zq: Zq, tmp_path: Path) -> None:
    """A resume file from an earlier version has no attributes."""
    file = tmp_path / "events.ndjson"
    file.write_text('{"n": 0}\n{torn}\n')
    zq.refused(4, "post", "events", "--file", str(file), "--attribute", "a=x")
    assert "a different attribute" in zq.refused(6, "post", "events", "--file", str(file))
    file.write_text('{"n": 0}\n{"n": 1}\n')
    zq("post", "events", "--file", str(file), "--attribute", "a=x")
    assert [message["attributes"] for message in zq("list", "events")] == [{"a": "x"}] * 2
    terms = b'{"url":"u","project":"p","queue":"q","ttl":null,"delay":null,"text":false}'
    assert msgspec.json.decode(terms, type=UploadTerms) == UploadTerms("u", "p", "q", None, None, False)
