# SPDX-License-Identifier: Apache-2.0
"""Commands for credentials and access, such as ``zq login``, ``zq token`` and ``zq share``."""

import sys
import webbrowser
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import click
from msgspec.structs import asdict

from zq.cli.output import note
from zq.cli.param_types import Count
from zq.cli.profiles import Login, active_profile_name, connection, read_logins, token_file, write_logins
from zq.cli.session import Command, Group, Session, pass_session
from zq.client import Client, Retries
from zq.errors import NotFound

# Columns of the token table.
COLUMNS: Final = ("id", "name", "roles", "scopes", "expires", "last_used")

token_group = Group("token", help="Manage the project's tokens. Requires permission to manage the project.")


@click.command("login", cls=Command)
@pass_session
def login(session: Session) -> None:
    """Store a token for the current context (profile).

    The token is read from standard input, or from a prompt without echo. zq verifies the token with the server, stores
    it in a private file, and sends it only to this server.
    """
    profile, path = active_profile_name(session.chosen.get("profile"), session.profiles), token_file(session.profiles)
    place = connection(
        {**session.chosen, "token": ""}, session.chosen.get("profile"), session.chosen.get("config"), stored=False
    )
    text = click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not (text := text.strip()):
        raise click.UsageError("Standard input has no token.")
    with Client(place.url, place.project, token=text, retries=Retries(deadline=session.retry_for)) as client:
        project = client.whoami()["project"]
    stored = {**read_logins(path), profile: Login(url=place.url, token=text, project=project)}
    write_logins(path, stored)
    note(f"The token is stored in {path} and sent only to {place.shown_url}.")


@click.command("logout", cls=Command)
@pass_session
def logout(session: Session) -> None:
    """Delete the stored token of the current context (profile). To make the token invalid, use zq token revoke."""
    profile, path = active_profile_name(session.chosen.get("profile"), session.profiles), token_file(session.profiles)
    stored = read_logins(path)
    if stored.pop(profile, None) is None:
        raise NotFound("No token is stored for this context.")
    write_logins(path, stored)


@click.command("whoami", cls=Command)
@click.option("--rules", is_flag=True, help="Also show the access rules and the server's properties.")
@pass_session
def whoami(session: Session, rules: bool) -> None:
    """Show the current identity: project, user, roles, scopes and expiry."""
    more = session.client.me() if rules else {}
    session.out.result({"url": session.connection.shown_url, **session.client.whoami(), **more})


@click.command("console", cls=Command)
@click.option("--print", "printed", is_flag=True, help="Print the URL instead of opening it in a browser.")
@pass_session
def console(session: Session, printed: bool) -> None:
    """Open the project in the server's web console. Your token is not passed to the browser; sign in there."""
    place = session.connection
    project = f"#/p/{quote(place.project, safe='')}" if place.project else ""
    address = f"{place.shown_url.rstrip('/')}/console/{project}"
    if printed or not webbrowser.open(address):
        click.echo(address)


@token_group.command("create")
@click.option("--name", default="", help="Name of the token.")
@click.option(
    "--scope", "scopes", multiple=True, metavar="SCOPE", help="A scope, such as produce:orders.*; repeatable."
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role; repeatable.")
@click.option("--days", type=Count(1), help="Days until the token expires (default 90).")
@pass_session
def create(session: Session, name: str, scopes: tuple[str, ...], roles: tuple[str, ...], days: int | None) -> None:
    """Create a token and show its secret. The secret cannot be shown again."""
    made = session.client.create_token(name=name, scopes=scopes or None, roles=roles, days=days)
    session.out.result(made)


@token_group.command("list")
@pass_session
def list_tokens(session: Session) -> None:
    """List the project's tokens without their secrets."""
    session.out.rows(COLUMNS, session.client.tokens(), lambda token: [property_cell(token[name]) for name in COLUMNS])


@token_group.command("show")
@click.argument("id")
@pass_session
def show(session: Session, id: str) -> None:
    """Show a token without its secret."""
    session.out.result(session.client.token(id))


@token_group.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@pass_session
def revoke(session: Session, ids: tuple[str, ...]) -> None:
    """Revoke tokens. All servers reject them within five seconds."""
    for id in ids:
        session.client.revoke_token(id)


@token_group.command("rotate")
@click.argument("id")
@pass_session
def rotate(session: Session, id: str) -> None:
    """Replace a token and show the new secret. The old token expires within a day."""
    session.out.result(session.client.rotate_token(id))


@click.command("quota", cls=Command)
@pass_session
def quota(session: Session) -> None:
    """Show the project's quotas and usage; 0 = no limit."""
    found = session.client.quota()
    rows = [{"name": name, "limit": limit, "used": found.used.get(name)} for name, limit in found.limits.items()]
    session.out.rows(("name", "limit", "used"), rows, lambda row: [*row.values()])


@click.command("share", cls=Command)
@click.argument("queue", required=False)
@click.option(
    "--path",
    "paths",
    multiple=True,
    default=("messages",),
    help="Allowed path: messages or claims (default messages); repeatable.",
)
@click.option(
    "--method", "methods", multiple=True, default=("GET",), help="Allowed HTTP method (default GET); repeatable."
)
@click.option("--expires", type=click.DateTime(), metavar="TIME", help="Expiry time in UTC (default: in one day).")
@click.option("--revoke", is_flag=True, help="Revoke all pre-signed URLs of the project.")
@pass_session
def share(
    session: Session,
    queue: str | None,
    paths: tuple[str, ...],
    methods: tuple[str, ...],
    expires: datetime | None,
    revoke: bool,
) -> None:
    """Create a pre-signed URL of a queue for callers without an account, and show the headers to send with it."""
    if revoke == (queue is not None):
        raise click.UsageError("Give either a queue or --revoke.")
    if queue is None:
        session.client.revoke_shares()
        return
    until = None if expires is None else expires.replace(tzinfo=UTC)
    session.out.result(asdict(session.client.queue(queue).share(paths=paths, methods=methods, expires=until)))


def property_cell(value: object) -> object:
    """Return the table cell for a token's property. ``None`` means no restriction and is shown as "everything"."""
    return " ".join(value) if isinstance(value, list) else "everything" if value is None else value
