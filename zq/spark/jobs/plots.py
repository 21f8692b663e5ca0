# SPDX-License-Identifier: Apache-2.0
"""Pictures of a report (extra ``zq[report]``)."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

MOST: Final = 12
"""Queues in a picture: those with the most messages."""
Rows = Sequence[dict[str, Any]]


def draw(folder: Path, by_queue: Rows, by_hour: Rows) -> list[Path]:
    """Throughput, dwell and what went wrong, as PNG; where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = sorted(by_queue, key=lambda row: -row["posted"] - row["finished"] - row["waiting"])[:MOST]
    files = []
    for name, picture in (("throughput", throughput), ("dwell", dwell), ("trouble", trouble)):
        figure = Figure(figsize=(10, 5), layout="constrained")
        axes = figure.add_subplot()
        picture(axes, shown, by_hour)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small")
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=120)
    return files


def throughput(axes: Axes, shown: Rows, by_hour: Rows) -> None:
    """Messages of each hour: finished as lines, posted dotted."""
    for row in shown:
        mine = [hour for hour in by_hour if label(hour) == label(row)]
        when: Any = [datetime.fromisoformat(hour["hour"]) for hour in mine]
        [line] = axes.plot(when, [hour["finished"] for hour in mine], marker=".", label=label(row))
        axes.plot(when, [hour["posted"] for hour in mine], linestyle=":", color=line.get_color())
    axes.set(title="Finished (posted: dotted)", ylabel="messages per hour", ylim=(0, None))
    axes.tick_params("x", rotation=30)


def dwell(axes: Axes, shown: Rows, _by_hour: Rows) -> None:
    """Seconds between posting and finishing."""
    bars(axes, [row for row in shown if row["p50"] is not None], ("p50", "p95", "p99"))
    axes.set(title="Dwell", ylabel="seconds", yscale="symlog")


def trouble(axes: Axes, shown: Rows, _by_hour: Rows) -> None:
    """Messages that needed more than one claim, or did not finish well."""
    bars(axes, shown, ("retried", "dead_lettered", "expired"))
    axes.set(title="Retries, dead letters, expiry", ylabel="messages", yscale="symlog")


def bars(axes: Axes, rows: Rows, columns: Sequence[str]) -> None:
    """A group of bars for each queue."""
    width = 0.8 / len(columns)
    for number, column in enumerate(columns):
        places = [place + (number - (len(columns) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, [row[column] for row in rows], width, label=column)
    axes.set_xticks(range(len(rows)), [label(row) for row in rows], rotation=30, ha="right")


def label(row: dict[str, Any]) -> str:
    """Whose row it is."""
    return f"{row['project']}/{row['queue']}"
