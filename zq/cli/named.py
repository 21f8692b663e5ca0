# SPDX-License-Identifier: Apache-2.0
"""``zq queue …`` and ``zq topic …``: what both have, in one group for both."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import update_wrapper
from typing import Any, Final

import click
import msgspec

from zq.cli.completion import names
from zq.cli.missing import Kind, check_there, missing
from zq.cli.session import Command, Group, Session
from zq.client import Listed, Queue, Stats, Topic
from zq.errors import NotFound, QueueNotFound, TopicNotFound

Handle = Queue | Topic
Metadata = tuple[tuple[str, Any], ...]
FIGURES: Final = ("name", "total", "free", "claimed", "oldest", "newest")


class Member(click.ParamType[tuple[str, Any]]):
    """KEY=VALUE; the value is JSON, or a text if it is none."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """The pair."""
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE.", param, ctx)
        try:
            return key, msgspec.json.decode(text)
        except msgspec.DecodeError:
            return key, text


class NamedGroup(Group):
    """The commands about one kind of thing: queues or topics."""

    def __init__(self, word: str, handle: Callable[[Session, str], Handle]) -> None:
        super().__init__(word, help=f"{word.capitalize()}s: their metadata, and figures about them.")
        self.kind: Kind = "queues" if word == "queue" else "topics"
        self.handle = handle
        for command in (create, show, change, delete, purge, stats):
            self.add_command(command)


class Things:
    """What a command of such a group works on."""

    def __init__(self, session: Session, group: NamedGroup) -> None:
        self.session = session
        self.out = session.out
        self.kind = group.kind
        self._handle = group.handle

    def __call__(self, name: str) -> Handle:
        """One of them."""
        return self._handle(self.session, name)

    def lost(self, names: Iterable[str]) -> None:
        """Raises ``NotFound`` for names that are not there, if there are any."""
        if told := [str(missing(self.session, name, self.kind)) for name in names]:
            raise NotFound(" ".join(told))

    def listed(self, **filters: Any) -> Iterator[Listed]:
        """Those that exist."""
        client = self.session.client
        return client.queues(**filters) if self.kind == "queues" else client.topics(**filters)


def pass_things(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command what its group is about."""

    def called(context: click.Context, /, **options: Any) -> None:
        command(Things(context.obj, group_of(context)), **options)

    return update_wrapper(click.pass_context(called), command)


def group_of(context: click.Context) -> NamedGroup:
    """The group that a command was called in."""
    assert context.parent is not None
    group = context.parent.command
    assert isinstance(group, NamedGroup)
    return group


def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of the group's kind."""
    return names(group_of(context).kind)(context, parameter, begun)


yes_option = click.option("--yes", is_flag=True, help="Do not ask; without a terminal nobody is asked.")
name_of_one = click.argument("name", shell_complete=complete)
members_argument = click.argument("members", type=Member(), nargs=-1, metavar="[KEY=VALUE]...")


def some_names(required: bool) -> Callable[[Any], Any]:
    """Any number of names."""
    return click.argument("name", nargs=-1, required=required, shell_complete=complete)


@click.command("create", cls=Command)
@click.argument("name")
@members_argument
@pass_things
def create(things: Things, name: str, members: Metadata) -> None:
    """Make one with this metadata. One that is there stays as it is."""
    things.out.thing({"name": name, "created": things(name).create(dict(members))})


@click.command("show", cls=Command)
@name_of_one
@pass_things
def show(things: Things, name: str) -> None:
    """Show the metadata of one; what is not set, with its default."""
    check_there(things.session, name, things.kind)
    things.out.thing({"name": name, **things(name).metadata()})


@click.command("set", cls=Command)
@name_of_one
@members_argument
@click.option("--unset", multiple=True, metavar="KEY", help="Remove a key.")
@pass_things
def change(things: Things, name: str, members: Metadata, unset: tuple[str, ...]) -> None:
    """Set some keys of the metadata of one, and remove others; show all then."""
    try:
        things.out.thing({"name": name, **things(name).update(dict(members), remove=unset)})
    except (QueueNotFound, TopicNotFound):
        raise missing(things.session, name, things.kind) from None


@click.command("delete", cls=Command)
@some_names(required=True)
@yes_option
@pass_things
def delete(things: Things, name: tuple[str, ...], yes: bool) -> None:
    """Delete some with their messages."""
    each(things, name, "deleted", lambda one: one.delete(), "" if yes else "Delete {} with all messages?")


@click.command("purge", cls=Command)
@some_names(required=True)
@yes_option
@pass_things
def purge(things: Things, name: tuple[str, ...], yes: bool) -> None:
    """Remove all messages of some."""
    each(things, name, "purged", lambda one: one.purge(), "" if yes else "Remove all messages of {}?")


@click.command("stats", cls=Command)
@some_names(required=False)
@pass_things
def stats(things: Things, name: tuple[str, ...]) -> None:
    """Count the messages of some, or of all; with the ages of the oldest and the newest."""
    chosen = name or tuple(entry.name for entry in things.listed())
    lost: list[str] = []

    def figures() -> Iterator[dict[str, Any]]:
        for one in chosen:
            figure = counted(one, things(one).stats())
            if name and not figure["total"] and not things(one).exists():
                lost.append(one)
            else:
                yield figure
        if len(lost) == len(chosen):
            things.lost(lost)

    things.out.rows(FIGURES, figures(), lambda entry: [entry[column] for column in FIGURES])
    things.lost(lost)


def counted(name: str, stats: Stats) -> dict[str, Any]:
    """Figures of a queue or a topic; ages None if it is empty."""
    oldest, newest = (mark.age if mark else None for mark in (stats.oldest, stats.newest))
    figures = {"total": stats.total, "free": stats.free, "claimed": stats.claimed}
    return {"name": name, **figures, "oldest": oldest, "newest": newest}


def each(things: Things, names: Sequence[str], told: str, verb: Callable[[Handle], None], question: str) -> None:
    """Do it to each that is there. Aborts if there is a question, and somebody sits there who says no."""
    lost = [one for one in names if not things(one).exists()]
    if question and len(lost) < len(names) and sys.stdin.isatty():
        click.confirm(question.format(", ".join(names)), abort=True, err=True)
    for one in names:
        if one not in lost:
            verb(things(one))
            things.out.thing({"name": one, told: True})
    things.lost(lost)


queue_group = NamedGroup("queue", lambda session, name: session.client.queue(name))
topic_group = NamedGroup("topic", lambda session, name: session.client.topic(name))
