# SPDX-License-Identifier: Apache-2.0
"""The plots of the job ``report`` (extra ``zq-queue[report]``)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter

# Maximum number of queues in a plot. Queues with the most messages take precedence.
MAX_QUEUES: Final = 12
# Panels per row.
PANELS_PER_ROW: Final = 3
# Maximum number of values in a curve with markers. Without markers, a single value between zeros is invisible.
MAX_MARKERS: Final = 24
# Styles of the curves. Both curves are visible where they coincide.
SERIES: Final[dict[str, dict[str, Any]]] = {
    "posted": {"color": "tab:blue", "linewidth": 4, "alpha": 0.45, "marker": "o", "markersize": 8, "zorder": 2},
    "finished": {"color": "tab:red", "linewidth": 1.2, "marker": ".", "markersize": 6, "zorder": 3},
}
# Styles of the percentiles, largest first.
MARKS: Final[dict[str, dict[str, Any]]] = {
    "p99": {"marker": "D", "s": 90, "facecolors": "none", "edgecolors": "tab:red", "zorder": 3},
    "p95": {"marker": "s", "s": 42, "facecolors": "tab:orange", "zorder": 4},
    "p50": {"marker": "o", "s": 18, "facecolors": "black", "zorder": 5},
}
# Columns of the plot of problems.
PROBLEM_COLUMNS: Final = ("retried", "dead_lettered", "expired")
# Units of a step, by length in minutes.
UNITS: Final = {1440: "day", 60: "hour", 1: "minute"}
# Units of a time axis, by length in seconds.
TIMES: Final = {86400: "d", 3600: "h", 60: "min", 1: "s"}
# Tick positions of a time axis in seconds.
TICKS: Final = (
    *(count * size for size in (0.001, 0.01, 0.1) for count in (1, 2, 5)),
    *(count * size for size in (1, 60) for count in (1, 2, 5, 10, 20, 30)),
    *(count * 3600 for count in (1, 2, 5, 12)),
    *(count * 86400 for count in (1, 2, 5, 10, 20, 50)),
)
# Maximum number of ticks of a time axis.
MAX_TICKS: Final = 9
# Minimum duration in seconds, which is the precision of times. A logarithmic axis cannot show 0.
MIN_DURATION: Final = 0.001
Rows = Sequence[dict[str, Any]]


def draw(folder: Path, by_queue: Rows, by_step: Rows, minutes: int) -> list[Path]:
    """Draw throughput, dwell times and problems as PNG files. Return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "throughput": draw_throughput(by_queue, by_step, timedelta(minutes=minutes)),
        "dwell": draw_dwell_times(by_queue),
        "trouble": draw_problems(by_queue),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=120)
    return [folder / f"{name}.png" for name in figures]


def draw_throughput(by_queue: Rows, by_step: Rows, step: timedelta) -> Figure:
    """Draw the number of posted and finished messages per step, in a panel for each queue."""
    found = [row for row in by_queue if row["posted"] or row["finished"]]
    shown = sorted(found, key=lambda row: -row["posted"] - row["finished"])[:MAX_QUEUES]
    if not (shown and by_step):
        return create_empty_plot("No message was posted, and none has finished.")
    wide = min(PANELS_PER_ROW, len(shown))
    tall = -(-len(shown) // wide)
    figure = Figure(figsize=(11, 2.4 + 2 * tall), layout="constrained")
    figure.suptitle(f"Messages per {format_step(step)}{omission_note(found)}")
    moments = step_starts(step, [parse_time(row, "at") for row in by_step])
    panels = figure.subplots(tall, wide, sharex=True, squeeze=False).flat
    for number, (panel, row) in enumerate(zip(panels, shown, strict=False)):
        mine = {parse_time(counts, "at"): counts for counts in by_step if queue_key(counts) == queue_key(row)}
        for column, style in SERIES.items():
            values = [mine[at][column] if at in mine else 0 for at in moments]
            some = [place for place, value in enumerate(values) if value]
            panel.plot(moments, values, label=column, markevery=some if len(some) <= MAX_MARKERS else [], **style)
        panel.set_title(queue_label(row, shown), fontsize="small")
        format_axes(panel, moments, step)
        panel.set_ylabel("" if number % wide else "messages", fontsize="small")
        lowest = number + wide >= len(shown)
        panel.tick_params(labelbottom=lowest)
        panel.set_xlabel("UTC" if lowest else "", fontsize="small")
    for panel in figure.axes[len(shown) :]:
        panel.remove()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def format_axes(panel: Axes, moments: Sequence[datetime], step: timedelta) -> None:
    """Format the axes of a panel. The y axis begins below 0, so that a curve at 0 is visible."""
    upper = max(panel.get_ylim()[1], 1)
    panel.set_ylim(-upper / 30, upper)
    limits: Any = moments[0] - step, moments[-1] + step
    panel.set_xlim(*limits)
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    places = AutoDateLocator(minticks=2, maxticks=6, tz=UTC)  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(places)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(places, tz=UTC))  # type: ignore[no-untyped-call]
    panel.grid(alpha=0.3)


