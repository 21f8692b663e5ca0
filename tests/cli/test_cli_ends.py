# SPDX-License-Identifier: Apache-2.0
"""``zq consume``: its end after a number of messages, with its reader, or after failures; and shell commands."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Zq
from tests.cli.test_cli_work import everything, post, script
from tests.servers import wait_for
from zq.cli.command import find_shell_syntax

MANY = 2000
NO_WAIT = ["--until-empty", "--wait", "0"]
LONG = ["--backoff", "600"]
"""A back-off that is longer than any test, so that released messages are not redelivered."""


def piped(zq: Zq, line: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line that exits with the code of the last command that failed."""
    return zq.shell(line, "-o", "pipefail")


def numbers(lines: str) -> list[Any]:
    return [json.loads(line)["body"] for line in lines.splitlines()]


@pytest.mark.parametrize(
    "reader",
    ["head -3", f"{sys.executable} -c 'import sys; [print(input()) for _ in range(3)]'"],
    ids=["head", "python"],
)
def test_messages_not_printed_before_the_reader_exits_are_released(zq: Zq, tmp_path: Path, reader: str) -> None:
    """Each message was either printed or is ready: no message is lost or claimed."""
    post(zq, MANY)
    done = piped(zq, f"zq consume jobs | {reader}")
    assert (done.returncode, done.stderr) == (0, "")
    assert numbers(done.stdout) == [0, 1, 2]
    assert [message["body"] for message in zq("list", "jobs", "--limit", "0")] == list(range(3, MANY))


def test_consume_ends_when_the_reader_exits_and_no_message_arrives(zq: Zq, tmp_path: Path) -> None:
    """The command notices the closed pipe although it has nothing to write."""
    post(zq, 3)
    done = piped(zq, "zq consume jobs | head -3")
    assert (done.returncode, done.stderr, numbers(done.stdout)) == (0, "", [0, 1, 2])
    assert everything(zq) == []
    assert piped(zq, "zq consume jobs | true").returncode == 0


def test_a_reader_that_is_killed_has_shown_what_is_gone(zq: Zq, tmp_path: Path) -> None:
    """Lines that are longer than a page are deleted if they were read completely; a partly read line is redelivered."""
    zq("post", "jobs", "-", "--text", given="".join(f"{number:05}{'x' * 20_000}\n" for number in range(30)))
    done = piped(zq, "zq consume jobs | head -c 150000 >page; true")
    assert done.stderr == ""
    shown = 150_000 // 20_000
    left = [int(body[:5]) for body in everything(zq)]
    assert left == list(range(30 - len(left), 30))
    assert shown - 1 <= 30 - len(left) <= shown


def test_message_that_no_reader_has_read_is_released(zq: Zq) -> None:
    """A signal ends the wait for the reader; the message in the pipe and all others are ready again."""
    post(zq, 5)
    with zq.start("consume", "jobs", "--wait", "1") as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0]
        assert zq("list", "jobs") == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert numbers(process.stdout.read()) == [0]
    assert everything(zq) == list(range(5))
    assert len(zq("list", "jobs")) == 5


def test_readers_that_read_on_get_everything(zq: Zq, tmp_path: Path) -> None:
    """All messages also arrive if standard output is a file."""
    post(zq, MANY)
    done = piped(zq, "zq consume jobs --until-empty --wait 0 | cat")
    assert (done.returncode, numbers(done.stdout)) == (0, list(range(MANY)))
    post(zq, 3)
    target = tmp_path / "bodies"
    with target.open("w") as file, zq.start("consume", "jobs", "--count", "3", stdout=file) as process:
        assert process.wait(60) == 0
    assert numbers(target.read_text()) == [0, 1, 2]
    assert everything(zq) == []


@pytest.mark.parametrize(
    "options", [[], ["--exec", "true"], ["--exec", "true", "--batch"]], ids=["print", "one", "batch"]
)
def test_it_ends_after_so_many_messages_and_takes_no_more(zq: Zq, options: list[str]) -> None:
    """The count is exact with several commands in parallel, and other consumers get the remaining messages."""
    post(zq, 30)
    zq("consume", "jobs", "--count", "13", "--concurrency", "4", "--limit", "5", *options)
    left = zq("list", "jobs")
    assert (len(left), {message.get("claim_count", 0) for message in left}) == (17, {0})
    zq("consume", "jobs", "--count", "40", "--concurrency", "4", "--limit", "5", *NO_WAIT, *options)
    assert everything(zq) == []


@pytest.mark.parametrize("whole", [[], ["--batch", "--limit", "1"]], ids=["one", "batch"])
def test_a_command_that_only_fails_ends_it(zq: Zq, whole: list[str]) -> None:
    """The command ends after the given number of consecutive failures and releases all messages."""
    post(zq, 25)
    words = ["consume", "jobs", "--exec", "false", "--concurrency", "1", *LONG, *whole]
    result = zq.run(*words, "--max-failures", "7")
    assert result.exit_code == 1
    assert "CMD failed 7 times in a row, which is the limit (--max-failures): 0 done," in result.stderr
    assert len(everything(zq)) == 25
    assert len(zq("pop", "jobs", "--limit", "20")) == 18
    post(zq, 25)
    assert "CMD failed 20 times in a row" in zq.run(*words).stderr
    post(zq, 25)
    assert "in a row" not in zq.run(*words, *NO_WAIT, "--max-failures", "0").stderr
    assert zq("pop", "jobs") == []


