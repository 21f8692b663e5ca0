# SPDX-License-Identifier: Apache-2.0
"""``zq consume``: commands that succeed or fail, whole claims, signals and pipes."""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.cli.conftest import Zq
from tests.servers import wait_for
from zq.cli.progress import WorkCounts
from zq.client import Message


def script(tmp_path: Path, code: str) -> str:
    """Return a command that runs Python code; ``name`` is the value of {}."""
    file = tmp_path / "work.py"
    file.write_text(
        f"import json, os, pathlib, sys, time\nfolder = pathlib.Path({str(tmp_path)!r})\nname = sys.argv[1]\n{code}"
    )
    return shlex.join([sys.executable, str(file), "{}"])


def post(zq: Zq, count: int) -> list[str]:
    zq("post", "jobs", "-", given="".join(f"{number}\n" for number in range(count)))
    return [message["id"] for message in zq("list", "jobs")]


def everything(zq: Zq) -> list[Any]:
    return [message["body"] for message in zq("list", "jobs", "--claimed", "--delayed")]


def test_each_message_goes_to_a_command_and_those_that_fail_come_back(zq: Zq, tmp_path: Path) -> None:
    """The command gets the body on standard input and the id for {}; a failed message is delayed."""
    ids = post(zq, 6)
    command = script(
        tmp_path, "body = sys.stdin.read()\n(folder / name).write_text(body)\nsys.exit(int(body) % 3 == 2)"
    )
    options = ["--until-empty", "--wait", "0", "--concurrency", "3", "--backoff", "600"]
    result = zq.run("consume", "jobs", "--exec", command, *options)
    assert result.exit_code == 1, "two are not done"
    assert "4 done, 2 released." in result.stderr
    assert [(tmp_path / name).read_text() for name in ids] == [str(number) for number in range(6)]
    back = zq("list", "jobs", "--delayed")
    assert [(message["body"], message["claim_count"]) for message in back] == [(2, 1), (5, 1)]
    assert zq("pop", "jobs") == []


def test_a_command_that_reads_nothing_of_a_large_body_is_no_failure(zq: Zq) -> None:
    """Only the exit code counts."""
    zq("post", "jobs", "x" * 200_000)
    zq("consume", "jobs", "--exec", "true", "--until-empty", "--wait", "0")
    assert everything(zq) == []


def test_a_whole_claim_goes_to_one_command(zq: Zq, tmp_path: Path) -> None:
    """The command gets JSON lines and the claim for {}; all messages are deleted or all are released."""
    post(zq, 30)
    keep = script(tmp_path, "(folder / name).write_text(sys.stdin.read())")
    options = ["--batch", "--until-empty", "--wait", "0", "--concurrency", "2"]
    zq("consume", "jobs", "--exec", keep, *options)
    lines = [json.loads(line) for file in tmp_path.glob("client.*") for line in file.read_text().splitlines()]
    assert sorted(message["body"] for message in lines) == list(range(30))
    assert everything(zq) == []
    post(zq, 3)
    result = zq.run("consume", "jobs", "--exec", "false", "--backoff", "600", *options)
    assert (result.exit_code, "0 done, 3 released." in result.stderr) == (1, True)
    assert everything(zq) == [0, 1, 2]
    assert zq("pop", "jobs") == []


def test_without_a_command_messages_are_printed(zq: Zq) -> None:
    """The messages are JSON lines and are deleted."""
    post(zq, 25)
    printed = zq("consume", "jobs", "--until-empty", "--wait", "0")
    assert [message["body"] for message in printed] == list(range(25))
    assert everything(zq) == []


def test_invalid_command_is_refused_before_any_claim(zq: Zq) -> None:
    """The command claims no message."""
    assert "no command 'nowhere-to-be-found'" in zq.refused(2, "consume", "jobs", "--exec", "nowhere-to-be-found {}")
    zq.refused(2, "consume", "jobs", "--exec", "'")
    zq.refused(2, "consume", "jobs", "--batch")


