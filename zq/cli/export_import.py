# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq export`` and ``zq import``, which save and restore a project as JSON lines.

An export contains the version of the format first, then all queues and topics, then their messages in order. An import
derives the idempotency key of a batch from its message ids. While the server remembers these keys, a repeated import
stores no message twice.

The commands use the HTTP API instead of the parcels of a store, so that a tenant needs no access to the store. An exact
copy is the purpose of ``zq-server migrate``.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final, Literal
from uuid import uuid4

import click
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from zq.cli.apply import settings_file
from zq.cli.failures import RESOURCE_ERRORS, Failure, UnreadableResources
from zq.cli.output import note
from zq.cli.progress import progress_bar
from zq.cli.session import Command, Session, pass_session
from zq.cli.uploads import BODY_OVERHEAD, MAX_BATCH
from zq.client import Client, Draft, ListedResource, Message, Queue, Topic
from zq.client.handles import visible_metadata
from zq.errors import Conflict, Invalid, InvalidBody, QuotaExceeded
from zq.wire.attributes import JsonValue

# Version of the format of an export. An import accepts no other version.
FORMAT_VERSION: Final = 1
# Minimum ttl of an exported message in seconds.
MIN_TTL: Final = 60
# Maximum batch size in bytes. A lower limit of the queue or topic takes precedence.
BATCH_BYTES: Final = 200_000
# Metadata keys that restrict posts. An import applies them last.
RESTRICTIONS: Final = ("_paused", "_max_messages_post_size")
# Errors for which the import skips a batch and continues.
SKIPPED_ERRORS: Final = (Conflict, QuotaExceeded)
# Message members that an import restores.
RESTORED: Final = frozenset({"raw", "ttl", "age", "expires", "available_at", "group", "attributes"})
# Message members that the server sets for each post. Members in neither set are lost.
SET_BY_SERVER: Final = frozenset({"id", "href", "checksum", "sequence", "created", "body_start", "body_bytes"})
Kind = Literal["queue", "topic"]


class HeaderLine(Struct, tag="export", tag_field="is"):
    """The first line of an export."""

    version: int


class ResourceLine(Struct, tag="named", tag_field="is"):
    """The line of an export that describes a queue or topic."""

    of: Kind
    name: str
    metadata: dict[str, object]


class MessageLine(Struct, tag="message", tag_field="is"):
    """A message as a line of an export.

    Attributes:
        of: Kind of the resource that contains the message: queue or topic.
        ttl: Remaining ttl in seconds; ``None`` = the default of the queue or topic.
        delay: Remaining delay in seconds; ``None`` = the default of the queue.
    """

    of: Kind
    name: str
    id: str
    body: Raw
    ttl: int | None
    delay: int | None = 0
    group: str | None = None
    attributes: dict[str, JsonValue] | UnsetType = UNSET


Line = ResourceLine | MessageLine
ResourceKey = tuple[Kind, str]
_header_decoder: Final = msgspec.json.Decoder(HeaderLine)
_decoder: Final = msgspec.json.Decoder(Line)


@click.command("export", cls=Command)
@click.option(
    "--to", "path", type=click.Path(dir_okay=False, path_type=Path), help="Output file (default: standard output)."
)
@click.option("--settings", is_flag=True, help="Export the settings as a YAML file for zq apply, without messages.")
@pass_session
def export(session: Session, path: Path | None, settings: bool) -> None:
    """Export all queues and topics with their messages as JSON lines, or only the settings.

    The export includes claimed and delayed messages, but no claims and no history. If messages have members that an
    import cannot restore, such as claim counts, zq lists these members on standard error and exits with 1.

    To compress an export, run "zq export | zstd > FILE.zst". To import it, run "zstd -dc FILE.zst | zq import -".
    """
    session.configure(patient=True)
    if settings:
        content = settings_file(session)
        with open_replacement(path) if path else nullcontext(sys.stdout.buffer) as file:
            file.write(content)
            file.flush()
        return
    count, unread, losses = 0, UnreadableResources(), LossCounts()
    with (
        open_replacement(path) if path else nullcontext(sys.stdout.buffer) as file,
        progress_bar("export", None) as bar,
    ):
        for line in export_lines(session.client, unread, losses):
            file.write(msgspec.json.encode(line) + b"\n")
            count += isinstance(line, MessageLine)
            if count % 100 == 0:
                bar(0, count)
        file.flush()
    if path:
        session.out.result({"file": str(path), "messages": count})
    losses.report()
    unread.check()
    losses.check()


