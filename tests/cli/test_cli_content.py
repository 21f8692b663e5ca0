# SPDX-License-Identifier: Apache-2.0
"""``zq post`` with pipes without "-", gzip detected by content, and CSV."""

import gzip
import json
import os
import pty
import signal
import subprocess
import zlib
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Zq
from tests.servers import wait_for
from zq.cli.content import (
    MAX_LINE,
    PIECE_SIZE,
    InputFormat,
    InvalidInput,
    decompress,
    decompress_if_gzip,
    read_items,
    split_lines,
)
from zq.cli.uploads import Batch, ResumeFile, Sender, UploadTerms, resume, resume_path
from zq.errors import NotFound, Unavailable

LINES = 20_000


def stored(zq: Zq, queue: str = "jobs") -> list[Any]:
    """Return the bodies of the queue; an empty list if the queue does not exist."""
    result = zq.run("list", queue, "--limit", "0")
    assert result.exit_code in (0, 3), result.output
    return [json.loads(line)["body"] for line in result.stdout.splitlines()]


def bodies(pieces: Iterator[bytes | None], form: InputFormat) -> list[Any]:
    found = [
        record.body for record in read_items(decompress_if_gzip(pieces), form) if record and record.body is not None
    ]
    return [json.loads(bytes(body)) for body in found]


def numbers(count: int) -> bytes:
    return b"".join(b'{"n": %d, "pad": "%s"}\n' % (number, os.urandom(30).hex().encode()) for number in range(count))


def test_a_pipe_and_a_redirected_file_need_no_dash(zq: Zq, tmp_path: Path) -> None:
    """Each line is a message, as with "-"."""
    file = tmp_path / "events.ndjson"
    file.write_text("1\n2\n")
    with file.open() as given, zq.start("post", "jobs", stdin=given) as process:
        assert process.wait(60) == 0
    assert zq("post", "jobs", given="3\n")[0]["stored"] == 1
    assert stored(zq) == [1, 2, 3]


def test_empty_standard_input_is_an_error_and_posts_nothing(zq: Zq) -> None:
    """A cron job has no standard input, so the command must fail immediately instead of appearing successful."""
    for redirect in ("</dev/null", "<&-", "< <(true)", "<<< ''"):
        done = zq.shell(f"zq post jobs {redirect}")
        assert (done.returncode, done.stdout) == (2, ""), redirect
        assert (
            done.stderr
            == "zq: There is nothing to post: neither BODY nor --file was given, and standard input was empty.\n"
        )
    assert zq("queue", "list") == []


def test_a_terminal_is_not_read_unless_asked_for(zq: Zq) -> None:
    """Reading the terminal would look like a hang; the error names the ways to give a body."""
    there, here = pty.openpty()
    with zq.start("post", "jobs", stdin=here) as process:
        _, stderr = process.communicate(timeout=60)
    os.close(here)
    os.close(there)
    assert process.returncode == 2
    assert 'give BODY, --file, or "-"' in stderr


