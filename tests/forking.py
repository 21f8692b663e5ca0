# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that runs the tests in several processes, forked after one collection.

``--forks N`` forks N processes after the collection. The parent distributes *runs*: tests of one file and one store, so
that fixtures of a module are set up once for each run. Reports return through pipes, and only the parent prints, counts
and determines the exit status. If a process dies, its current test fails, and another process takes over the rest of
its tests.

Each process sets up its own session fixtures and therefore its own servers. Test modules must not start threads when
they are imported. Warnings of the processes are not shown.
"""

import multiprocessing
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import pytest

# Maximum number of tests in a run. The last runs are smaller, so that the processes end at about the same time.
MAX_RUN = 40
# Seconds that an interrupted process has to stop what it started.
STOP_WITHIN = 60
_context = multiprocessing.get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run the tests in this many processes")
    parser.addoption("--until", type=float, help="with --forks: start no test after this moment, in seconds since 1970")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "together(name): run in one process, after another test of the same name")


def store_of(item: pytest.Item) -> str | None:
    """Return the value of the test's parameter ``store_name``, or None."""
    call = getattr(item, "callspec", None)
    return call.params.get("store_name") if call else None


def together(item: pytest.Item) -> str | None:
    """Return the name in the marker ``together``, or None."""
    mark = item.get_closest_marker("together")
    return mark.args[0] if mark else None