@contextmanager
def open_replacement(path: Path) -> Generator[BinaryIO, None, None]:
    """Open a temporary file that replaces the file at ``path`` when the block ends."""
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            yield file
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


class LossCounts:
    """Counts of the exported messages that an import cannot restore completely."""

    def __init__(self) -> None:
        self._counts: Counter[ResourceKey] = Counter()
        self._members: dict[ResourceKey, set[str]] = {}

    def add(self, key: ResourceKey, message: Message) -> None:
        """Count the message if an import cannot restore all its members."""
        if members := lost_members(message):
            self._counts[key] += 1
            self._members.setdefault(key, set()).update(members)

    def report(self) -> None:
        """Print the names of the members that an import cannot restore, for each queue or topic."""
        for (of, name), count in self._counts.items():
            members = ", ".join(sorted(self._members[of, name]))
            note(f"{count:,} messages of {of} {name} will lose these members: {members}.")

    def check(self) -> None:
        """Raise ``Failure`` if there are messages that an import cannot restore completely."""
        if count := self._counts.total():
            raise Failure(f"{count:,} messages have members that an import cannot restore.")


def lost_members(message: Message) -> list[str]:
    """Return the message's members that an import would lose."""
    kept = RESTORED | SET_BY_SERVER
    return [member for member in message.__struct_fields__ if member not in kept and getattr(message, member)]


def export_lines(client: Client, unread: UnreadableResources, losses: LossCounts) -> Iterator[HeaderLine | Line]:
    """Yield the lines of a project's export: the header, then all queues and topics, then their messages.

    If the messages of a queue or topic cannot be read, the queue or topic is added to ``unread``. Messages that an
    import cannot restore completely are counted in ``losses``.
    """
    page = client.limits()["max_messages_per_page"]
    queues = [*client.queues(detailed=True)]
    topics = [*client.topics(detailed=True)]
    listed: tuple[tuple[Kind, list[ListedResource]], ...] = ("queue", queues), ("topic", topics)
    yield HeaderLine(FORMAT_VERSION)
    for of, resources in listed:
        defaults = resource_handle(client, (of, uuid4().hex)).metadata()
        for resource in resources:
            metadata = dict(resource.metadata or {})
            yield ResourceLine(
                of, resource.name, {key: value for key, value in metadata.items() if defaults.get(key) != value}
            )
    for of, resources in listed:
        for resource in resources:
            try:
                yield from message_lines(client, (of, resource.name), page, losses)
            except RESOURCE_ERRORS as error:
                unread.add(f"{of} {resource.name}", error)


def message_lines(client: Client, key: ResourceKey, page: int, losses: LossCounts) -> Iterator[MessageLine]:
    resource = resource_handle(client, key)
    if isinstance(resource, Queue):
        found = resource.list(claimed=True, delayed=True, page=page)
    else:
        found = resource.list(page=page)
    for message in found:
        losses.add(key, message)
        yield to_message_line(*key, message)


def to_message_line(of: Kind, name: str, message: Message) -> MessageLine:
    """Convert a message to a line of the export. A claimed message is exported as a ready message."""
    delay = 0
    if message.created and message.available_at and not message.claim:
        now = message.created + timedelta(seconds=message.age)
        delay = max(0, int((message.available_at - now).total_seconds()))
    ttl = max(MIN_TTL, message.ttl - message.age)
    return MessageLine(
        of, name, message.id, message.raw, ttl, delay, message.group or None, message.attributes or UNSET
    )


