# SPDX-License-Identifier: Apache-2.0
"""``zq health`` and ``zq top``: how a server and its queues are doing."""

import time
from itertools import islice
from typing import Any, Final

import click
from rich.live import Live
from rich.table import Table

from zq.cli.failures import Failure, exit_code, sentence
from zq.cli.named import FIGURES, counted
from zq.cli.output import console, table
from zq.cli.session import Command, Session, pass_session
from zq.cli.values import Count, Seconds
from zq.errors import Unavailable, ZqError

COLUMNS: Final = (*FIGURES, "change/s")


@click.command("health", cls=Command)
@pass_session
def health(session: Session) -> None:
    """Ask the server and its store for a sign of life; exit code 7 if there is none."""
    begun = time.perf_counter()
    try:
        session.client.ping()
    except ZqError as error:
        raise Failure(sentence(error), exit_code(Unavailable())) from error
    took = time.perf_counter() - begun
    session.out.thing({"url": session.connection.place, "status": "ok", "milliseconds": round(took * 1000, 1)})


class Looks:
    """Figures of queues, and how quickly they change from one look to the next."""

    def __init__(self, session: Session, part: str | None, limit: int) -> None:
        self._session = session
        self._part = part
        self._limit = limit
        self._before: dict[str, tuple[int, float]] = {}

    def take(self) -> list[dict[str, Any]]:
        """A row for each queue, the fullest first."""
        rows = []
        for listed in islice(self._session.client.queues(name=self._part), self._limit):
            row = counted(listed.name, self._session.queue(listed.name).stats())
            rows.append(row | {"change/s": self._change(listed.name, row["total"])})
        return sorted(rows, key=lambda row: -row["total"])

    def _change(self, name: str, total: int) -> float | None:
        now = time.monotonic()
        was, then = self._before.get(name, (total, None))
        self._before[name] = (total, now)
        return None if then is None else round((total - was) / (now - then), 1)


def drawn(rows: list[dict[str, Any]]) -> Table:
    """As a table."""
    return table(COLUMNS, ([row[column] for column in COLUMNS] for row in rows))


@click.command("top", cls=Command)
@click.option("--name", metavar="PART", help="Only queues whose names hold this.")
@click.option("--limit", type=Count(1), default=50, help="Of so many queues, by name; 50.")
@click.option("--interval", type=Seconds(0.1), default=2.0, metavar="SECONDS", help="Between looks; 2.")
@click.option("--looks", type=Count(1), help="End after so many; else when interrupted.")
@pass_session
def top(session: Session, name: str | None, limit: int, interval: float, looks: int | None) -> None:
    """Watch queues: depth, age of the oldest message in seconds, how quickly they grow or shrink."""
    session.patient = True
    taken, rounds = Looks(session, name, limit), 0
    if not session.out.for_people:
        while looks is None or rounds < looks:
            time.sleep(interval if rounds else 0)
            for row in taken.take():
                session.out.line(row)
            rounds += 1
        return
    with Live(drawn(taken.take()), console=console(), auto_refresh=False) as live:
        while looks is None or (rounds := rounds + 1) < looks:
            time.sleep(interval)
            live.update(drawn(taken.take()), refresh=True)
