# SPDX-License-Identifier: Apache-2.0
"""Published messages on the wire: answers about topics' messages, and Server-Sent Events (extensions 8)."""

import re
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw
from msgspec.structs import asdict

from zq.model import Seconds, age
from zq.model.topics import Published
from zq.turns import slices
from zq.wire import encode
from zq.wire.answers import MessageOut, next_link, timestamp

# What some readers of events take for the end of a line. Those in ASCII stand between JSON's tokens only.
LINE_END: Final = re.compile(b"[\r\n]|\xe2\x80[\xa8\xa9]|\xc2\x85")
# The template of an event: first for what messages of one batch have in common, then for the rest.
FRAME: Final = (
    b"id: %%b\nevent: message\n"
    b'data: {"id":"%%b","href":"/v2/topics/%b/messages/%%b","ttl":%%d,"age":%d,"body":%%b%%b,"topic":"%b"}\n\n'
)
# The template of the checksum within an event.
CHECKSUM: Final = b',"checksum":"%b"'


def href(topic: str, sequence: int) -> str:
    """Where a published message is."""
    return f"/v2/topics/{topic}/messages/{sequence}"


def published(topic: str, sequences: Sequence[int]) -> bytes:
    """The hrefs of published messages."""
    return encode({"resources": [href(topic, sequence) for sequence in sequences]})


def page(
    topic: str,
    messages: Sequence[Published],
    now: Seconds,
    query: dict[str, str] | None,
    gap: tuple[int, int] | None,
    position: int | None,
) -> bytes:
    """A listing; ``query`` is what the next page's link repeats, None on an empty page. ``gap``: after, resumes.

    ``position``: up to where the log was looked through, for a listing with details; an empty one shows it.
    """
    answer: dict[str, Any] = {
        "messages": [_out(message, now, position is not None) for part in slices(messages) for message in part],
        "links": [] if query is None else [next_link(f"/v2/topics/{topic}/messages", query)],
    }
    if position is not None and not messages:
        answer["position"] = position
    return encode(answer if gap is None else answer | {"gap": _gap(*gap)})


def messages(found: Sequence[Published], now: Seconds, detailed: bool) -> bytes:
    """Representations without links."""
    return encode({"messages": [_out(message, now, detailed) for message in found]})


def message(found: Published, now: Seconds, detailed: bool) -> bytes:
    """One representation."""
    return encode(_out(found, now, detailed))


def events(messages: Sequence[Published], now: Seconds) -> list[bytes]:
    """Render an event for each message: its representation and its topic."""
    parts = []
    batch: tuple[str, Seconds] | None = None
    for message in (message for part in slices(messages) for message in part):
        if (message.topic, message.created) != batch:
            batch = message.topic, message.created
            name = message.topic.encode()
            frame = FRAME % (name, age(message.created, now), name)
        entry, sequence = message.entry, b"%d" % message.sequence
        body = LINE_END.sub(_in_one_line, entry.body)
        checksum = CHECKSUM % entry.checksum.encode() if entry.checksum else b""
        parts.append(frame % (sequence, sequence, sequence, entry.ttl, body, checksum))
    return parts


def gap_event(after: int, resumes: int) -> bytes:
    """Says what was missed; a reader that resumes behind it does not get it again."""
    return b"id: %d\nevent: gap\ndata: %b\n\n" % (resumes - 1, encode(_gap(after, resumes)))


def opening(position: int) -> bytes:
    """Comes at once, so that a reader that loses its stream before the first event knows where to resume."""
    return b": zq\nid: %d\n\n" % position


def heartbeat(position: int) -> bytes:
    """Shows that the stream lives; the id moves the place where its reader resumes, and is no event."""
    return b": heartbeat\nid: %d\n\n" % position


def _in_one_line(end: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(end[0].decode()) if len(end[0]) > 1 else b" "


def _out(message: Published, now: Seconds, detailed: bool) -> Any:
    entry, sequence = message.entry, message.sequence
    seconds = age(message.created, now)
    out = MessageOut(str(sequence), href(message.topic, sequence), entry.ttl, seconds, Raw(entry.body), entry.checksum)
    if not detailed:
        return out
    members = {name: value for name, value in asdict(out).items() if name != "checksum" or value}
    expires = timestamp(message.created + entry.ttl)
    return members | {"sequence": sequence, "created": timestamp(message.created), "expires": expires}


def _gap(after: int, resumes: int) -> dict[str, int]:
    return {"after": after, "resumes": resumes}
