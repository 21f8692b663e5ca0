# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq context``, which list, show and change the profiles of the configuration file."""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import asdict

from zq.cli.output import note
from zq.cli.profiles import (
    MEMBERS,
    Connection,
    ProfileFile,
    check_connection,
    config_file,
    members,
    profile_additions,
    read_profiles,
    strip_user,
)
from zq.cli.session import Group, Session, option_values, pass_session

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

# Number of token characters to show.
SHOWN_CHARACTERS: Final = 4
# Minimum length of a token whose last characters may be shown.
MIN_SHOWN_LENGTH: Final = 16

context_group = Group(
    "context", help="Manage contexts: profiles of the configuration file with a server and a project."
)


def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Return the profile names that begin with ``begun``, or an empty list if the configuration file is unreadable."""
    try:
        document = read_profiles(option_values(context).get("config") or config_file())
    except click.UsageError:
        return []
    return [name for name in (document.profiles if document else []) if name.startswith(begun)]


@context_group.command("list")
@pass_session
def list_contexts(session: Session) -> None:
    """List the profiles in the configuration file."""
    document = read_profiles(session.profiles) or ProfileFile()
    current = active_profile(session, document)
    found = {name: members(document, name, session.profiles) for name in document.profiles}
    rows = [{"name": name, "in_force": name == current, **displayed_members(own)} for name, own in found.items()]
    session.out.rows(("", "name", *MEMBERS), rows, cells)


def cells(row: Mapping[str, Any]) -> list[object]:
    """Return the table row of a profile. The active profile has a star."""
    return ["*" if row["in_force"] else "", row["name"], *(row[member] for member in MEMBERS)]


@context_group.command("show")
@click.argument("name", required=False, shell_complete=complete)
@pass_session
def show(session: Session, name: str | None) -> None:
    """Show the active settings, or the settings of the profile NAME, with the source of each value."""
    path = session.profiles
    document = read_profiles(path) or ProfileFile()
    profile = name or active_profile(session, document)
    own = profile_additions(session.chosen, members(document, profile, path) if profile else {})
    by_caller = {member: session.chosen[member] for member in MEMBERS if session.chosen.get(member)}
    named_by = "NAME" if name else session.origins.get("profile") or ("config" if document.profile else "default")
    rows: list[dict[str, str | None]] = [
        {"name": "config", "value": str(path), "from": session.origins.get("config", "default")},
        {"name": "profile", "value": profile or None, "from": named_by if profile else None},
    ]
    for member, value in displayed_members({**asdict(Connection()), **own, **by_caller}).items():
        inner = f"profile {profile}" if member in own else "default" if value else None
        rows.append({"name": member, "value": value, "from": session.origins[member] if member in by_caller else inner})
    session.out.rows(("name", "value", "from"), rows, lambda row: [*row.values()])


@context_group.command("use")
@click.argument("name", shell_complete=complete)
@pass_session
def use(session: Session, name: str) -> None:
    """Make a profile the default in the configuration file."""
    members(read_profiles(session.profiles) or ProfileFile(), name, session.profiles)

    def named(document: "TOMLDocument") -> None:
        document["profile"] = name

    rewrite(session.profiles, named)
    show_profile(session, name)


@context_group.command("set")
@click.argument("name", shell_complete=complete)
@click.argument("values", nargs=-1, required=True, metavar="MEMBER=VALUE...")
@pass_session
def change(session: Session, name: str, values: tuple[str, ...]) -> None:
    """Create or change a profile. Its members are url, project, token and client_id.

    MEMBER= removes a member. token=- reads the token from standard input. The first profile of a file becomes the
    default.
    """
    path = session.profiles
    before = read_profiles(path) or ProfileFile()
    changes = dict(map(parse_member, values))
    own = {**(members(before, name, path) if name in before.profiles else {}), **changes}
    check_connection(Connection(**{member: value for member, value in own.items() if value}))

    def changed(document: "TOMLDocument") -> None:
        if not before.profiles:
            document["profile"] = name
        profiles = document.setdefault("profiles", {})
        profile = profiles.setdefault(name, {})
        for member, value in changes.items():
            if value:
                profile[member] = value
            else:
                profile.pop(member, None)

    rewrite(path, changed)
    show_profile(session, name)


def active_profile(session: Session, document: ProfileFile) -> str:
    """Return the name of the active profile, or ""."""
    own = "default" if "default" in document.profiles else ""
    return str(session.chosen.get("profile") or document.profile or own)


def parse_member(text: str) -> tuple[str, str]:
    """Parse MEMBER=VALUE. Raises ``UsageError`` for an unknown member.

    For token=-, the value is read from standard input.
    """
    member, equals, value = text.partition("=")
    if not equals or member not in MEMBERS:
        raise click.UsageError(f"{member} is not one of {', '.join(MEMBERS)}. Give MEMBER=VALUE.")
    return member, sys.stdin.readline().rstrip("\n") if (member, value) == ("token", "-") else value


def displayed_members(found: Mapping[str, str]) -> dict[str, str | None]:
    """Return a profile for display. Remove the user from the URL, and shorten the token to its last characters."""
    token = found.get("token", "")
    hidden = "…" + (token[-SHOWN_CHARACTERS:] if len(token) >= MIN_SHOWN_LENGTH else "")
    own = {**found, "url": strip_user(found.get("url", "")), "token": hidden if token else ""}
    return {member: own.get(member) or None for member in MEMBERS}


def show_profile(session: Session, name: str) -> None:
    """Show a profile. Print a note if an option or variable selects another profile."""
    document = read_profiles(session.profiles) or ProfileFile()
    current = active_profile(session, document)
    if current != name and "profile" in session.origins:
        note(f"{session.origins['profile']} selects {current}, which overrides the file.")
    session.out.result(
        {"name": name, "in_force": name == current, **displayed_members(members(document, name, session.profiles))}
    )


def rewrite(path: Path, change: Callable[["TOMLDocument"], None]) -> None:
    """Change the configuration file atomically. Keep its comments. Only the owner can access the new file."""
    import tomlkit

    path = path.resolve()
    document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")
    change(document)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f"{path.name}.", delete=False
    ) as fresh:  # mode 0600
        try:
            fresh.write(tomlkit.dumps(document))
            fresh.close()
            os.replace(fresh.name, path)
        except BaseException:
            os.unlink(fresh.name)
            raise
