# SPDX-License-Identifier: Apache-2.0
"""Messages of topics on the wire: JSON responses and server-sent events (extensions contract, section 8)."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from zq.model import Seconds, age
from zq.model.attributes import decode_attributes
from zq.model.topics import Entry, PublishedMessage
from zq.turns import slices
from zq.wire import answers, encode
from zq.wire.attributes import JsonValue, format_values
from zq.wire.encoding import next_links, timestamp

# Characters that some clients treat as line ends. In JSON, the ASCII ones occur only between tokens.
LINE_END: Final = re.compile(b"[\r\n]|\xe2\x80[\xa8\xa9]|\xc2\x85")
# Template of an event, filled first with the values of a batch and then with those of each message.
FRAME: Final = (
    b"id: %%b\nevent: message\n"
    b'data: {"id":"%%b","href":"/v2/topics/%b/messages/%%b","ttl":%%d,"age":%d,"body":%%b%%b,"topic":"%b"}\n\n'
)
# Templates of the checksum and the attributes in an event.
CHECKSUM: Final = b',"checksum":"%b"'
ATTRIBUTES: Final = b',"attributes":%b'


def href(topic: str, sequence: int) -> str:
    """Return the URL path of a message in a topic."""
    return f"/v2/topics/{topic}/messages/{sequence}"


def published(topic: str, sequences: Sequence[int]) -> bytes:
    """Encode the response to a publish request: the paths of the messages."""
    prefix = f"/v2/topics/{topic}/messages/"
    return encode(answers.PostedHrefs([f"{prefix}{sequence}" for sequence in sequences]))


def page(
    topic: str,
    messages: Sequence[PublishedMessage],
    now: Seconds,
    query: dict[str, str] | None,
    gap: tuple[int, int] | None,
    position: int | None,
) -> bytes:
    """Encode a page of a topic's messages.

    Args:
        gap: The sequence numbers of the last message before the gap and the first message after it.
        position: Log position up to which the server searched; ``None`` = encode the page without details.
    """
    shown = [_format_message(message, now, position is not None) for part in slices(messages) for message in part]
    next_page = next_links(f"/v2/topics/{topic}/messages", query)
    missing = None if gap is None else answers.Gap(*gap)
    return encode(answers.TopicMessagePage(shown, next_page, missing, None if messages else position))


def messages(found: Sequence[PublishedMessage], now: Seconds, detailed: bool) -> bytes:
    """Encode a list of a topic's messages, without a link to a next page."""
    return encode(answers.Messages([_format_message(message, now, detailed) for message in found]))


def message(found: PublishedMessage, now: Seconds, detailed: bool) -> bytes:
    return encode(_format_message(found, now, detailed))


def events(messages: Sequence[PublishedMessage], now: Seconds) -> list[bytes]:
    """Render messages as server-sent events, one per message."""
    parts = []
    batch: tuple[str, Seconds] | None = None
    for message in (message for part in slices(messages) for message in part):
        if (message.topic, message.created) != batch:
            batch = message.topic, message.created
            name = message.topic.encode()
            frame = FRAME % (name, age(message.created, now), name)
        entry, sequence = message.entry, b"%d" % message.sequence
        body = LINE_END.sub(_in_one_line, entry.body)
        more = CHECKSUM % entry.checksum.encode() if entry.checksum else b""
        if entry.attributes:
            more += ATTRIBUTES % LINE_END.sub(_in_one_line, encode(_attributes(entry)))
        parts.append(frame % (sequence, sequence, sequence, entry.ttl, body, more))
    return parts


def gap_event(after: int, resumes: int) -> bytes:
    """Render the server-sent event for missing messages: the sequence numbers between ``after`` and ``resumes``.

    The event id is the last missing sequence number, so that a client that reconnects resumes after the gap.
    """
    return b"id: %d\nevent: gap\ndata: %b\n\n" % (resumes - 1, encode(answers.Gap(after, resumes)))


def opening(position: int) -> bytes:
    """Render the start of a stream, with ``position`` as the event id.

    A client that reconnects resumes from this position.
    """
    return b": zq\nid: %d\n\n" % position


def heartbeat(position: int) -> bytes:
    """Render a heartbeat: a comment, and ``position`` as the event id.

    A client that reconnects resumes from this position.
    """
    return b": heartbeat\nid: %d\n\n" % position


def _in_one_line(end: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(end[0].decode()) if len(end[0]) > 1 else b" "


def _format_message(message: PublishedMessage, now: Seconds, detailed: bool) -> answers.BriefMessage:
    entry, sequence = message.entry, message.sequence
    common = str(sequence), entry.ttl, age(message.created, now), href(message.topic, sequence)
    body = Raw(entry.body)
    if not detailed:
        return answers.BriefMessage(*common, body, entry.checksum)
    return answers.TopicMessage(
        *common,
        body,
        entry.checksum,
        sequence=sequence,
        created=timestamp(message.created),
        expires=timestamp(message.created + entry.ttl),
        attributes=_attributes(entry),
    )


def _attributes(entry: Entry) -> dict[str, JsonValue]:
    return format_values(decode_attributes(entry.attributes))
