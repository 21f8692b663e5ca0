# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq jobs``, for stages (uncommitted messages), fencing tokens and commits of batch jobs."""

import sys
from typing import Final

import click

from zq.cli.resources import yes_option
from zq.cli.session import Group, Session, pass_session

# Number of entries per request.
PAGE: Final = 100

jobs_group = Group("jobs", help="Show stages, fences and commits of batch jobs.")


@jobs_group.command("stages")
@pass_session
def stages(session: Session) -> None:
    """List the stages (messages that wait for a commit) with the time until they expire."""
    columns = ("name", "messages", "bytes", "dropped in")
    found = session.client.stages(page=PAGE)
    session.out.rows(columns, found, lambda one: [one.name, one.messages, one.bytes, one.dropped_in])


@jobs_group.command("fences")
@pass_session
def fences(session: Session) -> None:
    """List the fences (fencing tokens) with their current epochs."""
    found = session.client.fences(page=PAGE)
    session.out.rows(("name", "epoch", "age"), found, lambda one: [one.name, one.epoch, one.age])


@jobs_group.command("commits")
@pass_session
def commits(session: Session) -> None:
    """List the last committed batch of each producer (batch job or stream)."""
    columns = ("producer", "batch", "published", "deleted", "open", "age")
    found = session.client.commits(page=PAGE)
    session.out.rows(
        columns, found, lambda one: [one.producer, one.batch, one.published, one.deleted, one.open, one.age]
    )


@jobs_group.command("drop")
@click.argument("names", nargs=-1, required=True, metavar="STAGE...")
@yes_option
@pass_session
def drop(session: Session, names: tuple[str, ...], yes: bool) -> None:
    """Delete stages (uncommitted messages). Unknown stages and stages that a commit is publishing are skipped."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Drop the stages {', '.join(names)}?", abort=True, err=True)
    for name in names:
        session.client.drop_stage(name)
        session.out.result({"name": name, "dropped": True})
