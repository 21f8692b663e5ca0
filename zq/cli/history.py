# SPDX-License-Identifier: Apache-2.0
"""Commands for dead letters, history and audit trail: ``zq dlq``, ``zq history``, ``zq replay`` and ``zq audit``."""

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import click
import msgspec
from msgspec.structs import asdict

from zq.cli.failures import RESOURCE_ERRORS, UnreadableResources
from zq.cli.messages import Ids, limit_option, queue_argument
from zq.cli.names import check_not_missing, name_argument
from zq.cli.output import body_text
from zq.cli.param_types import Count, Moment
from zq.cli.progress import progress_bar
from zq.cli.resources import STATS_COLUMNS, stats_row
from zq.cli.session import Command, Group, Session, pass_session
from zq.client import FinishedMessage, Message, Queue
from zq.errors import NotFound

# Number of dead letters to move per request. The progress bar advances after each request.
REDRIVE_BATCH: Final = 1000
# Type of options that take a time.
MOMENT: Final = Moment(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"])
since_option = click.option(
    "--since", type=MOMENT, help="Earliest finish time. Without an offset such as +00:00, this is local time."
)
until_option = click.option("--until", type=MOMENT, help="Latest finish time (exclusive).")
# Number of audit entries per request.
AUDIT_PAGE: Final = 100
# Columns of the audit table.
AUDIT_COLUMNS: Final = (
    "time",
    "project",
    "credential",
    "method",
    "route",
    "object",
    "messages",
    "outcome",
    "request_id",
)

dlq_group = Group("dlq", help="Manage dead letters: messages that were claimed too often or buried.")


def find_dead_letter_queue(session: Session, queue: str) -> Queue:
    """Return the dead-letter queue of ``queue``.

    If ``queue`` has no dead-letter queue but is itself a dead-letter queue, return ``queue``. Otherwise, raise
    ``NotFound``.
    """
    handle = session.queue(queue)
    named = handle.metadata().get("_dead_letter_queue")
    if isinstance(named, str):
        return session.queue(named)
    some = next(handle.list(claimed=True, delayed=True, page=1), None)
    if (some is not None and some.origin) or any(session.client.queues(_dead_letter_queue=queue)):
        return handle
    session.check_exists(queue)
    raise NotFound(f"{queue} has no dead-letter queue and is not a dead-letter queue.")


@dlq_group.command("list")
@name_argument("queue", "queues", required=False)
@limit_option(100, ", 0 = all")
@pass_session
def list_dead(session: Session, queue: str | None, limit: int) -> None:
    """List the dead letters of QUEUE. Without QUEUE, count the dead letters of each queue."""
    if queue is None:
        unread = UnreadableResources()
        rows = islice(dead_letter_counts(session, unread), limit or None)
        session.out.rows(("dead letters of", *STATS_COLUMNS), rows, lambda row: list(row.values()))
        unread.check()
        return
    columns = ("id", "origin", "claims", "reason", "body")
    found = islice(find_dead_letter_queue(session, queue).list(claimed=True, delayed=True), limit or None)
    session.out.rows(columns, found, dead_letter_cells)


def dead_letter_cells(message: Message) -> list[object]:
    return [message.id, message.origin, message.origin_claim_count, message.reason, body_text(message)]


def dead_letter_counts(session: Session, unread: UnreadableResources) -> Iterator[dict[str, Any]]:
    """Yield the message counts of each dead-letter queue, and record in ``unread`` the queues that cannot be read."""
    for listed in session.client.queues(detailed=True):
        dead = (listed.metadata or {}).get("_dead_letter_queue")
        if not isinstance(dead, str):
            continue
        try:
            counts = session.queue(dead).stats()
        except RESOURCE_ERRORS as error:
            unread.add(f"{dead}, which has the dead letters of {listed.name},", error)
        else:
            yield {"queue": listed.name, **stats_row(dead, counts)}


@dlq_group.command("redrive")
@queue_argument
@click.option("--to", "target", metavar="QUEUE", help="Target queue (default: each message's original queue).")
@click.option("--limit", type=Count(1), help="Maximum number of messages (default: all that are present at the start).")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Id of a message to move; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only show how many messages would be moved, by origin queue.")
@pass_session
def redrive(session: Session, queue: str, target: str | None, limit: int | None, ids: Ids, dry_run: bool) -> None:
    """Move the dead letters of QUEUE back to their origin queues."""
    if ids and limit:
        raise click.UsageError("Give either --id or --limit.")
    dead = find_dead_letter_queue(session, queue)
    if dry_run:
        expected = dead.redrive_dry_run(target, limit=limit, ids=ids or None)
        session.out.result({"queue": dead.name, **asdict(expected)})
        return
    if ids:
        done = [dead.redrive(target, ids=ids[at : at + REDRIVE_BATCH]) for at in range(0, len(ids), REDRIVE_BATCH)]
        lost = [id for part in done for id in part.lost]
        moved = sum(part.moved for part in done)
        session.out.result({"queue": dead.name, "moved": moved, "remaining": dead.stats().total, "lost": lost})
        return
    _redrive_oldest(session, queue, dead, target, limit)


def _redrive_oldest(session: Session, queue: str, dead: Queue, target: str | None, limit: int | None) -> None:
    total = dead.stats().free
    total = min(total, limit or total)
    moved = 0
    with progress_bar(f"dead letters of {queue}", total) as bar:
        while moved < total:
            done = dead.redrive(target, limit=min(REDRIVE_BATCH, total - moved))
            moved += done.moved
            bar(moved, moved)
            if not done.moved:
                break
    session.out.result({"queue": dead.name, "moved": moved, "remaining": dead.stats().total})


@click.command("history", cls=Command)
@queue_argument
@since_option
@until_option
@click.option("--living", is_flag=True, help="Include unfinished messages, and sort by time of posting.")
@limit_option(100, ", 0 = all")
@pass_session
def history(
    session: Session, queue: str, since: datetime | None, until: datetime | None, living: bool, limit: int
) -> None:
    """List the finished messages of a queue. The queue must keep a history."""
    found = session.queue(queue).history(since=since, until=until, living=living)
    session.out.rows(
        ("id", "finished", "outcome", "body"),
        check_not_missing(session, queue, islice(found, limit or None)),
        history_cells,
    )


def history_cells(message: FinishedMessage) -> list[object]:
    finished = f"{message.finished.astimezone():%Y-%m-%d %H:%M:%S}" if message.finished else ""
    return [message.id, finished, message.outcome, body_text(message)]


@click.command("replay", cls=Command)
@queue_argument
@click.argument("messages", nargs=-1, metavar="[ID]...")
@since_option
@until_option
@click.option("--limit", type=Count(1), help="Maximum number of messages.")
@click.option("--dry-run", is_flag=True, help="Only show how many copies would be posted.")
@pass_session
def replay(
    session: Session,
    queue: str,
    messages: Ids,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    dry_run: bool,
) -> None:
    """Post copies of finished messages, selected by id or by time."""
    if bool(messages) == bool(since or until):
        raise click.UsageError("Select messages either by ID or by time (--since, --until), not both.")
    handle = session.queue(queue)
    if dry_run:
        expected = handle.replay_dry_run(messages or None, since=since, until=until, limit=limit)
        session.out.result({"queue": queue, **asdict(expected)})
        return
    copied = handle.replay(messages or None, since=since, until=until, limit=limit)
    if not copied:
        session.check_exists(queue)
    session.out.result({"queue": queue, "replayed": copied})


@click.command("audit", cls=Command)
@click.option(
    "--since", type=MOMENT, help="Earliest time of a change. Without an offset such as +00:00, this is local time."
)
@limit_option(100, ", 0 = all")
@pass_session
def audit(session: Session, since: datetime | None, limit: int) -> None:
    """List the audit log: changes and deletions, newest first, with the credentials that made them."""
    found = session.client.audit(since=since, page=min(limit or AUDIT_PAGE, AUDIT_PAGE))
    session.out.rows(AUDIT_COLUMNS, map(msgspec.to_builtins, islice(found, limit or None)), audit_cells)


def audit_cells(entry: dict[str, Any]) -> list[object]:
    """Return the table row of an audit entry, with its time converted to local time."""
    local = f"{datetime.fromisoformat(entry['time']).astimezone():%Y-%m-%d %H:%M:%S}"
    return [local, *(entry.get(name) for name in AUDIT_COLUMNS[1:])]
