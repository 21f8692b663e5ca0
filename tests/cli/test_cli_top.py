# SPDX-License-Identifier: Apache-2.0
"""``zq top``: rates of each queue and of all queues, and keys on a terminal."""

import os
import pty
import re
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from struct import pack

import pytest

from tests.cli.conftest import Process, Zq
from tests.servers import wait_for
from zq.cli.session import Session
from zq.cli.top import SORTS, QueueMetrics, Sample, Sampler, queue_metrics, sort_metrics, total_metrics
from zq.client import Client, Stats


class Screen:
    """A terminal with a number of lines, and everything that was shown on it."""

    def __init__(self, lines: int) -> None:
        self.there, self.here = pty.openpty()
        ioctl(self.here, termios.TIOCSWINSZ, pack("HHHH", lines, 100, 0, 0))
        os.set_blocking(self.there, False)
        self.modes = termios.tcgetattr(self.here)
        self.shown = ""

    def press(self, key: str) -> None:
        os.write(self.there, key.encode())

    def shows(self, pattern: str) -> None:
        """Wait until new output matches the pattern."""
        wait_for(lambda: re.search(pattern, self._read()), 60, pattern)
        self.shown = ""

    def _read(self) -> str:
        with suppress(BlockingIOError):
            self.shown += os.read(self.there, 65_536).decode()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)


@contextmanager
def watched(zq: Zq, *words: str, lines: int = 24) -> Iterator[tuple[Screen, Process]]:
    """Run ``zq top`` on a terminal, and check that the terminal's modes are restored."""
    screen = Screen(lines)
    ends = {"stdin": screen.here, "stdout": screen.here, "stderr": screen.here}
    with zq.start("top", "--interval", "0.3", *words, **ends) as process:
        yield screen, process
    assert termios.tcgetattr(screen.here) == screen.modes
    os.close(screen.here)
    os.close(screen.there)


def sampler_of(zq: Zq, limit: int = 100, sort: str = "messages") -> Sampler:
    return Sampler(Session({"url": zq.env["ZQ_URL"], "project": zq.project}), None, limit, sort)


def test_rates_say_what_came_and_what_left(zq: Zq) -> None:
    """Equal rates in and out are shown although the depth stays; the first sample has no rates."""
    zq("post", "jobs", given="1\n" * 40)
    zq("queue", "create", "idle")
    sampler = sampler_of(zq)
    first = {row.name: row for row in sampler.sample()}
    assert (first["jobs"].total, first["jobs"].in_rate, first["jobs"].change) == (40, None, None)
    zq("post", "jobs", given="1\n" * 20)
    zq("pop", "jobs", "--limit", "20")
    jobs, idle = sorted(sampler.sample(), key=lambda row: row.name != "jobs")
    assert jobs.in_rate == jobs.out_rate
    assert jobs.in_rate is not None
    assert jobs.in_rate > 0
    assert (idle.in_rate, idle.out_rate, idle.change) == (0, 0, 0)
    assert (jobs.total, jobs.change) == (40, 0)
    zq("pop", "jobs", "--limit", "10")
    jobs, _ = sorted(sampler.sample(), key=lambda row: row.name != "jobs")
    assert (jobs.in_rate, jobs.out_rate) == (0, -(jobs.change or 0))


@pytest.mark.parametrize(
    ("before", "now", "rates"),
    [(None, None, (None, None, 2)), (None, 5, (None, None, 2)), (9, 5, (None, None, 2)), (5, 15, (5, 3, 2))],
)
def test_store_without_counters_shows_only_the_change(
    before: int | None, now: int | None, rates: tuple[float | None, ...]
) -> None:
    """There are no rates on Redis, after a queue was created again, and after a power failure reset the counter."""
    then = Sample(Stats(claimed=0, free=6, total=6, entered=before), 100.0)
    row = queue_metrics("jobs", Sample(Stats(claimed=0, free=10, total=10, entered=now), 102.0), then)
    assert (row.in_rate, row.out_rate, row.change) == rates


def test_without_a_terminal_it_is_one_look_with_rates(zq: Zq) -> None:
    """Without a terminal the output is a JSON line for each queue, sorted and limited by the options."""
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        zq("post", name, given="1\n" * count)
    by_messages = zq("top", "--interval", "0.1")
    assert [(row["name"], row["total"], row["in/s"], row["out/s"]) for row in by_messages] == [
        ("b", 3, 0, 0),
        ("c", 2, 0, 0),
        ("a", 1, 0, 0),
    ]
    assert by_messages[0].keys() >= {"free", "claimed", "oldest", "newest", "change/s"}
    by_name = zq("top", "--interval", "0.1", "--sort", "name", "--rows", "2", "--looks", "2")
    assert [row["name"] for row in by_name] == ["a", "b", "a", "b"]
    shown = zq.run("top", "--interval", "0.1", "--table").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["name", "3", "b", "c", "a"]