def test_a_command_that_succeeds_now_and_then_goes_on(zq: Zq, tmp_path: Path) -> None:
    """A success resets the count of consecutive failures."""
    post(zq, 12)
    command = script(tmp_path, "sys.exit(int(sys.stdin.read()) % 3 > 0)")
    words = ["consume", "jobs", "--exec", command, "--concurrency", "1", "--max-failures", "3", *LONG, *NO_WAIT]
    assert "4 done, 8 released." in zq.run(*words).stderr


def test_a_shell_reads_the_line_and_gets_the_id_as_an_argument(zq: Zq, tmp_path: Path) -> None:
    """Pipes, redirections and variables work, and the shell does not interpret the id."""
    ids = post(zq, 2)
    line = f"cd {tmp_path} && tr -d '\\n' | tee {{}}.body >$(basename in-{{}}.txt)"
    zq("consume", "jobs", "--shell", "--exec", line, *NO_WAIT)
    assert [(tmp_path / f"{name}.body").read_text() for name in ids] == ["0", "1"]
    assert (tmp_path / f"in-{ids[0]}.txt").read_text() == "0"
    zq("post", "jobs", "x")
    assert zq.run("consume", "jobs", "--shell", "--exec", "exit 3", *NO_WAIT).exit_code == 1
    zq.refused(2, "consume", "jobs", "--shell")
    zq.refused(2, "consume", "jobs", "--shell", "--exec", " ")


def test_the_syntax_of_shells_is_warned_of_once_with_the_remedy(zq: Zq) -> None:
    """The command still runs without a shell."""
    post(zq, 3)
    result = zq.run("consume", "jobs", "--exec", "true | false > $HOME", *NO_WAIT)
    assert result.exit_code == 0
    assert (
        result.stderr.count(
            "CMD receives | unchanged, because zq does not run CMD through a shell; use --shell to do so."
        )
        == 1
    )
    assert "Use --shell to run CMD through a shell." in zq.refused(2, "consume", "jobs", "--exec", "VAR=1 work && rest")


@pytest.mark.parametrize(
    ("line", "syntax"),
    [
        ("cat | wc", "|"),
        ("a && b", "&&"),
        ("a; b", ";"),
        ("echo $HOME", "$"),
        ('echo "$HOME"', "$"),
        ("echo `date`", "`"),
        ("ls *.txt", "*"),
        ("ls ~/x", "~"),
        ("a <in >out", "<"),
        ("echo '$HOME | *'", ""),
        ('echo "a|b;c*"', ""),
        (r"echo \$HOME", ""),
        ("./work {} a~b x=1", ""),
    ],
)
def test_only_unquoted_shell_syntax_is_found(line: str, syntax: str) -> None:
    """Quoted or escaped characters are not shell syntax."""
    assert find_shell_syntax(line) == syntax


@pytest.mark.parametrize("options", [["--exec", "sleep 0.2"], []], ids=["commands", "print"])
def test_progress_is_shown_on_a_terminal(zq: Zq, options: list[str], tmp_path: Path) -> None:
    """Progress is shown on standard error during the work, but only if standard error is a terminal."""
    post(zq, 40)
    here, there = os.openpty()
    zq.env["TERM"] = "xterm"
    target = (tmp_path / "out").open("w")
    with zq.start("consume", "jobs", *options, "--concurrency", "1", stderr=there, stdout=target) as process:
        seen = ""
        deadline = time.monotonic() + 60
        while "done, 0 released, " not in seen and time.monotonic() < deadline:
            if select.select([here], [], [], 1)[0]:
                seen += os.read(here, 10_000).decode()
        assert "done, 0 released, " in seen
        assert "/s" in seen
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    for end in (here, there):
        os.close(end)
    target.close()
    with zq.start("consume", "jobs", *options, *NO_WAIT) as process:
        _, stderr = process.communicate(timeout=60)
    assert "\x1b" not in stderr


def test_a_live_line_never_stands_among_the_messages(zq: Zq) -> None:
    """Progress is not shown if messages are printed on the terminal."""
    post(zq, 3)
    here, there = os.openpty()
    zq.env["TERM"] = "xterm"
    with zq.start("consume", "jobs", "--wait", "3", "--until-empty", stderr=there, stdout=there) as process:
        wait_for(lambda: process.poll() is not None, 60, "it has ended")
    shown = os.read(here, 10_000).decode()
    for end in (here, there):
        os.close(end)
    assert "\x1b" not in shown
    assert shown.count("body") == 3