def test_sigterm_ends_it_after_the_work_in_hand(zq: Zq, tmp_path: Path) -> None:
    """Running commands finish and their messages are deleted; all others are ready immediately; the exit code is 0."""
    post(zq, 5)
    command = script(
        tmp_path,
        "(folder / f'{name}.begun').touch()\nwhile not (folder / 'go').exists(): time.sleep(0.01)\n",
    )
    with zq.start("consume", "jobs", "--exec", command, "--concurrency", "2") as process:
        wait_for(lambda: len(list(tmp_path.glob("*.begun"))) == 2, 60, "two commands run")
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: len(zq("list", "jobs")) == 0, 60, "all are claimed")
        (tmp_path / "go").touch()
        _, stderr = process.communicate(timeout=60)
    left = [message["body"] for message in zq("list", "jobs")]
    done = 5 - len(left)  # more than two if the signal arrives late
    assert done in (2, 3, 4)
    assert (process.returncode, stderr) == (
        0,
        f"zq: {done} done, {5 - done} released, {5 - done} of them not started.\n",
    )
    assert left == list(range(done, 5))


def test_sigterm_ends_whole_claims_too(zq: Zq, tmp_path: Path) -> None:
    """The active claim is settled."""
    post(zq, 3)
    command = script(tmp_path, "(folder / 'begun').touch()\nwhile not (folder / 'go').exists(): time.sleep(0.01)\n")
    with zq.start("consume", "jobs", "--batch", "--exec", command, "--concurrency", "1", "--wait", "1") as process:
        wait_for((tmp_path / "begun").exists, 60, "the command runs")
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert process.wait(60) == 0
    assert everything(zq) == []


def pending(pid: int) -> bool:
    """Return whether a process has a pending signal."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["SigPnd"], 16) + int(status["ShdPnd"], 16) > 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_second_signal_ends_the_commands_too(zq: Zq, tmp_path: Path, whole: bool) -> None:
    """No command keeps running, and no message stays claimed."""
    post(zq, 3)
    command = script(tmp_path, "(folder / 'pid').write_text(str(os.getpid()))\ntime.sleep(600)\n")
    options = ["--batch"] if whole else []
    with zq.start("consume", "jobs", "--exec", command, "--concurrency", "1", *options, forked=False) as process:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), 60, "the command runs")
        process.send_signal(signal.SIGTERM)
        # Otherwise another thread may get the second signal.
        wait_for(lambda: not pending(process.pid), 60, "the first one was heard")
        for _ in range(3):  # Python delays a signal that arrives just before a wait for a lock
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
                break
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "0 done, 3 released" in stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert len(zq("list", "jobs", "--delayed")) == 3


def test_a_claim_goes_back_if_its_command_cannot_be_started(zq: Zq, tmp_path: Path) -> None:
    """The file is not a program."""
    post(zq, 3)
    torn = tmp_path / "torn"
    torn.write_bytes(b"\x00")
    torn.chmod(0o755)
    for options in (["--batch"], []):
        result = zq.run("consume", "jobs", "--exec", str(torn), "--until-empty", "--wait", "0", *options)
        assert result.exit_code == 1
        assert "Exec format error" in result.stderr
        assert len(zq("list", "jobs", "--delayed")) == 3


def test_messages_handled_later_are_not_unhandled() -> None:
    """A message that failed at first counts only until it succeeds."""
    tally = WorkCounts(keeps_failed_ids=True)
    first, second = Message("a", 60, 0, raw=Raw(b"1")), Message("b", 60, 0, raw=Raw(b"2"))
    tally.add([first, second], done=False)
    tally.add([first], done=True)
    assert (str(tally), tally.unhandled_ids) == ("1 done, 2 released.", {"b"})


def test_a_reader_that_has_seen_enough_is_no_error(zq: Zq) -> None:
    """``zq list | head -1`` ends without a traceback and with nothing on standard error."""
    post(zq, 100)
    process = zq.start("list", "jobs", "--limit", "0")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    process.stderr.close()


def test_a_terminal_gets_a_table_unasked(zq: Zq) -> None:
    """The default format depends on standard output."""
    zq("queue", "create", "jobs")
    zq.env["TERM"] = "dumb"
    here, there = os.openpty()
    with zq.start("queue", "stats", stdout=there) as process:
        assert process.wait(60) == 0
    os.close(there)
    shown = os.read(here, 10_000).decode().split()
    os.close(here)
    assert shown[:4] == ["name", "total", "free", "claimed"]


def test_exit_codes_and_sentences_reach_the_shell(zq: Zq) -> None:
    """A separate process has the same exit code and error."""
    with zq.start("queue", "show", "lost") as process:
        out, stderr = process.communicate(timeout=60)
    assert (process.returncode, out, stderr) == (3, "", "zq: There is no queue lost in the project.\n")