def test_the_sum_is_of_all_that_were_looked_at(zq: Zq) -> None:
    """The sum's name shows whether there are more queues."""
    for name in "abc":
        zq("post", name, given="1\n2\n")
    sampler = sampler_of(zq, limit=2)
    total = total_metrics(sampler.sample(), sampler.more)
    assert (total.name, total.total, total.free, total.claimed, total.in_rate) == ("first 2 queues", 4, 4, 0, None)
    total = total_metrics(sampler.sample(), sampler.more)
    assert (total.in_rate, total.out_rate, total.change) == (0, 0, 0)
    assert total_metrics([], more=False) == QueueMetrics("0 queues", 0, 0, 0)


def test_limited_list_has_the_first_queues_of_the_order(zq: Zq) -> None:
    """The order is that of the server's counts, not that of the names."""
    for name, count in (("a", 1), ("b", 2), ("c", 3)):
        zq("post", name, given="1\n" * count)
    counted = Client(zq.env["ZQ_URL"], zq.project)
    wait_for(lambda: [row.ready for row in counted.queue_figures(sort="ready")] == [3, 2, 1], 60, "counted")
    assert [row.name for row in sampler_of(zq, limit=2).sample()] == ["c", "b"]
    assert [row.name for row in sampler_of(zq, limit=2, sort="name").sample()] == ["a", "b"]
    counted.close()


def test_unknown_numbers_are_last() -> None:
    """Numbers are sorted from the largest, then by name; unknown numbers are last."""
    rows = [
        QueueMetrics("c", 1, 0, 0),
        QueueMetrics("b", 5, 0, 0, in_rate=2),
        QueueMetrics("a", 1, 0, 0, oldest=9, in_rate=3, out_rate=1),
    ]
    names = {sort: "".join(row.name for row in sort_metrics(rows, sort)) for sort in SORTS}
    assert names == {"name": "abc", "messages": "bac", "in": "abc", "out": "abc", "oldest": "abc"}


def test_keys_change_the_order_and_end_it(zq: Zq) -> None:
    """Posted messages appear as a rate, and the table has at most as many queues as fit."""
    for name in "abcdefgh":
        zq("queue", "create", name)
    zq("post", "h", given="1\n" * 50)
    with watched(zq, lines=8) as (screen, process):
        screen.shows(r"8 queues +50 +0\b[^\n]*\n[^\n]*h +50[^$]*4 of 8 by messages\. Press n name")
        screen.press("n")
        screen.shows(r"8 queues[^\n]*\n[^\n]*a +0[^$]*4 of 8 by name\.")
        screen.press("x")
        zq("post", "a", given="1\n" * 5)
        screen.shows(r"a +5 +0 +[0-9.]*[1-9][0-9.]* +0\.0 +[0-9.]+ ")
        screen.press("i")
        screen.shows(r"by in\.")
        screen.press("q")
        assert process.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(zq: Zq, number: int) -> None:
    """The terminal echoes keys again."""
    with watched(zq) as (screen, process):
        screen.shows("0 queues")
        process.send_signal(number)
        assert process.wait(60) == 130


def test_on_a_terminal_it_may_end_by_itself(zq: Zq) -> None:
    """``zq top`` ends after ``--looks`` samples with rates, or after a single sample with ``--once``."""
    zq("post", "jobs", "1")
    with watched(zq, "--looks", "2") as (screen, process):
        screen.shows(r"jobs +1 +0 +0\.0 +0\.0 +0\.0 ")
        assert process.wait(60) == 0
    with watched(zq, "--once") as (screen, process):
        screen.shows(r"1 queue +1 +0 +0\.0")
        assert process.wait(60) == 0
        assert "Press" not in screen.shown


def test_a_paused_queue_is_marked() -> None:
    """The first column shows what is paused."""
    shown = [QueueMetrics("jobs", 0, 0, 0, paused=paused).shown_name for paused in (None, "claims", "posts", "all")]
    assert shown == ["jobs", "jobs (claims paused)", "jobs (posts paused)", "jobs (paused)"]
