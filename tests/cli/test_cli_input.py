# SPDX-License-Identifier: Apache-2.0
"""``zq post QUEUE -``: lines are sent as they arrive, and lines that were read are not lost."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Zq
from tests.servers import wait_for
from zq.cli.content import InputFormat, read_stdin_bodies
from zq.cli.post import pack_promptly
from zq.client.posting import Packer


def total(zq: Zq, kind: str = "queue") -> int:
    return int(zq(kind, "stats", "jobs")[0]["total"])


@pytest.mark.parametrize("words", [["post", "jobs", "-"], ["topic", "publish", "jobs", "-"]])
def test_lines_are_stored_while_the_next_one_is_awaited(zq: Zq, words: list[str]) -> None:
    """Lines are stored as with ``tail -f``; Ctrl-C ends the command, which prints the count."""
    zq("topic" if "topic" in words else "queue", "create", "jobs")
    with zq.start(*words, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write("1\n2\n3")
        process.stdin.flush()
        wait_for(lambda: total(zq, "topic" if "topic" in words else "queue") == 2, 60, "both lines are stored")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.read())["stored"] == 2
        assert process.stderr.read() == ""


def test_what_was_read_is_sent_when_a_signal_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """An incomplete line is not sent."""
    here, there = os.pipe()
    os.write(there, b"1\n2\n3")
    signals = iter([False, True])
    with open(here) as source:
        monkeypatch.setattr(sys, "stdin", source)
        sent = list(pack_promptly(Packer(1000, None, None), read_stdin_bodies(InputFormat(), lambda: next(signals))))
    os.close(there)
    assert [batch.count for batch in sent] == [2]


def test_lines_before_one_that_is_refused_are_stored(zq: Zq) -> None:
    """The error names the line."""
    result = zq.run("post", "jobs", "-", given="1\n2\n{torn\n4\n")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "after 2 messages" in result.stderr
    assert "Line 3 is not valid JSON" in result.stderr
    assert total(zq) == 2


@pytest.mark.parametrize("number", ["1e999", "9223372036854775808"])
def test_a_line_with_a_number_out_of_range_is_named(zq: Zq, number: str) -> None:
    """The lines before it are stored."""
    result = zq.run("post", "jobs", "-", given=f"1\n2\n[{number}]\n4\n")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "Line 3: the body[0] contains a number out of range" in result.stderr
    assert total(zq) == 2
    assert "contains a number out of range" in zq.refused(4, "post", "jobs", f"[{number}]")


def test_a_key_is_for_one_body(zq: Zq) -> None:
    """With several bodies the key would not make each message unique."""
    assert "--key requires a single BODY" in zq.refused(2, "post", "jobs", "-", "--key", "k")
    assert "--key requires a single BODY" in zq.refused(2, "post", "jobs", "--file", __file__, "--key", "k")
