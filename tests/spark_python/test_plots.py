# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report: what is in them, by the objects that are drawn."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from tests.spark.jobs import drawn
from zq.spark.jobs import plots, report

BEGIN = datetime(2026, 1, 1, 22, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def queue(name: str, posted: int = 0, finished: int = 0, **more: Any) -> dict[str, Any]:
    """Of a report."""
    times = dict.fromkeys(("p50", "p95", "p99"), 1.5 if finished else None)
    trouble = dict.fromkeys(plots.TROUBLE, 0)
    return {"project": "acme", "queue": name, "posted": posted, "finished": finished, **times, **trouble, **more}


def counts(name: str, *values: tuple[int, int], step: timedelta = MINUTE) -> list[dict[str, Any]]:
    """Messages that were posted and that finished in each of the steps from the beginning, but for those without."""
    rows = []
    for number, (posted, finished) in enumerate(values):
        if posted or finished:
            at = (BEGIN + number * step).isoformat()
            rows.append({"project": "acme", "queue": name, "at": at, "posted": posted, "finished": finished})
    return rows


def titles(figure: Figure) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


@pytest.mark.parametrize(
    ("hours", "minutes"),
    [(0, 1), (1, 1), (3, 1), (4, 5), (24, 15), (49, 60), (8 * 24, 60), (20 * 24, 360), (999, 1440)],
)
def test_steps_follow_the_time_that_is_shown(hours: int, minutes: int) -> None:
    """Minutes for an hour, hours for days: never so many that a curve is a block, nor so few that it is a dot."""
    found = [(BEGIN + timedelta(hours=number)).isoformat() for number in range(hours)]
    assert report.minutes_of(found[::-1]) == minutes
    assert hours < 1 or hours * 60 / minutes <= 200


def test_an_hour_is_drawn_minute_by_minute() -> None:
    """Each queue with messages has a panel, an idle dead letter queue none. Minutes in which nothing happened are 0."""
    rows = [queue("in", 9, 7), queue("in-dlq"), queue("out", 20, 20)]
    steps = [*counts("in", (5, 0), (0, 0), (4, 7)), *counts("out", *[(0, 0)] * 59, (20, 20))]
    figure = plots.throughput(rows, steps, MINUTE)
    assert figure.get_suptitle() == "Messages per minute"
    assert titles(figure) == ["out", "in"]  # the one with more messages first
    out, in_ = figure.axes
    assert [panel.get_xlabel() for panel in (out, in_)] == ["UTC", "UTC"]
    posted, finished = in_.lines
    assert [list(line.get_ydata()) for line in (posted, finished)] == [[5, 0, 4, *[0] * 57], [0, 0, 7, *[0] * 57]]
    assert list(posted.get_xdata())[::59] == [BEGIN, BEGIN + 59 * MINUTE]
    assert in_.get_xlim() == out.get_xlim()
    assert in_.get_ylim()[0] < 0  # so that a line of zeros is seen
    assert all(tick == int(tick) for tick in in_.get_yticks())
    assert all(line.get_visible() for line in in_.get_ygridlines())


def test_few_values_have_marks_and_many_have_none() -> None:
    """A single message is no more than a mark; hundreds of marks would hide the line."""
    figure = plots.throughput([queue("in", 1, 1)], counts("in", (1, 1)), MINUTE)
    for line in figure.axes[0].lines:
        assert (line.get_markevery(), line.get_marker() in "o.") == ([0], True)
    many = [(1, 1)] * 100
    figure = plots.throughput([queue("in", 100, 1)], counts("in", *many), MINUTE)
    assert [line.get_markevery() for line in figure.axes[0].lines] == [[], []]
    left, right = figure.axes[0].get_xlim()
    assert right - left == pytest.approx(101 / 1440)


def test_both_series_are_seen_where_they_are_the_same() -> None:
    """What is beneath is wider and pale, with larger marks, and of another colour."""
    figure = plots.throughput([queue("in", 3, 3)], counts("in", (1, 1), (2, 2)), MINUTE)
    below, above = sorted(figure.axes[0].lines, key=lambda line: line.get_zorder())
    assert [below.get_label(), above.get_label()] == ["posted", "finished"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["posted", "finished"]
    assert below.get_linewidth() > 2 * above.get_linewidth()
    assert below.get_markersize() > above.get_markersize()
    assert below.get_alpha() < 0.6
    assert to_rgba(below.get_color()) != to_rgba(above.get_color())


def test_twelve_queues_have_room() -> None:
    """Those with the most messages; that others are left out is told. No panel is empty."""
    rows = [queue(f"q{number}", number) for number in range(14)]
    steps = [count for row in rows for count in counts(row["queue"], (row["posted"], 0), step=timedelta(hours=6))]
    figure = plots.throughput(rows, steps, timedelta(hours=6))
    assert titles(figure) == [f"q{number}" for number in range(13, 1, -1)]
    assert figure.get_suptitle() == "Messages per 6 hours (the 12 queues with the most of 13)"
    figure = plots.throughput(rows[:6], steps, MINUTE)
    assert len(figure.axes) == 5
    assert [panel.get_xlabel() for panel in figure.axes] == ["", "", "UTC", "UTC", "UTC"]


def test_dwell_is_a_line_from_the_median_to_the_slowest() -> None:
    """With a mark for each percentile, smaller ones above larger ones; said once where they are the same."""
    rows = [
        queue("in", 9, 9, p50=1.5, p95=90.0, p99=7200.0),
        queue("one", 1, 1, p50=0.0, p95=0.0, p99=0.0),
        queue("some", 5, 5, dead_lettered=2, p50=2.0, p95=60.0, p99=60.0),
        queue("in-dlq", 3),
    ]
    figure = plots.dwell(rows)
    [axes] = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["in", "some", "one"]
    assert [text.get_text() for text in axes.texts] == [
        "50 %: 1.5 s  95 %: 1.5 min  99 %: 2 h  (9)",
        "50 %: 2 s  95, 99 %: 1 min  (3)",
        "0 ms  (1)",
    ]
    marks = {mark.get_label(): mark for mark in axes.collections if mark.get_label().endswith("messages")}
    assert [*marks] == ["99 % of messages", "95 % of messages", "50 % of messages"]
    sizes = [mark.get_sizes()[0] for mark in marks.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert [mark.get_zorder() for mark in marks.values()] == [3, 4, 5]
    left, right = axes.get_xlim()
    assert 0 < left < 0.001
    assert right > 7200
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    assert {"1 ms", "1 s", "1 min"} <= set(ticks)
    assert len(ticks) <= plots.MOST_TICKS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0014, "1.4 ms"), (0.25, "250 ms"), (1.5, "1.5 s"), (90, "1.5 min"), (7200, "2 h"), (5 * 86400, "5 d")],
)
def test_durations_are_shown_in_units_that_fit(seconds: float, text: str) -> None:
    """Three figures of them."""
    assert plots.duration(seconds) == text


