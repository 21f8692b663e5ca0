# SPDX-License-Identifier: Apache-2.0
"""The verbs common to queues and topics (metadata, stats, purge), and decoders of message listings."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import parse_qs, parse_qsl, urlsplit

import msgspec
from msgspec.structs import replace

from zq import wire
from zq.client.calls import Answer, Call, Page, Params, Repeat, decode_as, decode_object, nothing, operation, path
from zq.client.values import Finished, Gap, Listed, Message, Messages, Stats, Stretch
from zq.errors import Invalid
from zq.wire import answers
from zq.wire.numbers import checked_json

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Ids = list[str]
# Request header of a metadata change.
PATCH_TYPE = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}


class Paged(answers.HistoryPage[M], Generic[M]):
    """A page of messages. A page of a topic may have the members after ``links``."""

    gap: Gap | None = None
    position: int | None = None


_unlinked: Final = msgspec.json.Decoder(answers.Messages[Message])
MESSAGES: Final = msgspec.json.Decoder(Paged[Message])
FINISHED: Final = msgspec.json.Decoder(Paged[Finished])


def id_list(ids: Iterable[str]) -> Ids:
    """Return ids as a list. Raises ``Invalid`` for a single text, whose letters would be mistaken for ids."""
    if isinstance(ids, str):
        raise Invalid("Ids must be a list of strings, not a single string.")
    return [*ids]


def messages_call(
    method: str, path: str, params: Params, wait: int = 0, repeat: Repeat = Repeat.SAFE
) -> Call[Messages]:
    """Return a call that reads the messages of one answer."""
    return Call(
        method=method,
        path=path,
        params=params,
        read=lambda answer: _unlinked.decode(answer.body).messages,
        repeat=repeat,
        wait=wait,
    )


def stretch_call(decoder: "msgspec.json.Decoder[Paged[M]]", path: str, params: Params) -> Call[Stretch[M]]:
    """Return the call for one page of messages or history, and its end position."""

    def read(answer: Answer) -> Stretch[M]:
        page = decoder.decode(answer.body)
        if not page.messages:
            return Stretch([], None, page.gap, page.position)
        return Stretch(page.messages, int(parse_qs(urlsplit(page.links[0].href).query)["marker"][0]), page.gap)

    return Call(method="GET", path=path, params=params, read=read)


def message_pages(decoder: "msgspec.json.Decoder[Paged[M]]", path: str, params: Params) -> Call[Page[M]]:
    """Return the call for the first page of messages or history."""

    def read(answer: Answer) -> Page[M]:
        page = decoder.decode(answer.body)
        if not (page.messages and page.links):
            return Page(page.messages, None)
        # Only the query of the link is used, because the call's own path quotes names that consist of dots.
        query = page.links[0].href.partition("?")[2]
        return Page(page.messages, Call(method="GET", path=f"{path}?{query}", read=read))

    return Call(method="GET", path=path, params=params, read=read)


class ResourceVerbs:
    """A queue or topic. ``kind`` is its path segment."""

    kind: ClassVar[str]

    def __init__(self, transport: Any, name: str) -> None:
        self.transport = transport
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @operation
    def create(self, metadata: Mapping[str, Any] | None = None) -> Call[bool]:
        """Create the queue or topic. Return ``False`` if it exists; its metadata is not changed then.

        After a retry, the result may be ``False`` although this call created it.
        """
        self.transport.warnings.rules(self.kind, metadata or {})
        body = checked_json(metadata) if metadata else b""
        return Call(
            method="PUT", path=self._path(), body=body, read=lambda answer: {201: True, 204: False}[answer.status]
        )

    @operation
    def metadata(self) -> Call[dict[str, Any]]:
        """Return the metadata, with defaults for unset reserved keys. A missing queue or topic has the defaults."""
        return Call(method="GET", path=self._path(), read=decode_object)

    @operation
    def update(self, metadata: Mapping[str, Any] | None = None, *, remove: Iterable[str] = ()) -> Call[dict[str, Any]]:
        """Set some metadata keys, remove others, and return the new metadata.

        Raises ``QueueNotFound`` or ``TopicNotFound``, and ``MetadataConflict`` if a key to remove does not exist.
        """
        self.transport.warnings.rules(self.kind, metadata or {})
        removed = [{"op": "remove", "path": _pointer(key)} for key in remove]
        added = [{"op": "add", "path": _pointer(key), "value": value} for key, value in (metadata or {}).items()]
        return self._patch(added + removed, Repeat.UNSENT if removed else Repeat.SAFE)

    @operation
    def delete(self) -> Call[None]:
        """Delete the queue or topic with its messages. Has no effect if it does not exist."""
        return Call(method="DELETE", path=self._path(), read=nothing)

    @operation
    def purge(self) -> Call[None]:
        """Delete all messages."""
        body = wire.encode({"resource_types": ["messages"]})
        return Call(method="POST", path=self._path("purge"), body=body, read=nothing, repeat=Repeat.UNSENT)

    @operation
    def stats(self) -> Call[Stats]:
        """Return the message counts, and the oldest and newest message."""
        return Call(
            method="GET",
            path=self._path("stats"),
            params={"detailed": True},
            read=lambda answer: msgspec.json.decode(answer.body, type=dict[str, Stats])["messages"],
        )

    @operation
    def exists(self) -> Call[bool]:
        """Return whether the queue or topic exists."""
        just_before = self.name[:-1] + chr(ord(self.name[-1:] or "0") - 1) + "~"
        return Call(
            method="GET",
            path=path(self.kind),
            params={"marker": just_before, "limit": 1},
            read=lambda answer: [listed.name for listed in _listed(self.kind, answer)] == [self.name],
        )

    @operation
    def get(self, message: str) -> Call[Message]:
        """Return a message. Raises ``MessageNotFound``."""
        return Call(
            method="GET",
            path=self._path("messages", message),
            params={"detailed": True},
            read=decode_as(Message),
        )

    @operation
    def get_many(self, messages: Iterable[str]) -> Call[Messages]:
        """Return the existing messages among those with these ids. Raises ``MessageNotFound`` if there are none."""
        ids = id_list(messages)
        found = messages_call("GET", self._path("messages"), {"ids": ids, "detailed": True})
        return found if ids else replace(found, local_answer=Answer(200, {}, b'{"messages":[]}'))

    def _patch(self, operations: list[dict[str, Any]], repeat: Repeat = Repeat.SAFE) -> Call[dict[str, Any]]:
        """Return the call that changes the metadata and reads the new metadata."""
        body = checked_json(operations)
        return Call(method="PATCH", path=self._path(), headers=PATCH_TYPE, body=body, read=decode_object, repeat=repeat)

    def _path(self, *below: str) -> str:
        return path(self.kind, self.name, *below)


def resource_page(kind: str, page_size: int | None, detailed: bool, filters: Params) -> Call[Page[Listed]]:
    """Return the call for the first page of the project's queues or topics."""
    params = {"limit": page_size, "detailed": True if detailed else None, **filters}

    def read(answer: Answer) -> Page[Listed]:
        listed = _listed(kind, answer)
        # The link need not repeat the filters, but it has the next marker even after an empty page.
        marker = _marker(answer)
        return Page(listed, page_call(marker) if marker else None)

    def page_call(marker: str | None) -> Call[Page[Listed]]:
        return Call(method="GET", path=path(kind), params={"marker": marker, **params}, read=read)

    return page_call(None)


def _marker(answer: Answer) -> str | None:
    """Return the marker in the link to the next page, or ``None``."""
    for link in decode_object(answer).get("links", []):
        if link["rel"] == "next":
            return dict(parse_qsl(urlsplit(link["href"]).query)).get("marker")
    return None


def _listed(kind: str, answer: Answer) -> list[Listed]:
    return [Listed(entry["name"], entry.get("metadata")) for entry in decode_object(answer)[kind]]


def _pointer(key: str) -> str:
    return "/metadata/" + key.replace("~", "~0").replace("/", "~1")
