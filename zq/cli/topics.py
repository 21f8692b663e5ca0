# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq topic publish`` and ``zq tail``."""

from itertools import islice

import click

from zq.cli.content import InputFormat
from zq.cli.messages import parse_body, ttl_option
from zq.cli.names import name_argument
from zq.cli.output import body_text, build_table, note, show
from zq.cli.param_types import Count
from zq.cli.post import attribute_option, send_input
from zq.cli.resources import topic_group
from zq.cli.session import Command, Session, pass_session
from zq.client import Event, Gap, TypedValue


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
        content = parse_body(body, never=text)
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
    """Print a note about missed messages. Return ``False``, so that a filter drops the gap."""
    if gap.after is None:
        note("The connection was lost before the first message; messages may have been missed.")
    else:
        note(f"Messages between {gap.after} and {gap.resumes} were already trimmed from the log.")
    return False


def show_event(session: Session, event: Event) -> None:
    if session.out.uses_tables:
        show(build_table(("id", "topic", "body"), [(event.id, event.topic, body_text(event))], header=False))
    else:
        session.out.line(event)
