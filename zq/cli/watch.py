# SPDX-License-Identifier: Apache-2.0
"""``zq health`` and ``zq top``: how a server and its queues are doing."""

import sys
import time
from itertools import count

import click

from zq.cli.failures import Failure, exit_code, sentence
from zq.cli.keyboard import keyboard
from zq.cli.looks import KEYS, SORTS, Looks, drawn, ordered
from zq.cli.output import console
from zq.cli.session import Command, Session, pass_session
from zq.cli.values import Count, Seconds
from zq.errors import Unavailable, ZqError


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


@click.command("top", cls=Command)
@click.option("--name", metavar="PART", help="Only queues whose names hold this.")
@click.option("--sort", type=click.Choice([*SORTS]), default="messages", help="What comes first; messages.")
@click.option("--rows", type=Count(1), help="Show so many queues; else as many as fit, as JSON all.")
@click.option("--limit", type=Count(1), default=200, help="Look at so many queues, by name; 200.")
@click.option("--interval", type=Seconds(0.1), default=2.0, metavar="SECONDS", help="Between looks; 2.")
@click.option("--looks", type=Count(1), help="End after so many; else when interrupted, without a terminal after one.")
@click.option("--once", is_flag=True, help="Show one look, and end.")
@pass_session
def top(
    session: Session,
    name: str | None,
    sort: str,
    rows: int | None,
    limit: int,
    interval: float,
    looks: int | None,
    once: bool,
) -> None:
    """Watch queues: depth, age of the oldest message, and how many messages come and go in a second.

    Rates are those since the look before, one interval ago. On a terminal keys change the order.
    """
    session.patient = True
    taken = Looks(session, name, limit)
    if session.out.for_people and sys.stdout.isatty() and not once:
        watch(taken, sort, rows, interval, looks)
        return
    taken.take()
    for _ in range(1 if once or looks is None else looks):
        time.sleep(interval)
        found = taken.take()
        if session.out.for_people:
            console().print(drawn(found, taken.more, sort, rows, keys=False))
            continue
        for row in ordered(found, sort)[:rows]:
            session.out.line(row)


def watch(taken: Looks, sort: str, rows: int | None, interval: float, looks: int | None) -> None:
    """Draw one look over the other, the first one before there are rates; what is pressed changes the order."""
    from rich.live import Live

    with keyboard() as pressed, Live(console=console(), auto_refresh=False) as live:
        for number in count():
            found = taken.take()
            live.update(drawn(found, taken.more, sort, rows, keys=True), refresh=True)
            if number == looks:
                return
            until = time.monotonic() + interval
            while (left := until - time.monotonic()) > 0:
                key = pressed(left)
                if key == "q":
                    return
                if key in KEYS:
                    sort = KEYS[key]
                    live.update(drawn(found, taken.more, sort, rows, keys=True), refresh=True)
