# SPDX-License-Identifier: Apache-2.0
"""Pictures of a report (extra ``zq-queue[report]``)."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

MOST: Final = 12
"""Queues in a picture: those with the most messages."""
WIDE: Final = 3
"""Panels beside each other."""
FEW: Final = 48
"""Hours up to which each is marked."""
HOUR: Final = timedelta(hours=1)
Rows = Sequence[dict[str, Any]]


def draw(folder: Path, by_queue: Rows, by_hour: Rows) -> list[Path]:
    """Throughput, dwell and what went wrong, as PNG; where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = sorted(by_queue, key=lambda row: -row["posted"] - row["finished"] - row["waiting"])[:MOST]
    files = []
    for name, picture in (("throughput", throughput), ("dwell", dwell), ("trouble", trouble)):
        figure = Figure(figsize=(11, 5), layout="constrained")
        picture(figure, shown, by_hour)
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=120)
    return files


def throughput(figure: Figure, shown: Rows, by_hour: Rows) -> None:
    """A panel for each queue: messages of each hour that were posted, and that finished."""
    figure.suptitle("Messages per hour")
    wide = min(WIDE, len(shown)) or 1
    tall = -(-len(shown) // wide) or 1
    figure.set_size_inches(11, 2 + 2 * tall)
    panels = figure.subplots(tall, wide, sharex=True, squeeze=False).flat
    hours = every_hour([datetime.fromisoformat(row["hour"]) for row in by_hour])
    for number, (panel, row) in enumerate(zip(panels, shown, strict=False)):
        mine = {datetime.fromisoformat(hour["hour"]): hour for hour in by_hour if home(hour) == home(row)}
        for column, style in (("posted", ":"), ("finished", "-")):
            counts = [mine[hour][column] if hour in mine else 0 for hour in hours]
            panel.plot(hours, counts, style, marker="." if len(hours) <= FEW else "", label=column)
        panel.set_title(label(row, shown), fontsize="small")
        panel.tick_params(labelbottom=number + wide >= len(shown))
        dress(panel, hours)
    for panel in figure.axes[len(shown) :]:
        panel.set_visible(False)
    if shown:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)


def dress(panel: Axes, hours: Sequence[datetime]) -> None:
    """Whole numbers from 0, and short moments."""
    panel.set_ylim(0, max(panel.get_ylim()[1], 1))
    if hours:
        limits: Any = hours[0] - HOUR, hours[-1] + HOUR
        panel.set_xlim(*limits)
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    places = AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]
    panel.xaxis.set_major_locator(places)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(places))  # type: ignore[no-untyped-call]


def every_hour(found: Sequence[datetime]) -> list[datetime]:
    """From the first to the last; where nothing is told, nothing happened."""
    if not found:
        return []
    first = min(found)
    return [first + number * HOUR for number in range((max(found) - first) // HOUR + 1)]


def dwell(figure: Figure, shown: Rows, _by_hour: Rows) -> None:
    """Seconds between posting and finishing."""
    known = [row for row in shown if row["p50"] is not None]
    axes = bars(figure, known, ("p50", "p95", "p99"))
    axes.set(title="From posting to finishing: within so long for 50, 95 and 99 % of messages", ylabel="seconds")


def trouble(figure: Figure, shown: Rows, _by_hour: Rows) -> None:
    """Messages that needed more than one claim, or did not finish well."""
    axes = bars(figure, shown, ("retried", "dead_lettered", "expired"))
    axes.set(title="Claimed more than once, buried, expired", ylabel="messages")


def bars(figure: Figure, rows: Rows, columns: Sequence[str]) -> Axes:
    """A group of bars for each queue, with their figures."""
    axes = figure.add_subplot()
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        places = [place + (number - (len(columns) - 1) / 2) * width for place in range(len(rows))]
        drawn = axes.bar(places, [row[column] for row in rows], width, label=column.replace("_", " "))
        texts = [f"{row[column]:,.3g}" if row[column] < 1000 else f"{row[column]:,.0f}" for row in rows]
        axes.bar_label(drawn, [text if text != "0" else "" for text in texts], fontsize=7, padding=1, rotation=90)
    axes.set_xticks(
        range(len(rows)), [label(row, rows) for row in rows], rotation=30, ha="right", rotation_mode="anchor"
    )
    axes.set_yscale("symlog")
    most = max((row[column] for row in rows for column in columns), default=0)
    axes.set_ylim(0, max(most, 1) * 4)
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(columns))
    return axes


def label(row: dict[str, Any], among: Rows) -> str:
    """Whose row it is; without the project if all are of one."""
    return home(row)[1] if len({one["project"] for one in among}) == 1 else "/".join(home(row))


def home(row: dict[str, Any]) -> tuple[str, str]:
    """Project and queue."""
    return row["project"], row["queue"]
