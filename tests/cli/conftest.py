# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: a server, and ``zq`` in this process or in one of its own."""

import json
import os
import pty
import shlex
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest
from click.testing import CliRunner, Result

from tests.cli.launcher import Launcher
from tests.servers import ZqServer
from zq.cli.root import cli

COMMAND = [sys.executable, "-c", "from zq.cli import main; main()"]


class Process(subprocess.Popen[str]):
    """Never outlives the block of its test."""

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)


class Zq:
    """The command line, in a project of its own; ``env`` is what it runs in besides."""

    def __init__(self, url: str, folder: Path, launcher: Launcher | None = None) -> None:
        self._folder = folder
        self._launcher = launcher
        self.project = f"p-{uuid4().hex[:12]}"
        self.env = {"ZQ_URL": url, "ZQ_PROJECT": self.project, "XDG_CONFIG_HOME": str(folder)}
        self.env |= dict.fromkeys(("ZQ_TOKEN", "ZQ_CLIENT_ID", "ZQ_PROFILE", "ZQ_CONFIG"), "")

    def run(self, *words: str, given: str = "", **env: str) -> Result:
        """In this process, whatever it comes to."""
        result = CliRunner().invoke(cli, list(words), input=given, env={**self.env, **env})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert "Traceback" not in result.stderr
        return result

    def __call__(self, *words: str, given: str = "") -> list[Any]:
        """The lines of JSON of a run that goes well."""
        result = self.run(*words, given=given)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refused(self, code: int, *words: str, **env: str) -> str:
        """What a run says on standard error that ends with this code: one line."""
        result = self.run(*words, **env)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("zq: ")
        return result.stderr.removeprefix("zq: ").removesuffix("\n")

    def on_terminal(self, *words: str, columns: int = 80, **env: str) -> tuple[int, str, str]:
        """The exit code, and what a run in a terminal of this width shows on standard output and standard error."""
        own = {**os.environ, **self.env, "TERM": "xterm-256color", **env}
        own = {name: value for name, value in own.items() if name in env or name not in ("COLUMNS", "NO_COLOR", "CI")}
        ends = [pty.openpty(), pty.openpty()]
        for _, theirs in ends:
            termios.tcsetwinsize(theirs, (24, columns))
        with (
            ThreadPoolExecutor(2) as readers,
            Process(
                [*self._command, *words],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=ends[0][1],
                stderr=ends[1][1],
            ) as run,
        ):
            shown = [readers.submit(read_terminal, *pair) for pair in ends]
            return run.wait(60), shown[0].result(), shown[1].result()

    def start(self, *words: str, forked: bool = True, **options: Any) -> Process:
        """Start it as a process, by the launcher if ``forked``.

        The environment of the tests may name a terminal that the process does not have.
        """
        own = {name: value for name, value in {**os.environ, **self.env}.items() if name not in ("COLUMNS", "LINES")}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return Process([*(self._command if forked else COMMAND), *words], env=own, text=True, **pipes)

    def shell(self, line: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a line in which ``zq`` is a command, by bash in the folder of the test."""
        env = {**os.environ, **self.env, "PATH": f"{self.installed()}:{os.environ['PATH']}"}
        words = ["bash", *options, "-c", line]
        return subprocess.run(
            words, cwd=self._folder, env=env, capture_output=True, text=True, check=False, timeout=120
        )

    @property
    def _command(self) -> list[str]:
        assert self._launcher is not None
        return self._launcher.command

    def installed(self) -> Path:
        """Return a folder to be put on PATH, with ``zq`` in it."""
        program = self._folder / "bin" / "zq"
        if not program.exists():
            program.parent.mkdir()
            program.write_text(f'#!/bin/sh\nexec {shlex.join(self._command)} "$@"\n')
            program.chmod(0o755)
        return program.parent


def read_terminal(ours: int, theirs: int) -> str:
    """All that is written to a terminal until the program that has its other end closes it."""
    os.close(theirs)
    with open(ours, "rb", buffering=0) as screen:
        read = bytearray()
        while True:
            try:
                piece = screen.read(65_536)
            except OSError:  # its end, as Linux reports it
                piece = b""
            if not piece:
                return read.decode().replace("\r\n", "\n")
            read += piece


def paths(group: click.Group = cli) -> Iterator[list[str]]:
    """The words that name each command below a group."""
    for name, command in group.commands.items():
        yield [name]
        if isinstance(command, click.Group):
            yield from ([name, *words] for words in paths(command))


@pytest.fixture(scope="session")
def running() -> Iterator[ZqServer]:
    """One server for all tests of the command line."""
    with ZqServer("memory:", env={"OS_SIGNED_URL__SECRET_KEY": "k" * 32}) as server:
        yield server


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """One process from which all runs of the command line are forked."""
    # The name of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="zq-") as folder, Launcher(Path(folder)) as launcher:
        yield launcher


@pytest.fixture
def zq(running: ZqServer, tmp_path: Path, launcher: Launcher) -> Zq:
    return Zq(running.url, tmp_path, launcher)