@click.command("import", cls=Command)
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@pass_session
def import_file(session: Session, path: Path) -> None:
    """Import queues, topics and messages from an export.

    FILE "-" is standard input. If a queue or topic exists, its metadata is overwritten. If you import a file twice, no
    message is stored twice. zq reports messages that it cannot store or that lose their ttl or delay, and exits with 1.
    """
    session.configure(patient=True, check_delays=False)
    client, messages, lost, refused, importer = session.client, 0, 0, 0, Importer(session.client)
    named: list[ResourceLine] = []
    try:
        with nullcontext(sys.stdin.buffer) if path == Path("-") else path.open("rb") as file:
            lines = ExportReader(file)
            with progress_bar(path.name, path.stat().st_size if path.is_file() else None) as bar:
                for part in group_batches(lines):
                    if isinstance(part, ResourceLine):
                        named.append(part)
                        if not try_change(restore, client, part):
                            named.pop()
                            refused += 1
                        continue
                    stored = importer.send(part)
                    lost += len(part) - stored
                    messages += stored
                    bar(lines.offset, messages)
    finally:
        # An interrupted import also applies the restrictions, so that paused queues stay paused.
        refused += sum(not try_change(restrict, client, line) for line in named)
    session.out.result({"queues and topics": len(named), "messages": messages})
    importer.report()
    if lost or refused:
        queues = f" and {refused:,} queues and topics" if refused else ""
        raise Failure(f"{lost:,} messages{queues} were rejected.")
    importer.check()


