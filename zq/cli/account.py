# SPDX-License-Identifier: Apache-2.0
"""Who the caller is: ``zq login``, ``logout`` and ``whoami``; the tokens of the project, and what it may use.

The token of a login is in a file of its own beside the configuration, by profile and for one server alone.
"""

import sys
import webbrowser
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import click

from zq.cli.output import note
from zq.cli.param_types import Count
from zq.cli.profiles import Login, connection, logins, named_profile, token_file, write_logins
from zq.cli.session import Command, Group, Session, pass_session
from zq.client import Client, Retries
from zq.errors import NotFound

# The columns of a table of tokens.
COLUMNS: Final = ("id", "name", "roles", "scopes", "expires", "last_used")

token_group = Group("token", help="Tokens of the project, for whoever may manage everything of it.")


@click.command("login", cls=Command)
@pass_session
def login(session: Session) -> None:
    """Store a token for the context: it is read from standard input, or asked for without an echo.

    It is checked first, and goes from then on to the server that checked it, and to no other.
    """
    profile, path = named_profile(session.chosen.get("profile"), session.profiles), token_file(session.profiles)
    place = connection(
        {**session.chosen, "token": ""}, session.chosen.get("profile"), session.chosen.get("config"), stored=False
    )
    text = click.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not (text := text.strip()):
        raise click.UsageError("No token was given on standard input.")
    with Client(place.url, place.project, token=text, retries=Retries(deadline=session.retry_for)) as client:
        project = client.whoami()["project"]
    stored = {**logins(path), profile: Login(url=place.url, token=text, project=project)}
    write_logins(path, stored)
    note(f"The token is in {path} and goes to {place.shown_url} alone.")


@click.command("logout", cls=Command)
@pass_session
def logout(session: Session) -> None:
    """Forget the token of the context. It stays valid: zq token revoke ends one."""
    profile, path = named_profile(session.chosen.get("profile"), session.profiles), token_file(session.profiles)
    stored = logins(path)
    if stored.pop(profile, None) is None:
        raise NotFound("No token is stored for this context.")
    write_logins(path, stored)


@click.command("whoami", cls=Command)
@click.option("--rules", is_flag=True, help="Also the rules that allow something, and what the server is.")
@pass_session
def whoami(session: Session, rules: bool) -> None:
    """Show whose token is in force: project, user, roles, scopes and the end of it."""
    more = session.client.me() if rules else {}
    session.out.result({"url": session.connection.shown_url, **session.client.whoami(), **more})


@click.command("console", cls=Command)
@click.option("--print", "printed", is_flag=True, help="Only print the address.")
@pass_session
def console(session: Session, printed: bool) -> None:
    """Open the server's web console, at the project, in the browser. It passes no token on: sign in there."""
    place = session.connection
    project = f"#/p/{quote(place.project, safe='')}" if place.project else ""
    address = f"{place.shown_url.rstrip('/')}/console/{project}"
    if printed or not webbrowser.open(address):
        click.echo(address)


@token_group.command("create")
@click.option("--name", default="", help="What it is for.")
@click.option(
    "--scope", "scopes", multiple=True, metavar="SCOPE", help="What it may do, as produce:orders.*; repeatable."
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role; repeatable.")
@click.option("--days", type=Count(1), help="How many days it lives; 90.")
@pass_session
def create(session: Session, name: str, scopes: tuple[str, ...], roles: tuple[str, ...], days: int | None) -> None:
    """Make a token and show it, this once."""
    made = session.client.create_token(name=name, scopes=scopes or None, roles=roles, days=days)
    session.out.result(made)


@token_group.command("list")
@pass_session
def list_tokens(session: Session) -> None:
    """List the project's tokens, without their secrets."""
    session.out.rows(COLUMNS, session.client.tokens(), lambda token: [cell(token[name]) for name in COLUMNS])


@token_group.command("show")
@click.argument("id")
@pass_session
def show(session: Session, id: str) -> None:
    """Show a token, without its secret."""
    session.out.result(session.client.token(id))


@token_group.command("revoke")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@pass_session
def revoke(session: Session, ids: tuple[str, ...]) -> None:
    """End tokens: every server refuses them within five seconds."""
    for id in ids:
        session.client.revoke_token(id)


@token_group.command("rotate")
@click.argument("id")
@pass_session
def rotate(session: Session, id: str) -> None:
    """Make a twin of a token and show it, this once; the old one ends within a day."""
    session.out.result(session.client.rotate_token(id))


@click.command("quota", cls=Command)
@pass_session
def quota(session: Session) -> None:
    """Show what the project may use, and what it uses; 0 means without bound."""
    found = session.client.quota()
    used = found["used"]
    rows = [{"name": name, "limit": limit, "used": used.get(name)} for name, limit in found["limits"].items()]
    session.out.rows(("name", "limit", "used"), rows, lambda row: [*row.values()])


@click.command("share", cls=Command)
@click.argument("queue", required=False)
@click.option("--path", "paths", multiple=True, default=("messages",), help="messages or claims; repeatable.")
@click.option("--method", "methods", multiple=True, default=("GET",), help="GET, POST and so on; repeatable.")
@click.option("--expires", type=click.DateTime(), metavar="MOMENT", help="Until when, in UTC; a day from now.")
@click.option("--revoke", is_flag=True, help="End all that was signed for the project instead.")
@pass_session
def share(
    session: Session,
    queue: str | None,
    paths: tuple[str, ...],
    methods: tuple[str, ...],
    expires: datetime | None,
    revoke: bool,
) -> None:
    """Sign a URL of a queue for those who have no account, and show what they are to send along."""
    if revoke == (queue is not None):
        raise click.UsageError("Name a queue, or --revoke.")
    if queue is None:
        session.client.revoke_shares()
        return
    until = None if expires is None else expires.replace(tzinfo=UTC)
    session.out.result(session.client.queue(queue).share(paths=paths, methods=methods, expires=until))


def cell(value: object) -> object:
    """Lists as words; no scopes are the whole project."""
    return " ".join(value) if isinstance(value, list) else "everything" if value is None else value
