# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq queue``, ``zq topic`` and ``zq tail``."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, update_wrapper
from itertools import islice
from typing import Any, Final, Literal
from uuid import uuid4

import click
import msgspec
from msgspec.structs import asdict

from zq.cli import output
from zq.cli.content import InputFormat
from zq.cli.failures import RESOURCE_ERRORS, UnreadableResources
from zq.cli.messages import parse_body, ttl_option
from zq.cli.names import name_argument, name_completer
from zq.cli.output import as_text, body_text, build_table, note
from zq.cli.param_types import Count
from zq.cli.post import attribute_option, send_input
from zq.cli.session import Command, Group, Kind, Session, pass_session
from zq.client import Event, Gap, ListedResource, Queue, Stats, Topic, TypedValue
from zq.errors import NotFound, QueueNotFound, TopicNotFound
from zq.model.limits import is_long_queue_name

Handle = Queue | Topic
Metadata = tuple[tuple[str, Any], ...]
# Number of concurrent requests for message counts.
COUNT_REQUESTS: Final = 8
# Number of queues whose counts are requested before the first row is shown.
PREFETCH: Final = 100
# Table columns of ``list``, with the members that they show.
COLUMNS: Final = {
    "queues": {"messages": "total", "claimed": "claimed", "oldest": "oldest", "dead letters": "dead_letters"},
    "topics": {"messages": "total", "oldest": "oldest"},
}
Row = dict[str, Any]
# Table columns of ``stats``.
STATS_COLUMNS: Final = ("name", "total", "free", "claimed", "oldest", "newest")


class KeyValue(click.ParamType[tuple[str, Any]]):
    """A pair KEY=VALUE. The value is JSON, or text if it is not JSON."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not KEY=VALUE.", param, ctx)
        try:
            return key, msgspec.json.decode(text)
        except msgspec.DecodeError:
            return key, text


class ResourceGroup(Group):
    """A command group for queues or topics."""

    def __init__(self, word: str, handle: Callable[[Session, str], Handle]) -> None:
        super().__init__(word, help=f"Manage {word}s: metadata and message counts.")
        self.kind: Kind = "queues" if word == "queue" else "topics"
        self.handle = handle
        for command in (create, show, change, delete, purge, stats, list_all):
            self.add_command(command)


class ResourceAccess:
    """Access to the queues or the topics of the project, for commands that work on both."""

    def __init__(self, session: Session, group: ResourceGroup) -> None:
        self.session = session
        self.out = session.out
        self.kind = group.kind
        self._handle = group.handle

    def __call__(self, name: str) -> Handle:
        return self._handle(self.session, name)

    def raise_missing(self, names: Iterable[str]) -> None:
        """Raise ``NotFound`` for the missing queues or topics in ``names``. If ``names`` is empty, do nothing."""
        if sentences := [str(self.session.missing_error(name, self.kind)) for name in names]:
            raise NotFound(" ".join(sentences))

    def list_resources(self, **filters: Any) -> Iterator[ListedResource]:
        client = self.session.client
        return client.queues(**filters) if self.kind == "queues" else client.topics(**filters)


def pass_resources(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command. The command gets the ``ResourceAccess`` of its command group as the first argument."""

    def called(context: click.Context, /, **options: Any) -> None:
        command(ResourceAccess(context.obj, parent_group(context)), **options)

    return update_wrapper(click.pass_context(called), command)


def parent_group(context: click.Context) -> ResourceGroup:
    assert context.parent is not None
    group = context.parent.command
    assert isinstance(group, ResourceGroup)
    return group