def step_starts(step: timedelta, found: Sequence[datetime]) -> list[datetime]:
    """Return the start times of all steps from the first to the last, including steps without messages."""
    first = min(found)
    return [first + number * step for number in range((max(found) - first) // step + 1)]


def draw_dwell_times(by_queue: Rows) -> Figure:
    """Draw the 50th, 95th and 99th percentile of the time from posting to finishing, for each queue."""
    found = [row for row in by_queue if row["p50"] is not None]
    shown = sorted(found, key=lambda row: -row["finished"])[:MAX_QUEUES]
    if not shown:
        return create_empty_plot("No message has finished.")
    figure, axes = create_row_plot(shown, f"From posting to finishing{omission_note(found)}")
    times = {name: [max(row[name], MIN_DURATION) for row in shown] for name in MARKS}
    axes.hlines(range(len(shown)), times["p50"], times["p99"], color="tab:gray", linewidth=1.5)
    for name, style in MARKS.items():
        axes.scatter(times[name], range(len(shown)), label=f"{name[1:]} % of messages", **style)
    for place, row in enumerate(shown):
        axes.text(1.01, place, format_percentiles(row), transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    low, high = min(times["p50"]) / 2, max(times["p99"]) * 2
    ticks = [seconds for seconds in TICKS if low <= seconds <= high]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(ticks[:: -(-len(ticks) // MAX_TICKS) or 1])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda seconds, _: format_duration(seconds))
    axes.set_xlabel("maximum time for this share of the messages, excluding dead letters")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=3)
    return figure


def format_percentiles(row: dict[str, Any]) -> str:
    """Format the percentiles and the number of messages. Equal percentiles are shown once."""
    alike: dict[str, list[str]] = {}
    for name in reversed(MARKS):
        alike.setdefault(format_duration(row[name]), []).append(name[1:])
    times = [f"{', '.join(names)} %: {time}" for time, names in alike.items()] if len(alike) > 1 else [*alike]
    return f"{'  '.join(times)}  ({row['finished'] - row['dead_lettered']:,})"


def draw_problems(by_queue: Rows) -> Figure:
    """Draw for each queue the numbers of messages that were claimed repeatedly, dead-lettered or expired."""
    found = [row for row in by_queue if any(row[column] for column in PROBLEM_COLUMNS)]
    shown = sorted(found, key=lambda row: -sum(row[column] for column in PROBLEM_COLUMNS))[:MAX_QUEUES]
    if not shown:
        return create_empty_plot("No message was claimed more than once, buried or expired.")
    figure, axes = create_row_plot(shown, f"Claimed more than once, buried, expired{omission_note(found)}")
    high = 0.8 / len(PROBLEM_COLUMNS)
    for number, (column, color) in enumerate(zip(PROBLEM_COLUMNS, ("tab:orange", "tab:red", "tab:gray"), strict=True)):
        places = [place + (number - 1) * high for place in range(len(shown))]
        counts = [row[column] for row in shown]
        drawn = axes.barh(places, counts, high, label=column.replace("_", " "), color=color, zorder=2)
        axes.bar_label(drawn, [f"{count:,}" if count else "" for count in counts], fontsize=8, padding=3)
    max_count = max(row[column] for row in shown for column in PROBLEM_COLUMNS)
    axes.set_xlim(0, max_count * 1.2)
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    if max_count > MAX_MARKERS:
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xlim(0, max_count * 3)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_xlabel("messages")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def create_row_plot(shown: Rows, title: str) -> tuple[Figure, Axes]:
    """Create a plot with one row per queue, from top to bottom."""
    figure = Figure(figsize=(11, 2.2 + 0.5 * len(shown)), layout="constrained")
    axes = figure.add_subplot(title=title)
    axes.set_yticks(range(len(shown)), [queue_label(row, shown) for row in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)
    return figure, axes


def create_empty_plot(sentence: str) -> Figure:
    """Create a plot without data that shows a sentence."""
    figure = Figure(figsize=(11, 2))
    figure.text(0.5, 0.5, sentence, ha="center", va="center", fontsize="large")
    return figure


def omission_note(found: Rows) -> str:
    """Return a note for the title if the plot does not show all queues, else ""."""
    return f" (top {MAX_QUEUES} of {len(found)} queues)" if len(found) > MAX_QUEUES else ""


def format_step(step: timedelta) -> str:
    """Format the length of a step: ``5 minutes``, ``hour``."""
    minutes = step // timedelta(minutes=1)
    count, unit = next((minutes // size, unit) for size, unit in UNITS.items() if minutes % size == 0)
    return unit if count == 1 else f"{count} {unit}s"


def format_duration(seconds: float) -> str:
    """Format a duration in its largest unit: ``250 ms``, ``1.5 s``, ``11 min``."""
    for size, unit in TIMES.items():
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms"


def queue_label(row: dict[str, Any], among: Rows) -> str:
    """Return the queue's label, including the project if the rows belong to several projects."""
    return queue_key(row)[1] if len({one["project"] for one in among}) == 1 else "/".join(queue_key(row))


def queue_key(row: dict[str, Any]) -> tuple[str, str]:
    return row["project"], row["queue"]


def parse_time(row: dict[str, Any], column: str) -> datetime:
    return datetime.fromisoformat(row[column])