def test_a_silent_pipe_is_mentioned(zq: Zq) -> None:
    """The user may have forgotten BODY; "-" suppresses the message."""
    with zq.start("post", "jobs", stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert "Waiting for lines on standard input" in process.stderr.readline()
        out, stderr = process.communicate("1\n", timeout=60)
    assert (json.loads(out)["stored"], stderr) == (1, "")
    assert stored(zq) == [1]


def test_a_file_that_is_gzip_is_inflated_whatever_its_name(zq: Zq, tmp_path: Path) -> None:
    """Concatenated gzip streams are one content, and trailing zeros are ignored, as in gzip."""
    file = tmp_path / "events.ndjson"
    file.write_bytes(gzip.compress(b"1\n2") + gzip.compress(b"3\n") + gzip.compress(b"") + b"\0" * 512)
    assert zq("post", "jobs", "--file", str(file))[0]["stored"] == 2
    named = tmp_path / "plain.gz"
    named.write_text("4\n")
    zq("post", "jobs", "--file", str(named))
    assert stored(zq) == [1, 23, 4]


@pytest.mark.slow
def test_a_post_of_gzip_that_was_killed_goes_on_and_stores_each_line_once(zq: Zq, tmp_path: Path) -> None:
    """The resume file has lines and offsets of the uncompressed content."""
    file = tmp_path / "events.ndjson.gz"
    file.write_bytes(gzip.compress(numbers(LINES)))
    zq("queue", "create", "jobs")
    with zq.start("post", "jobs", "--file", str(file), "--concurrency", "2", forked=False) as process:
        wait_for(lambda: zq("queue", "stats", "jobs")[0]["total"] > 1000, 60, "some are stored")
        process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert resume_path(file).exists()
    zq("post", "jobs", "--file", str(file))
    assert sorted(body["n"] for body in stored(zq)) == list(range(LINES))
    assert not resume_path(file).exists()


def test_gzip_that_is_cut_off_is_posted_so_far_and_goes_on_when_it_is_whole(zq: Zq, tmp_path: Path) -> None:
    """The incomplete last line is not posted."""
    file, whole = tmp_path / "events.ndjson.gz", gzip.compress(numbers(3000))
    file.write_bytes(whole[: len(whole) // 2])
    stderr = zq.refused(4, "post", "jobs", "--file", str(file))
    count = zq("queue", "stats", "jobs")[0]["total"]
    assert 0 < count < 3000
    assert "is truncated: the end of the file is missing." in stderr
    assert f"Messages posted so far: {count:,} (up to line {count:,}). Run the same command to resume." in stderr
    file.write_bytes(whole)
    zq("post", "jobs", "--file", str(file))
    assert [body["n"] for body in stored(zq)] == list(range(3000))


@pytest.mark.parametrize("behind", [b"rubbish", gzip.compress(b"3\n")[:-8] + bytes(8)], ids=["rubbish", "checksum"])
def test_damaged_gzip_is_an_error(behind: bytes) -> None:
    """Damage after a complete gzip stream is an error, too."""
    with pytest.raises(InvalidInput, match="gzip data is damaged"):
        bodies(iter([gzip.compress(b"1\n2\n") + behind]), InputFormat())


def test_gzip_in_standard_input_is_sent_as_it_comes(zq: Zq) -> None:
    """Lines are stored as soon as the producer flushes them; a truncated stream is an error."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    there, here = os.pipe()
    with zq.start("post", "jobs", stdin=there) as process:
        os.close(there)
        os.write(here, packer.compress(b"1\n2\n3") + packer.flush(zlib.Z_SYNC_FLUSH))
        wait_for(lambda: stored(zq) == [1, 2], 60, "both lines are stored")
        os.close(here)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "after 2 messages had been stored: The gzip data is truncated" in stderr


def test_inflating_takes_bounded_memory() -> None:
    """A small file may expand to any size; a line without an end is rejected."""
    packed = gzip.compress(bytes(PIECE_SIZE * 100))
    assert max(len(piece or b"") for piece in decompress(iter([packed]))) <= PIECE_SIZE
    with pytest.raises(InvalidInput, match=f"more than {MAX_LINE:,} bytes"):
        list(split_lines(repeat(b"x" * PIECE_SIZE)))


@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_where_pieces_end_makes_no_difference(size: int) -> None:
    """Pieces of any size, and empty reads between them, give the same bodies."""
    plain = b'\xef\xbb\xbf1\n\n"\xc3\xa4"\n3'

    def cut(content: bytes) -> Iterator[bytes | None]:
        for start in range(0, len(content), size):
            yield content[start : start + size]
            yield None

    assert bodies(cut(plain), InputFormat()) == [1, "ä", 3]
    assert bodies(cut(gzip.compress(plain)), InputFormat()) == [1, "ä", 3]
    assert bodies(cut(b"\x1f"), InputFormat(text=True)) == ["\x1f"]
    rows = b'\xef\xbb\xbfa,b\r\n1,"x\n""y"""\r\n\n2,\n'
    wanted = [{"a": "1", "b": 'x\n"y"'}, {"a": "2", "b": ""}]
    assert bodies(cut(rows), InputFormat(delimiter=",")) == wanted
    assert bodies(cut(gzip.compress(rows)), InputFormat(delimiter=",")) == wanted


def test_each_row_of_csv_is_an_object_of_texts(zq: Zq, tmp_path: Path) -> None:
    """A file name or an option selects CSV; ``--text`` posts the lines as text."""
    file = tmp_path / "orders.csv"
    file.write_text('item,note\nlamp,"two\nlines"\n007,\n')
    wanted = [{"item": "lamp", "note": "two\nlines"}, {"item": "007", "note": ""}]
    zq("post", "jobs", "--file", str(file))
    packed = tmp_path / "ORDERS.CSV.gz"
    packed.write_bytes(gzip.compress(b"item;note\nlamp;\n"))
    zq("post", "jobs", "--file", str(packed), "--delimiter", ";")
    zq("post", "jobs", "--csv", "--delimiter", "\\t", given="item\tnote\na,b\tc\n")
    assert stored(zq) == [*wanted, {"item": "lamp", "note": ""}, {"item": "a,b", "note": "c"}]
    zq("post", "texts", "--file", str(file), "--text")
    assert stored(zq, "texts") == ["item,note", 'lamp,"two', 'lines"', "007,"]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("3", "Line 4 has 1 fields, but the header has 2."),
        ("3,4,5", "Line 4 has 3 fields, but the header has 2."),
        ('3,"4\n5', "The row that begins in line 4 is not valid CSV: unexpected end of data."),
        ('3,"4"5', "The row that begins in line 4 is not valid CSV: ',' expected after '\"'."),
    ],
)
def test_a_row_that_does_not_fit_is_named_and_can_be_repaired(zq: Zq, tmp_path: Path, row: str, sentence: str) -> None:
    """The rows before the bad row are stored, and the resume file covers the header."""
    file = tmp_path / "orders.csv"
    file.write_text(f'a,b\n1,"2\n2"\n{row}\n')
    said = zq.refused(4, "post", "jobs", "--file", str(file))
    assert said == f"{sentence} Messages posted so far: 1 (up to line 3). Run the same command to resume."
    assert "a different delimiter" in zq.refused(6, "post", "jobs", "--file", str(file), "--delimiter", ";")
    file.write_text('a,b\n1,"2\n2"\n3,4\n')
    zq("post", "jobs", "--file", str(file))
    assert stored(zq) == [{"a": "1", "b": "2\n2"}, {"a": "3", "b": "4"}]


def test_a_header_that_names_a_field_twice_is_refused(zq: Zq, tmp_path: Path) -> None:
    """One of the two values would be lost."""
    file = tmp_path / "orders.csv"
    file.write_text("a,b,a\n1,2,3\n")
    assert zq.refused(4, "post", "jobs", "--file", str(file)) == (
        "Line 1: the header names 'a' twice. Nothing was posted."
    )


def test_options_of_csv_are_for_csv(zq: Zq, tmp_path: Path) -> None:
    """Contradictory options are rejected before any input is read."""
    assert "either --text or --csv" in zq.refused(2, "post", "jobs", "-", "--text", "--csv")
    assert "--delimiter requires --csv" in zq.refused(2, "post", "jobs", "-", "--delimiter", ";")
    assert "--csv requires --file or standard input" in zq.refused(2, "post", "jobs", "1", "--csv")
    assert "must be a single character" in zq.refused(2, "post", "jobs", "-", "--csv", "--delimiter", "--")


def test_a_file_of_which_surely_nothing_was_stored_leaves_no_resume_file(zq: Zq, tmp_path: Path) -> None:
    """The user may run another command next, such as with --text."""
    file = tmp_path / "pretty.json"
    file.write_text('{\n  "a": 1\n}\n')
    stderr = zq.refused(4, "post", "jobs", "--file", str(file))
    assert "Line 1 is not valid JSON" in stderr
    assert "one JSON value (NDJSON); use --text to post lines as text. Nothing was posted." in stderr
    assert not resume_path(file).exists()


@pytest.mark.parametrize(("error", "kept"), [(Unavailable("away"), True), (NotFound("gone"), False)])
def test_the_resume_file_stays_where_something_may_be_stored(tmp_path: Path, error: Exception, kept: bool) -> None:
    """The repeated command needs the same idempotency keys, because the server may have stored messages."""
    file = tmp_path / "events.ndjson"
    file.write_text("1\n")

    def post(_: Batch) -> None:
        raise error

    def attempt() -> None:
        with ResumeFile(file) as note:
            upload = resume(note, UploadTerms("http://zq", "acme", "jobs", None, None, False), 1000)
            with pytest.raises(type(error)):
                Sender(note, upload, post, 2).send(lambda *_: None)

    attempt()
    assert resume_path(file).exists() == kept
    if kept:
        error = NotFound("gone")  # NotFound is certain only about the second attempt
        attempt()
        assert resume_path(file).exists()