class ExportReader:
    """An iterator over the lines of an export after the header.

    Raises ``InvalidBody`` for an unknown version of the format, and for a line that is not valid.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.offset = 0
        self._file = file

    def __iter__(self) -> Iterator[Line]:
        for number, text in enumerate(self._file, 1):
            self.offset += len(text)
            try:
                line = _header_decoder.decode(text) if number == 1 else _decoder.decode(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise InvalidBody(f"Line {number} is not a valid line of an export: {error}.") from error
            if not isinstance(line, HeaderLine):
                yield line
            elif line.version != FORMAT_VERSION:
                raise InvalidBody(
                    f"The export has format {line.version}, but this version of zq imports only format "
                    f"{FORMAT_VERSION}. Import it with the version of zq that exported it."
                )


def to_draft(line: MessageLine) -> Draft:
    return Draft(line.body, line.ttl, line.delay, line.group, line.attributes or None)


def resource_handle(client: Client, key: ResourceKey) -> Queue | Topic:
    return client.queue(key[1]) if key[0] == "queue" else client.topic(key[1])


def try_change(change: Callable[[Client, ResourceLine], None], client: Client, line: ResourceLine) -> bool:
    """Apply a change to a queue or topic. If the server rejects the change, print a note and return ``False``."""
    try:
        change(client, line)
    except RESOURCE_ERRORS as error:
        note(f"{line.of} {line.name} could not be restored: {error}")
        return False
    return True


def restore(client: Client, line: ResourceLine) -> None:
    """Create or update a queue or topic with its metadata, so that it accepts the messages of the import.

    Metadata that could reject posts, such as a pause or a maximum message size, is left to ``restrict``.
    """
    resource = resource_handle(client, (line.of, line.name))
    metadata = {key: value for key, value in line.metadata.items() if key not in RESTRICTIONS}
    if line.metadata.get("_paused") in ("claims", "all"):
        metadata["_paused"] = "claims"
    if not resource.create(metadata) and line.metadata:
        # An earlier import may have applied the restrictions, so remove them.
        resource.update(dict.fromkeys(restrictions(line)) | metadata)


def restrict(client: Client, line: ResourceLine) -> None:
    """Set the metadata that could reject posts, such as a pause, after all messages were posted."""
    if metadata := restrictions(line):
        resource_handle(client, (line.of, line.name)).update(metadata)


def restrictions(line: ResourceLine) -> dict[str, object]:
    return {key: line.metadata[key] for key in RESTRICTIONS if key in line.metadata}


def group_batches(lines: Iterable[Line]) -> Iterator[ResourceLine | list[MessageLine]]:
    """Group consecutive messages into batches. The same file always gives the same batches."""
    bounds: dict[ResourceKey, int] = {}
    batch: list[MessageLine] = []
    filled = 0
    for line in lines:
        key = line.of, line.name
        if isinstance(line, ResourceLine):
            bound = line.metadata.get("_max_messages_post_size")
            bounds[key] = min(BATCH_BYTES, bound) if isinstance(bound, int) else BATCH_BYTES
            yield line
            continue
        size = len(bytes(line.body)) + BODY_OVERHEAD
        if line.attributes:
            size += len(msgspec.json.encode(line.attributes))
        there = batch and (batch[0].of, batch[0].name) == key
        if batch and not (there and len(batch) < MAX_BATCH and filled + size <= bounds.get(key, BATCH_BYTES)):
            yield batch
            batch, filled = [], 0
        batch.append(line)
        filled += size
    if batch:
        yield batch


class Importer:
    """A sender of message batches, which counts the messages that were stored without their ttl or delay."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._changed = 0
        self._undelayed: Counter[str] = Counter()
        self._ignores_delays: dict[str, bool] = {}

    def send(self, batch: list[MessageLine]) -> int:
        """Post a batch and return the number of accepted messages.

        If the server rejects the batch as invalid, split the batch and post the halves.
        """
        try:
            self._post(batch)
        except SKIPPED_ERRORS as error:
            note(f"{len(batch):,} messages of {batch[0].of} {batch[0].name} are skipped: {error}")
            return 0
        except Invalid as error:
            if len(batch) == 1:
                return self._send_bare(batch[0], error)
            middle = len(batch) // 2
            return self.send(batch[:middle]) + self.send(batch[middle:])
        return len(batch)

    def report(self) -> None:
        """Print a note for each queue that ignored the delays of its messages."""
        for name, count in self._undelayed.items():
            note(
                f"{count:,} delayed messages of queue {name} are ready at once: the queue ignores delays, because "
                "it has no _default_message_delay."
            )

    def check(self) -> None:
        """Raise ``Failure`` if a message lost its ttl or delay."""
        if count := self._changed + self._undelayed.total():
            raise Failure(f"{count:,} messages were imported without their ttl or delay; see the notes above.")

    def _send_bare(self, message: MessageLine, refused: Invalid) -> int:
        """Post a rejected message again, without ttl and delay. Return 1 if it is stored, else 0."""
        name = f"Message {message.id} of {message.of} {message.name}"
        try:
            self._post([replace(message, ttl=None, delay=None)])
        except (Invalid, *SKIPPED_ERRORS) as error:
            note(f"{name} is skipped: {refused if isinstance(error, Invalid) else error}")
            return 0
        note(f"{name} gets the default ttl and delay: {refused}")
        self._changed += 1
        return 1

    def _post(self, batch: list[MessageLine]) -> None:
        of, name = batch[0].of, batch[0].name
        ids = "\n".join(f"{one.id} {one.ttl} {one.delay}" for one in batch)
        key = "import." + hashlib.sha256(f"{of} {name}\n{ids}".encode()).hexdigest()
        resource = resource_handle(self._client, (of, name))
        if isinstance(resource, Topic):
            resource.publish_batch(
                [Draft(one.body, one.ttl, attributes=one.attributes or None) for one in batch], key=key
            )
            return
        resource.post_batch([to_draft(one) for one in batch], key=key)
        delayed = sum(bool(one.delay) for one in batch)
        if delayed and self._ignores_delays_of(resource):
            self._undelayed[name] += delayed

    def _ignores_delays_of(self, queue: Queue) -> bool:
        if queue.name not in self._ignores_delays:
            self._ignores_delays[queue.name] = visible_metadata(queue).get("_default_message_delay") == 0
        return self._ignores_delays[queue.name]
