# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the command-line tests: a server, and ``zq`` in this process or in a separate process."""

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
    """A process that is killed at the end of its ``with`` block."""

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)


class Zq:
    """The command line with its own project; ``env`` holds additional environment variables."""

    def __init__(self, url: str, folder: Path, launcher: Launcher | None = None) -> None:
        self._folder = folder
        self._launcher = launcher
        self.project = f"p-{uuid4().hex[:12]}"
        self.env = {"ZQ_URL": url, "ZQ_PROJECT": self.project, "XDG_CONFIG_HOME": str(folder)}
        self.env |= dict.fromkeys(("ZQ_TOKEN", "ZQ_CLIENT_ID", "ZQ_PROFILE", "ZQ_CONFIG"), "")

    def run(self, *words: str, given: str = "", **env: str) -> Result:
        """Run ``zq`` in this process and return the result, also of a failed run."""
        result = CliRunner().invoke(cli, list(words), input=given, env={**self.env, **env})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert "Traceback" not in result.stderr
        return result

    def __call__(self, *words: str, given: str = "") -> list[Any]:
        """Run ``zq`` successfully and return the JSON lines of standard output."""
        result = self.run(*words, given=given)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refused(self, code: int, *words: str, **env: str) -> str:
        """Run ``zq``, check the exit code, and return the single line on standard error."""
        result = self.run(*words, **env)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert result.stderr.count("\n") == 1
        assert result.stderr.startswith("zq: ")
        return result.stderr.removeprefix("zq: ").removesuffix("\n")

    def on_terminal(self, *words: str, columns: int = 80, **env: str) -> tuple[int, str, str]:
        """Run ``zq`` on a terminal of this width; return the exit code, standard output and standard error."""
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
        """Start ``zq`` as a process, through the launcher if ``forked``.

        Remove the terminal size from the environment, because the process may have no terminal.
        """
        own = {name: value for name, value in {**os.environ, **self.env}.items() if name not in ("COLUMNS", "LINES")}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return Process([*(self._command if forked else COMMAND), *words], env=own, text=True, **pipes)

    def shell(self, line: str, *options: str) -> subprocess.CompletedProcess[str]:
        """Run a shell line with ``zq`` on PATH in the folder of the test."""
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
        """Return a folder for PATH that contains ``zq``."""
        program = self._folder / "bin" / "zq"
        if not program.exists():
            program.parent.mkdir()
            program.write_text(f'#!/bin/sh\nexec {shlex.join(self._command)} "$@"\n')
            program.chmod(0o755)
        return program.parent


def read_terminal(ours: int, theirs: int) -> str:
    """Return everything that is written to a terminal until the program closes its end."""
    os.close(theirs)
    with open(ours, "rb", buffering=0) as screen:
        read = bytearray()
        while True:
            try:
                piece = screen.read(65_536)
            except OSError:  # Linux reports the end of the terminal as an error
                piece = b""
            if not piece:
                return read.decode().replace("\r\n", "\n")
            read += piece


def paths(group: click.Group = cli) -> Iterator[list[str]]:
    """Yield the words of each command below a group."""
    for name, command in group.commands.items():
        yield [name]
        if isinstance(command, click.Group):
            yield from ([name, *words] for words in paths(command))


@pytest.fixture(scope="session")
def running() -> Iterator[ZqServer]:
    """Start one server for all command-line tests."""
    with ZqServer("memory:", env={"OS_SIGNED_URL__SECRET_KEY": "k" * 32}) as server:
        yield server


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Start one process from which all runs of the command line are forked."""
    # The name of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="zq-") as folder, Launcher(Path(folder)) as launcher:
        yield launcher


@pytest.fixture
def zq(running: ZqServer, tmp_path: Path, launcher: Launcher) -> Zq:
    return Zq(running.url, tmp_path, launcher)
