# SPDX-License-Identifier: Apache-2.0
"""``zq queue list`` and ``zq topic list``: what there is, with counts.

The server's listing has no counts: each queue's are a request of their own, of which some are on their way at once.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any, Final
from uuid import uuid4

import click
from msgspec.structs import asdict

from zq.cli.named import Member, Metadata, Things, counted, pass_things
from zq.cli.output import written
from zq.cli.session import Command
from zq.cli.values import Count
from zq.client import Listed
from zq.limits import is_queue_name

AT_ONCE: Final = 8
"""Requests for counts on their way."""
AHEAD: Final = 100
"""Queues whose counts are asked for before the first of them is shown."""
COLUMNS: Final = {
    "queues": {"messages": "total", "claimed": "claimed", "oldest": "oldest", "dead letters": "dead_letters"},
    "topics": {"messages": "total", "oldest": "oldest"},
}
"""Of a table, and the members that they show."""
Row = dict[str, Any]


@click.command("list", cls=Command)
@click.option("--name", metavar="PART", help="Only those whose names hold this.")
@click.option("--with", "members", type=Member(), multiple=True, help="Only those whose metadata has this.")
@click.option("--limit", type=Count(0), default=0, help="At most so many; 0 = all.")
@click.option("-l", "--long", is_flag=True, help="A table shows metadata as well, without defaults.")
@click.option("--no-counts", is_flag=True, help="Names and metadata alone: one request for many, not one for each.")
@pass_things
def list_all(things: Things, name: str | None, members: Metadata, limit: int, long: bool, no_counts: bool) -> None:
    """List all of the project with counts, in the order of names.

    Counts are a request for each, eight at once; --no-counts spares them.
    """
    wanted = dict(members).items()
    fitting = (one for one in things.listed(name=name, detailed=True) if wanted <= dict(one.metadata or {}).items())
    found = islice(fitting, limit or None)
    columns = {"name": "name", **({} if no_counts else COLUMNS[things.kind])}
    defaults = things(uuid4().hex).metadata() if long and things.out.for_people else {}

    def cells(row: Row) -> list[object]:
        own = [chosen(row["metadata"], defaults)] if long else []
        return [*(row[member] for member in columns.values()), *own]

    rows = map(asdict, found) if no_counts else with_counts(things, found)
    things.out.rows([*columns, *(["metadata"] if long else [])], rows, cells)


def with_counts(things: Things, found: Iterator[Listed]) -> Iterator[Row]:
    """Rows with counts, in the order of the listing. A dead letter queue that is listed, too, is asked once."""
    queues = things.kind == "queues"
    with ThreadPoolExecutor(AT_ONCE, "zq-list") as pool:

        @cache
        def asked(name: str) -> Future[Row]:
            return pool.submit(lambda: counted(name, things(name).stats()))

        try:
            while part := [(one, dead_letter_queue(one) if queues else "") for one in islice(found, AHEAD)]:
                for one, dead in part:
                    asked(one.name)
                    if dead:
                        asked(dead)
                for one, dead in part:
                    left = {"dead_letters": asked(dead).result()["total"] if dead else None} if queues else {}
                    yield asked(one.name).result() | left | {"metadata": one.metadata}
        finally:
            pool.shutdown(cancel_futures=True)


def dead_letter_queue(one: Listed) -> str:
    """Its name; "" if there is none, or none that a queue could have."""
    name = (one.metadata or {}).get("_dead_letter_queue")
    return name if is_queue_name(name) else ""


def chosen(metadata: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Metadata as ``zq queue create`` takes them; without defaults."""
    own = {key: value for key, value in metadata.items() if key not in defaults or defaults[key] != value}
    return " ".join(f"{key}={written(value)}" for key, value in own.items())
