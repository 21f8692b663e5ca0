# SPDX-License-Identifier: Apache-2.0
"""The command ``zq apply``, and the export of a project's settings as a YAML file."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from zq.cli.declared.changes import Change, count, lines
from zq.cli.declared.declaration import Declaration, read_declaration
from zq.cli.declared.document import FileErrors
from zq.cli.declared.kinds import Mode, declared_kinds
from zq.cli.declared.plan import Plan, carry_out, export_declaration, make_plan
from zq.cli.failures import DRIFT, Failure, exit_code
from zq.cli.output import Output, as_yaml, note, replace_controls
from zq.cli.resources import yes_option
from zq.cli.session import Command, Session, pass_session
from zq.errors import Conflict
from zq.model.limits import Limits


@click.command("apply", cls=Command)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE",
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help='YAML file; "-" = standard input.',
)
@click.option(
    "--dry-run", is_flag=True, help=f"Only show the changes. The exit code is {DRIFT} if there are any, otherwise 0."
)
@click.option(
    "--prune", is_flag=True, help="For each section of the file, delete the existing objects that it does not declare."
)
@click.option(
    "--force", is_flag=True, help="With --prune, also delete objects that hold messages, history or deliveries."
)
@click.option(
    "--create-tokens",
    is_flag=True,
    help="Create tokens and print their secrets even if standard output is not a terminal.",
)
@yes_option
@pass_session
def apply(
    session: Session, path: Path, dry_run: bool, prune: bool, force: bool, create_tokens: bool, yes: bool
) -> None:
    """Apply a YAML file that declares queues, topics, subscriptions, pools, flavors, quotas and tokens.

    zq checks the whole file and shows the changes before it makes any. You can repeat the command at any time. A new
    token's secret is shown once.
    """
    if force and not prune:
        raise click.UsageError("--force needs --prune.")
    session.configure(patient=True)
    # A dry run prints no secrets.
    mode = Mode(prune, force, create_tokens or dry_run or sys.stdout.isatty())
    limits = server_limits(session)
    declared = checked(path, limits)
    plan = make_plan(declared_kinds(declared, session.client, limits, mode), mode)
    report = Report(session)
    report.changes(plan)
    if plan.obstacles:
        for sentence in plan.obstacles:
            note(sentence, error=True)
        raise Failure("Nothing was changed.", exit_code(Conflict()))
    if dry_run:
        report.total(plan, "to create, {} to change, {} to delete")
        click.get_current_context().exit(DRIFT if plan.steps else 0)
    deleted = count(plan.changes)["delete"]
    if deleted and not yes and sys.stdin.isatty():
        click.confirm(f"Delete {deleted:,} object{'' if deleted == 1 else 's'}?", abort=True, err=True)
    carry_out(plan, report.secrets)
    report.total(plan, "created, {} changed, {} deleted")


def server_limits(session: Session) -> Limits:
    """Return the server's limits. A limit that an older server does not report has its default value."""
    given = session.client.limits()
    return Limits(**{name: value for name, value in given.items() if name in Limits.__struct_fields__})


def checked(path: Path, limits: Limits) -> Declaration:
    """Read a declaration file (``-`` = standard input). If it has errors, print them and raise ``Failure``."""
    content = sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()
    try:
        return read_declaration(content, limits)
    except FileErrors as errors:
        for sentence in errors.sentences:
            note(sentence, error=True)
        name = "Standard input" if path == Path("-") else path
        raise Failure(f"{name} is not valid. Nothing was changed.", 2) from errors


class Report:
    """The output of ``zq apply``: text by default, JSON or YAML on request."""

    def __init__(self, session: Session) -> None:
        self._out = session.out
        self._text = session.chosen.get("output") in (None, "table") and self._out.query is None

    def changes(self, plan: Plan) -> None:
        if not self._text:
            self._out.rows((), plan.changes, lambda _: ())
            return
        for change in plan.changes:
            for text, colour in lines(change):
                shown = replace_controls(text)
                click.echo(shown if os.environ.get("NO_COLOR") else click.style(shown, colour))

    def secrets(self, change: Change, secrets: dict[str, Any]) -> None:
        """Show the secret of a new token. ``--query`` is ignored, because the secret cannot be shown again."""
        if self._text:
            click.echo(f"{change.kind} {change.name}: {secrets['token']}")
        else:
            Output(self._out.form).line({"kind": change.kind, "name": change.name, **secrets})
        sys.stdout.flush()

    def total(self, plan: Plan, text: str) -> None:
        """Show how many objects are created, changed and deleted."""
        if self._text:
            created, *others = count(plan.changes).values()
            click.echo(f"{created} {text.format(*others)}." if plan.steps else "Nothing to change.")


def settings_file(session: Session) -> bytes:
    """Return the project's settings as a YAML file for ``zq apply``.

    Print a note for each section or object that the file omits.
    """
    declared, notes = export_declaration(session.client, server_limits(session))
    for sentence in notes:
        note(sentence)
    return as_yaml(declared)
