# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report, examined through the objects that are drawn."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from tests.spark.jobs import drawn
from zq.jobs import plots, report

BEGIN = datetime(2026, 1, 1, 22, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def queue(name: str, posted: int = 0, finished: int = 0, **more: Any) -> dict[str, Any]:
    """Return the counts of a queue."""
    times = dict.fromkeys(("p50", "p95", "p99"), 1.5 if finished else None)
    trouble = dict.fromkeys(plots.PROBLEM_COLUMNS, 0)
    return {"project": "acme", "queue": name, "posted": posted, "finished": finished, **times, **trouble, **more}


def counts(name: str, *values: tuple[int, int], step: timedelta = MINUTE) -> list[dict[str, Any]]:
    """Return the numbers of posted and finished messages in each step; steps without messages are omitted."""
    rows = []
    for number, (posted, finished) in enumerate(values):
        if posted or finished:
            at = (BEGIN + number * step).isoformat()
            rows.append({"project": "acme", "queue": name, "at": at, "posted": posted, "finished": finished})
    return rows


def titles(figure: Figure) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


def test_steps_are_minutes_for_an_hour_and_hours_for_days() -> None:
    """A curve has at most 200 steps."""
    expected = {0: 1, 1: 1, 3: 1, 4: 5, 24: 15, 49: 60, 8 * 24: 60, 20 * 24: 360, 999: 1440}
    found = {
        hours: report.step_minutes([(BEGIN + timedelta(hours=number)).isoformat() for number in reversed(range(hours))])
        for hours in expected
    }
    assert found == expected
    assert all(hours * 60 / minutes <= 200 for hours, minutes in found.items())


def test_throughput_has_a_panel_for_each_queue_with_messages() -> None:
    """The queue with more messages is first. Minutes without messages are 0, and a line of zeros is visible."""
    rows = [queue("in", 9, 7), queue("in-dlq"), queue("out", 20, 20)]
    steps = [*counts("in", (5, 0), (0, 0), (4, 7)), *counts("out", *[(0, 0)] * 59, (20, 20))]
    figure = plots.draw_throughput(rows, steps, MINUTE)
    assert figure.get_suptitle() == "Messages per minute"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["posted", "finished"]
    assert titles(figure) == ["out", "in"]
    out, in_ = figure.axes
    assert [panel.get_xlabel() for panel in (out, in_)] == ["UTC", "UTC"]
    posted, finished = in_.lines
    assert [list(line.get_ydata()) for line in (posted, finished)] == [[5, 0, 4, *[0] * 57], [0, 0, 7, *[0] * 57]]
    assert list(posted.get_xdata())[::59] == [BEGIN, BEGIN + 59 * MINUTE]
    assert in_.get_xlim() == out.get_xlim()
    assert in_.get_ylim()[0] < 0


def test_throughput_shows_the_twelve_queues_with_the_most_messages() -> None:
    """The title says that others are omitted."""
    rows = [queue(f"q{number}", number) for number in range(14)]
    steps = [count for row in rows for count in counts(row["queue"], (row["posted"], 0), step=timedelta(hours=6))]
    figure = plots.draw_throughput(rows, steps, timedelta(hours=6))
    assert titles(figure) == [f"q{number}" for number in range(13, 1, -1)]
    assert figure.get_suptitle() == "Messages per 6 hours (top 12 of 13 queues)"
    assert len(plots.draw_throughput(rows[:6], steps, MINUTE).axes) == 5


def test_throughput_names_the_project_if_there_are_several() -> None:
    rows = [queue("in", 5), {**queue("in", 2), "project": "other"}]
    steps = [*counts("in", (5, 0)), {**counts("in", (2, 0))[0], "project": "other"}]
    figure = plots.draw_throughput(rows, steps, MINUTE)
    assert titles(figure) == ["acme/in", "other/in"]
    assert [panel.lines[0].get_ydata()[0] for panel in figure.axes] == [5, 2]


def test_dwell_names_each_percentile_once() -> None:
    """Equal percentiles share a label. Queues without finished messages are omitted."""
    rows = [
        queue("in", 9, 9, p50=1.5, p95=90.0, p99=7200.0),
        queue("one", 1, 1, p50=0.0, p95=0.0, p99=0.0),
        queue("some", 5, 5, dead_lettered=2, p50=2.0, p95=60.0, p99=60.0),
        queue("in-dlq", 3),
    ]
    [axes] = plots.draw_dwell_times(rows).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["in", "some", "one"]
    assert [text.get_text() for text in axes.texts] == [
        "50 %: 1.5 s  95 %: 1.5 min  99 %: 2 h  (9)",
        "50 %: 2 s  95, 99 %: 1 min  (3)",
        "0 ms  (1)",
    ]
    left, right = axes.get_xlim()
    assert 0 < left < 0.001
    assert right > 7200
    assert len(axes.get_xticklabels()) <= plots.MAX_TICKS


def test_durations_have_a_unit_that_fits() -> None:
    expected = {0.0014: "1.4 ms", 0.25: "250 ms", 1.5: "1.5 s", 90: "1.5 min", 7200: "2 h", 5 * 86400: "5 d"}
    assert {seconds: plots.format_duration(seconds) for seconds in expected} == expected


def test_trouble_has_bars_for_queues_with_trouble_only() -> None:
    """The axis is logarithmic if numbers are far apart."""
    rows = [queue("in", 9, 9, retried=1200, expired=1), queue("in-dlq", 3), queue("out", 9, 9, dead_lettered=2)]
    [axes] = plots.draw_problems(rows).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["in", "out"]
    bars = {str(group.get_label()): [bar.get_width() for bar in group] for group in axes.containers}
    assert bars == {"retried": [1200, 0], "dead lettered": [0, 2], "expired": [1, 0]}
    assert [text.get_text() for text in axes.texts] == ["1,200", "", "", "2", "1", ""]
    assert (axes.get_xscale(), axes.get_xlim()[0]) == ("symlog", 0)
    few = plots.draw_problems([queue("in", 3, 3, expired=3)]).axes[0]
    assert few.get_xscale() == "linear"
    assert {1, 2, 3} <= set(few.get_xticks())


def test_a_picture_without_data_has_a_sentence_instead_of_a_panel(tmp_path: Path) -> None:
    """The files of an earlier report are replaced anyway."""
    rows = [queue("in", 2)]
    for figure in (
        plots.draw_dwell_times(rows),
        plots.draw_problems(rows),
        plots.draw_throughput([queue("in")], [], MINUTE),
    ):
        assert not figure.axes
        assert [text.get_text()[:10] for text in figure.texts] == ["No message"]
    files = plots.draw(tmp_path, rows, counts("in", (2, 0)), 1)
    assert sorted(file.name for file in files) == drawn(tmp_path) == ["dwell.png", "throughput.png", "trouble.png"]
