# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that continues an earlier run.

``--progress FILE`` records each test that passed or was skipped, and deselects the tests in FILE. The first line of the
file is the commit; a file of another commit counts as empty. After all tests have passed, the file is deleted.
"""

import subprocess
import time
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--progress", type=Path, help="the file that records the tests that need not run again")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Progress(config.option.progress))


def commit() -> str:
    """Return the commit of the work tree; with uncommitted changes, a unique string."""
    command = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"{described} {time.time()}" if described.endswith("-dirty") else described


class Progress:
    """The file of the tests that have passed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commit = commit()
        self._left: set[str] = set()
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        passed = set(lines[1:]) if lines[:1] == [self._commit] else set()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]
        self._left = {item.nodeid for item in items}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("\n".join([self._commit, *sorted(passed), ""]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed:
            self._left.discard(report.nodeid)
            with self._path.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        waiting = len(self._left - self._failed)
        if waiting:
            terminalreporter.write_line(f"{waiting} tests were not reached. The same command continues with them.")
        if not self._left:
            self._path.unlink(missing_ok=True)