def groups_of(items: list[pytest.Item]) -> list[list[int]]:
    """Return the positions of the tests that share a file and a store, or a name; groups with a name come first."""
    named: dict[str, list[int]] = {}
    placed: dict[tuple[object, object], list[int]] = {}
    for at, item in enumerate(items):
        if name := together(item):
            named.setdefault(name, []).append(at)
        else:
            placed.setdefault((item.path, store_of(item)), []).append(at)
    return [*named.values(), *placed.values()]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the collected tests in processes if the command line has ``--forks``."""
    option = session.config.option
    if not option.forks or option.collectonly or not session.items:
        return None
    if session.testsfailed and not option.continue_on_collection_errors:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if threads:
        raise pytest.UsageError(f"--forks: a test module started threads when it was imported: {threads}")
    Parent(session).run(option.forks)
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Started(NamedTuple):
    """The message that a process begins a test."""

    at: int


class Reported(NamedTuple):
    """The message that a phase of a test has ended."""

    report: dict[str, Any]


class RunBegun(NamedTuple):
    """The message that a process begins a run and requests the next one."""


class Child:
    """A forked process from its parent's view."""

    def __init__(self, session: pytest.Session, stopping: Event, siblings: list[Connection]) -> None:
        self.connection, theirs = _context.Pipe()
        self.todo: deque[int] = deque()
        self.current: int | None = None
        self.has_started = False
        inherited = [self.connection, *siblings]
        self._process = _context.Process(target=work, args=(session, theirs, stopping, inherited))
        self._process.start()
        theirs.close()

    def give(self, run: list[int]) -> None:
        """Send a run; an empty run means that no more follow."""
        self.todo += run
        with suppress(BrokenPipeError):  # The process has died; the end of the pipe reports it next.
            self.connection.send(run)

    def ended(self, timeout: float | None = None) -> str:
        """Wait for the process, kill it after ``timeout`` seconds, and return an error message, or "" on success."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        code = self._process.exitcode
        return "" if code == 0 else f"its process {self._process.pid} ended with exit code {code}"


class Parent:
    """The process that collected the tests; it distributes runs and receives reports."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._groups = deque(map(deque, groups_of(session.items)))
        self._left = len(session.items)
        self._stopping = _context.Event()
        self._children: dict[Connection, Child] = {}
        self._until: float | None = session.config.option.until

    def run(self, forks: int) -> None:
        """Run all tests; after an interruption, wait until every process has stopped what it started."""
        try:
            for _ in range(forks):
                self._fork(forks)
            while self._children:
                for connection in wait(list(self._children), self._time_left()):
                    self._receive(connection, forks)  # type: ignore[arg-type]
        except BaseException:
            self._stopping.set()
            for connection in self._children:
                connection.close()
            for child in self._children.values():
                child.ended(STOP_WITHIN)
            raise

    def _time_left(self) -> float | None:
        """Return the seconds until no further test may start; None without a deadline or after it."""
        if self._until is None or self._stopping.is_set():
            return None
        left = self._until - time.time()
        if left <= 0:
            self._stopping.set()
        return max(0.0, left)

    def _fork(self, forks: int) -> None:
        child = Child(self._session, self._stopping, list(self._children))
        self._children[child.connection] = child
        child.give(self._next_run(forks))

    def _next_run(self, forks: int) -> list[int]:
        """Take tests of the first group: all of a named group, otherwise fewer as the remaining tests decrease."""
        if not self._groups or self._stopping.is_set():
            return []
        group = self._groups[0]
        size = min(len(group), MAX_RUN, max(1, self._left // (8 * forks)))
        if together(self._session.items[group[0]]):
            size = len(group)
        run = [group.popleft() for _ in range(size)]
        if not group:
            self._groups.popleft()
        self._left -= size
        return run

    def _receive(self, connection: Connection, forks: int) -> None:
        child = self._children[connection]
        try:
            message = connection.recv()
        except (EOFError, ConnectionResetError):
            del self._children[connection]
            self._bury(child, forks)
            return
        config = self._session.config
        match message:
            case RunBegun():
                child.give(self._next_run(forks))
            case Started(at):
                child.has_started, child.current = True, at
                child.todo.remove(at)
            case Reported(serialized):
                report = config.hook.pytest_report_from_serializable(config=config, data=serialized)
                config.hook.pytest_runtest_logreport(report=report)
                if report.when == "teardown":
                    child.current = None
        if self._session.shouldfail or self._session.shouldstop:
            self._stopping.set()

    def _bury(self, child: Child, forks: int) -> None:
        """Report the test at which a process died, and give its remaining tests to another process."""
        sentence = child.ended(STOP_WITHIN)
        if child.current is not None:
            item = self._session.items[child.current]
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", sentence or "no report", "call")
            self._session.config.hook.pytest_runtest_logreport(report=report)
        if child.todo and not self._stopping.is_set():
            assert child.has_started, f"A process ended before its first test: {sentence}."
            self._groups.appendleft(deque(child.todo))
            self._left += len(child.todo)
            self._fork(forks)


class Reports:
    """A plugin that sends the reports of a process to its parent."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialized = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(Reported(serialized))


def work(session: pytest.Session, connection: Connection, stopping: Event, inherited: list[Connection]) -> None:
    """Run the tests that the parent sends; tear down fixtures if the parent has died."""
    for each in inherited:
        each.close()
    plugins = session.config.pluginmanager
    # Only the parent prints.
    plugins.unregister(name="terminalreporter")
    plugins.register(Reports(session.config, connection))
    # The file with captured output is shared with the parent and its other children.
    if capture := plugins.getplugin("capturemanager"):
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    random.seed()
    try:
        for at, following in _with_next(_tests(connection)):
            last = following is None or stopping.is_set()
            connection.send(Started(at))
            session.config.hook.pytest_runtest_protocol(
                item=session.items[at], nextitem=None if last else session.items[following]
            )
            if last:
                return
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        plugins.getplugin("runner").pytest_sessionfinish(session)  # tears down all fixtures


def _tests(connection: Connection) -> Iterator[int]:
    """Yield the tests of each run."""
    run = connection.recv()
    while run:
        connection.send(RunBegun())
        yield from run
        run = connection.recv()


def _with_next(tests: Iterator[int]) -> Iterator[tuple[int, int | None]]:
    """Yield each test with the next test."""
    at = next(tests, None)
    while at is not None:
        following = next(tests, None)
        yield at, following
        at = following