def complete(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Complete queue names or topic names, depending on the command group."""
    return name_completer(parent_group(context).kind)(context, parameter, begun)


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation (the default without a terminal).")
single_name_argument = click.argument("name", shell_complete=complete)
members_argument = click.argument("members", type=KeyValue(), nargs=-1, metavar="[KEY=VALUE]...")


def names_argument(required: bool) -> Callable[[Any], Any]:
    """Return a decorator that adds an argument for several names."""
    return click.argument("name", nargs=-1, required=required, shell_complete=complete)


@click.command("create", cls=Command)
@click.argument("name")
@members_argument
@pass_resources
def create(resources: ResourceAccess, name: str, members: Metadata) -> None:
    """Create a queue or topic with metadata. An existing queue or topic is not changed."""
    resources.out.result({"name": name, "created": resources(name).create(dict(members))})


@click.command("show", cls=Command)
@single_name_argument
@pass_resources
def show(resources: ResourceAccess, name: str) -> None:
    """Show the metadata of a queue or topic, including defaults."""
    resources.session.check_exists(name, resources.kind)
    resources.out.result({"name": name, **resources(name).metadata()})


@click.command("set", cls=Command)
@single_name_argument
@members_argument
@click.option("--unset", multiple=True, metavar="KEY", help="Metadata key to remove; repeatable.")
@pass_resources
def change(resources: ResourceAccess, name: str, members: Metadata, unset: tuple[str, ...]) -> None:
    """Set and remove metadata keys of a queue or topic, and show the new metadata."""
    try:
        resources.out.result({"name": name, **resources(name).update(dict(members), remove=unset)})
    except (QueueNotFound, TopicNotFound):
        raise resources.session.missing_error(name, resources.kind) from None


@click.command("pause", cls=Command)
@single_name_argument
@click.option("--claims", "what", flag_value="claims", help="Pause only claims and pops; posts continue.")
@click.option("--posts", "what", flag_value="posts", help="Pause only posts; claims and pops continue.")
@pass_resources
def pause(resources: ResourceAccess, name: str, what: Literal["claims", "posts"] | None) -> None:
    """Pause claims, pops and posts of a queue until it is resumed."""
    paused = change_queue(resources, name, lambda queue: queue.pause(what or "all"))
    resources.out.result({"name": name, "paused": paused["_paused"]})


@click.command("resume", cls=Command)
@single_name_argument
@pass_resources
def resume(resources: ResourceAccess, name: str) -> None:
    """Resume a paused queue."""
    change_queue(resources, name, lambda queue: queue.resume())
    resources.out.result({"name": name, "resumed": True})


def change_queue(resources: ResourceAccess, name: str, verb: Callable[[Queue], Row]) -> Row:
    """Call ``verb``, such as ``Queue.resume``, with a queue and return the queue's new metadata.

    If the queue does not exist, raise ``NotFound``, which suggests a similar queue name.
    """
    try:
        return verb(resources.session.client.queue(name))
    except QueueNotFound:
        raise resources.session.missing_error(name, resources.kind) from None


@click.command("delete", cls=Command)
@names_argument(required=True)
@yes_option
@pass_resources
def delete(resources: ResourceAccess, name: tuple[str, ...], yes: bool) -> None:
    """Delete queues or topics with their messages."""
    for_each(resources, name, "deleted", lambda one: one.delete(), "" if yes else "Delete {} with all messages?")


@click.command("purge", cls=Command)
@names_argument(required=True)
@yes_option
@pass_resources
def purge(resources: ResourceAccess, name: tuple[str, ...], yes: bool) -> None:
    """Delete all messages of queues or topics."""
    for_each(resources, name, "purged", lambda one: one.purge(), "" if yes else "Delete all messages of {}?")


@click.command("stats", cls=Command)
@names_argument(required=False)
@pass_resources
def stats(resources: ResourceAccess, name: tuple[str, ...]) -> None:
    """Show the message counts of queues or topics, and the ages of their oldest and newest messages."""
    chosen = name or tuple(entry.name for entry in resources.list_resources())
    absent: list[str] = []
    unread = UnreadableResources()

    def figures() -> Iterator[dict[str, Any]]:
        for one in chosen:
            try:
                figure = stats_row(one, resources(one).stats())
            except RESOURCE_ERRORS as error:
                unread.add(one, error)
                continue
            if name and not figure["total"] and not resources(one).exists():
                absent.append(one)
            else:
                yield figure
        if absent and len(absent) == len(chosen):
            resources.raise_missing(absent)

    resources.out.rows(STATS_COLUMNS, figures(), lambda entry: [entry[column] for column in STATS_COLUMNS])
    resources.raise_missing(absent)
    unread.check()


def stats_row(name: str, stats: Stats) -> dict[str, Any]:
    """Return the table row of ``stats``. The ages of an empty queue or topic are ``None``."""
    oldest, newest = (mark.age if mark else None for mark in (stats.oldest, stats.newest))
    figures = {"total": stats.total, "free": stats.free, "claimed": stats.claimed}
    return {"name": name, **figures, "oldest": oldest, "newest": newest}


def for_each(
    resources: ResourceAccess, names: Sequence[str], done: str, verb: Callable[[Handle], None], question: str
) -> None:
    """Ask for confirmation on a terminal, then apply ``verb`` to each existing queue or topic.

    Raises ``Abort`` if the user declines. If a queue or topic does not exist, raises ``NotFound`` at the end.

    Args:
        done: Member of the printed result that is true for each changed queue or topic, such as "deleted".
        question: Confirmation prompt with ``{}`` for the names; "" = do not ask.
    """
    absent = [one for one in names if not resources(one).exists()]
    if question and len(absent) < len(names) and sys.stdin.isatty():
        click.confirm(question.format(", ".join(names)), abort=True, err=True)
    for one in names:
        if one not in absent:
            verb(resources(one))
            resources.out.result({"name": one, done: True})
    resources.raise_missing(absent)


@click.command("list", cls=Command)
@click.option("--name", metavar="PART", help="List only names that contain this text.")
@click.option(
    "--with",
    "members",
    type=KeyValue(),
    multiple=True,
    help="List only queues or topics with this metadata value; repeatable.",
)
@click.option("--limit", type=Count(0), default=0, help="Maximum number of results (default: all).")
@click.option("-l", "--long", is_flag=True, help="Also show metadata in tables, except default values.")
@click.option("--no-counts", is_flag=True, help="Omit message counts. This saves a request for each queue or topic.")
@pass_resources
def list_all(
    resources: ResourceAccess, name: str | None, members: Metadata, limit: int, long: bool, no_counts: bool
) -> None:
    """List the queues or topics of the project with message counts, ordered by name.

    zq requests the counts of each queue or topic separately, eight at a time. --no-counts skips these requests.
    """
    wanted = dict(members).items()
    fitting = (
        one for one in resources.list_resources(name=name, detailed=True) if wanted <= dict(one.metadata or {}).items()
    )
    found = islice(fitting, limit or None)
    columns = {"name": "name", **({} if no_counts else COLUMNS[resources.kind])}
    defaults = resources(uuid4().hex).metadata() if long and resources.out.uses_tables else {}

    def cells(row: Row) -> list[object]:
        own = [format_metadata(row["metadata"], defaults)] if long else []
        return [*(row[member] for member in columns.values()), *own]

    unread = UnreadableResources()
    rows = map(asdict, found) if no_counts else with_counts(resources, found, unread)
    resources.out.rows([*columns, *(["metadata"] if long else [])], rows, cells)
    unread.check()


def with_counts(
    resources: ResourceAccess, found: Iterator[ListedResource], unread: UnreadableResources
) -> Iterator[Row]:
    """Yield table rows in listing order. Request the counts concurrently.

    If a count cannot be read, the count is ``None``, and ``unread`` records the queue or topic.
    """
    queues = resources.kind == "queues"
    with ThreadPoolExecutor(COUNT_REQUESTS, "zq-list") as pool:

        @cache
        def stats_future(name: str) -> Future[Row]:
            return pool.submit(lambda: stats_row(name, resources(name).stats()))

        def counts(name: str) -> Row:
            try:
                return stats_future(name).result()
            except RESOURCE_ERRORS as error:
                unread.add(name, error)
                return {"name": name, **dict.fromkeys(STATS_COLUMNS[1:])}

        try:
            while part := [(one, dead_letter_queue(one) if queues else "") for one in islice(found, PREFETCH)]:
                for one, dead in part:
                    stats_future(one.name)
                    if dead:
                        stats_future(dead)
                for one, dead in part:
                    left = {"dead_letters": counts(dead)["total"] if dead else None} if queues else {}
                    yield counts(one.name) | left | {"metadata": one.metadata}
        finally:
            pool.shutdown(cancel_futures=True)


def dead_letter_queue(one: ListedResource) -> str:
    """Return the name of the dead-letter queue, or "" if the metadata has no valid name."""
    name = (one.metadata or {}).get("_dead_letter_queue")
    return name if is_long_queue_name(name) else ""


def format_metadata(metadata: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Format the metadata that differs from ``defaults`` as arguments of ``zq queue create``."""
    own = {key: value for key, value in metadata.items() if key not in defaults or defaults[key] != value}
    return " ".join(f"{key}={as_text(value)}" for key, value in own.items())


queue_group = ResourceGroup("queue", lambda session, name: session.client.queue(name))
for command in (pause, resume):
    queue_group.add_command(command)
topic_group = ResourceGroup("topic", lambda session, name: session.client.topic(name))


@topic_group.command("publish")
@name_argument("name", "topics")
@click.argument("body")
@ttl_option
@click.option("--text", is_flag=True, help="Post bodies as text, even if they look like JSON.")
@attribute_option
@pass_session
def publish(
    session: Session,
    name: str,
    body: str,
    ttl: int | None,
    text: bool,
    attributes: tuple[tuple[str, TypedValue], ...],
) -> None:
    """Publish BODY, or each line of standard input if BODY is "-".

    BODY is JSON, or text if it is not JSON.
    """
    session.configure(patient=body == "-")
    topic = session.client.topic(name)
    if body != "-":
        content = parse_body(body, as_text=text)
        session.out.result({"id": topic.publish(content, ttl=ttl, attributes=dict(attributes) or None)})
        return
    send_input(session, topic, InputFormat(text), ttl, attributes=dict(attributes))


@click.command("tail", cls=Command)
@name_argument("topic", "topics", required=False)
@click.option(
    "--match", metavar="GLOB", help="Show all matching topics: * matches one part of a name, ** any number of parts."
)
@click.option(
    "--from",
    "after",
    type=Count(0, 2**63 - 1),
    metavar="SEQUENCE",
    help="Start after the message with this sequence; 0 = start with the oldest message.",
)
@click.option("--limit", type=Count(1), help="Stop after this number of messages.")
@pass_session
def tail(session: Session, topic: str | None, match: str | None, after: int | None, limit: int | None) -> None:
    """Show messages as they are published, until you interrupt the command.

    TOPIC must exist. --match also shows topics that are created later.
    """
    if (topic is None) == (match is None):
        raise click.UsageError("Give either TOPIC or --match.")
    session.configure(patient=True)
    client = session.client
    if topic:
        session.check_exists(topic, "topics")
    stream = client.topic(topic).stream(after) if topic else client.stream(match or "**", after)
    events = (event for event in stream if isinstance(event, Event) or note_gap(event))
    for event in islice(events, limit):
        if isinstance(event, Event):
            show_event(session, event)


def note_gap(gap: Gap) -> bool:
    """Print a note about missed messages. Always return ``False``, so that the caller's filter drops the gap."""
    if gap.after is None:
        note("The connection was lost before the first message; messages may have been missed.")
    else:
        note(f"Messages between {gap.after} and {gap.resumes} were already trimmed from the log.")
    return False


def show_event(session: Session, event: Event) -> None:
    if session.out.uses_tables:
        output.show(build_table(("id", "topic", "body"), [(event.id, event.topic, body_text(event))], header=False))
    else:
        session.out.line(event)
