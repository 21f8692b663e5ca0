# SPDX-License-Identifier: Apache-2.0
"""``zq export`` and ``zq import``: a project as JSON lines.

First each queue and topic with its metadata, then their messages in order. A batch's key comes from the messages' ids:
an import that is repeated stores none twice, as long as the server remembers keys.
"""

import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

import click
import msgspec
from msgspec import Raw, Struct

from zq.cli.output import progress
from zq.cli.session import Command, Session, pass_session
from zq.cli.uploads import AROUND, MOST
from zq.client import Client, Draft, Message, Queue, Topic
from zq.errors import InvalidBody

LEAST: Final = 60
"""Seconds that a message lives at least."""
BYTES: Final = 200_000
"""Of a batch, as far as what it goes to takes so much."""


class Named(Struct, tag="named", tag_field="is"):
    """A queue or a topic; ``of``: "queue" or "topic"."""

    of: str
    name: str
    metadata: dict[str, object]


class Carried(Struct, tag="message", tag_field="is"):
    """A message of one; ``ttl`` and ``delay``: what was left of them."""

    of: str
    name: str
    id: str
    body: Raw
    ttl: int
    delay: int = 0


Line = Named | Carried
Home = tuple[str, str]
_decoder: Final = msgspec.json.Decoder(Line)


@click.command("export", cls=Command)
@click.option("--to", "path", type=click.Path(dir_okay=False, path_type=Path), help="A file; else standard output.")
@pass_session
def export(session: Session, path: Path | None) -> None:
    """Write all queues and topics with their messages as JSON lines.

    Claimed and delayed messages are among them. Claims, claim counts and history are not.
    """
    session.patient = True
    count = 0
    with path.open("wb") if path else nullcontext(sys.stdout.buffer) as file, progress("export", None) as bar:
        for line in exported(session.client):
            file.write(msgspec.json.encode(line) + b"\n")
            count += isinstance(line, Carried)
            if count % 100 == 0:
                bar(0, count)
        file.flush()
    if path:
        session.out.thing({"file": str(path), "messages": count})


def exported(client: Client) -> Iterator[Line]:
    """All lines of a project."""
    page = client.limits()["max_messages_per_page"]
    queues = [*client.queues(detailed=True)]
    topics = [*client.topics(detailed=True)]
    for of, things in (("queue", queues), ("topic", topics)):
        defaults = thing_of(client, (of, uuid4().hex)).metadata()
        for thing in things:
            metadata = dict(thing.metadata or {})
            yield Named(of, thing.name, {key: value for key, value in metadata.items() if defaults.get(key) != value})
    for thing in queues:
        found = client.queue(thing.name).list(claimed=True, delayed=True, page=page)
        yield from (carried("queue", thing.name, message) for message in found)
    for thing in topics:
        yield from (carried("topic", thing.name, message) for message in client.topic(thing.name).list(page=page))


def carried(of: str, name: str, message: Message) -> Carried:
    """A message as it stands in the file. A claimed one is free there."""
    delay = 0
    if message.created and message.available_at and not message.claim:
        now = message.created + timedelta(seconds=message.age)
        delay = max(0, int((message.available_at - now).total_seconds()))
    return Carried(of, name, message.id, message.raw, max(LEAST, message.ttl - message.age), delay)


@click.command("import", cls=Command)
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@pass_session
def import_file(session: Session, path: Path) -> None:
    """Bring what was exported into a project.

    Queues and topics get the metadata of FILE, and its messages. A second import of the same file adds nothing.
    """
    session.patient = True
    client, named, messages = session.client, 0, 0
    with path.open("rb") as file, progress(path.name, path.stat().st_size) as bar:
        for part in parts(read(file)):
            if isinstance(part, Named):
                restore(client, part)
                named += 1
                continue
            send(client, part)
            messages += len(part)
            bar(file.tell(), messages)
    session.out.thing({"queues and topics": named, "messages": messages})


def read(file: BinaryIO) -> Iterator[Line]:
    """The lines of an export. Raises ``InvalidBody``."""
    number = 0
    while text := file.readline():
        number += 1
        try:
            yield _decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise InvalidBody(f"Line {number} is none of an export: {error}.") from error


def thing_of(client: Client, home: Home) -> Queue | Topic:
    """A queue or a topic."""
    return client.queue(home[1]) if home[0] == "queue" else client.topic(home[1])


def restore(client: Client, line: Named) -> None:
    """Make a queue or a topic, or give it this metadata."""
    thing = thing_of(client, (line.of, line.name))
    if not thing.create(line.metadata) and line.metadata:
        thing.update(line.metadata)


def parts(lines: Iterable[Line]) -> Iterator[Named | list[Carried]]:
    """The same, messages that go together in batches; decided by nothing but the file."""
    bounds: dict[Home, int] = {}
    batch: list[Carried] = []
    filled = 0
    for line in lines:
        home = line.of, line.name
        if isinstance(line, Named):
            bound = line.metadata.get("_max_messages_post_size")
            bounds[home] = min(BYTES, bound) if isinstance(bound, int) else BYTES
            yield line
            continue
        size = len(bytes(line.body)) + AROUND
        there = batch and (batch[0].of, batch[0].name) == home
        if batch and not (there and len(batch) < MOST and filled + size <= bounds.get(home, BYTES)):
            yield batch
            batch, filled = [], 0
        batch.append(line)
        filled += size
    if batch:
        yield batch


def send(client: Client, batch: list[Carried]) -> None:
    """Post a batch, once."""
    ids = "\n".join(f"{one.id} {one.ttl} {one.delay}" for one in batch)
    key = "import." + hashlib.sha256(f"{batch[0].of} {batch[0].name}\n{ids}".encode()).hexdigest()
    thing = thing_of(client, (batch[0].of, batch[0].name))
    if isinstance(thing, Queue):
        thing.post_batch([Draft(one.body, one.ttl, one.delay or None) for one in batch], key=key)
    else:
        thing.publish_batch([Draft(one.body, one.ttl) for one in batch], key=key)