def test_trouble_has_bars_for_queues_that_had_some() -> None:
    """No room for those without, as a dead letter queue that nobody reads."""
    rows = [queue("in", 9, 9, retried=1200, expired=1), queue("in-dlq", 3), queue("out", 9, 9, dead_lettered=2)]
    figure = plots.trouble(rows)
    [axes] = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["in", "out"]
    told = {str(bars.get_label()): [bar.get_width() for bar in bars] for bars in axes.containers}
    assert told == {"retried": [1200, 0], "dead lettered": [0, 2], "expired": [1, 0]}
    assert [text.get_text() for text in axes.texts] == ["1,200", "", "", "2", "1", ""]
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("symlog", 0)
    few = plots.trouble([queue("in", 3, 3, expired=3)]).axes[0]
    assert few.get_xscale() == "linear"
    assert {1, 2, 3} <= set(few.get_xticks())


def test_what_there_is_nothing_to_show_of_is_said(tmp_path: Path) -> None:
    """No panel without a curve, no axis without a bar; files of an earlier report are replaced all the same."""
    rows = [queue("in", 2)]
    sentences = {
        "dwell": plots.dwell(rows),
        "trouble": plots.trouble(rows),
        "throughput": plots.throughput([queue("in")], [], MINUTE),
    }
    for figure in sentences.values():
        assert not figure.axes
        assert [text.get_text()[:10] for text in figure.texts] == ["No message"]
    assert plots.throughput(rows, counts("in", (2, 0)), MINUTE).axes[0].lines[1].get_ydata() == [0]
    files = plots.draw(tmp_path, rows, counts("in", (2, 0)), 1)
    assert sorted(file.name for file in files) == drawn(tmp_path) == ["dwell.png", "throughput.png", "trouble.png"]


def test_a_queue_is_named_with_its_project_where_there_are_several() -> None:
    """Else without."""
    rows = [queue("in", 5), {**queue("in", 2), "project": "other"}]
    steps = [*counts("in", (5, 0)), {**counts("in", (2, 0))[0], "project": "other"}]
    assert titles(plots.throughput(rows, steps, MINUTE)) == ["acme/in", "other/in"]
    assert math.isclose(plots.throughput(rows, steps, MINUTE).axes[1].lines[0].get_ydata()[0], 2)
