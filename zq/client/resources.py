# SPDX-License-Identifier: Apache-2.0
"""The operations common to queues and topics (metadata, stats, purge), and decoders of message listings."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar
from urllib.parse import parse_qs, parse_qsl, urlsplit

import msgspec
from msgspec.structs import replace

from zq import wire
from zq.client.calls import Call, Page, Params, Repeat, Response, decode_as, operation, path, read_empty, read_object
from zq.client.values import FinishedMessage, Gap, ListedResource, Message, MessagePage, Messages, Stats
from zq.errors import Invalid
from zq.wire import answers
from zq.wire.numbers import checked_json

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Ids = list[str]
# Request header of a metadata update.
PATCH_TYPE = {"Content-Type": "application/openstack-messaging-v2.0-json-patch"}


class PageBody(answers.HistoryPage[M], Generic[M]):
    """The response body of a message listing. Only topics have the members ``gap`` and ``position``."""

    gap: Gap | None = None
    position: int | None = None


_unlinked: Final = msgspec.json.Decoder(answers.Messages[Message])
MESSAGES: Final = msgspec.json.Decoder(PageBody[Message])
FINISHED: Final = msgspec.json.Decoder(PageBody[FinishedMessage])


def id_list(ids: Iterable[str]) -> Ids:
    """Convert ids to a list. Raises ``Invalid`` if ``ids`` is a single string."""
    if isinstance(ids, str):
        raise Invalid("Ids must be a list of strings, not a single string.")
    return [*ids]


def messages_call(
    method: str, path: str, params: Params, wait: int = 0, repeat: Repeat = Repeat.SAFE
) -> Call[Messages]:
    """Build the API call that sends a request and returns the messages in the response."""
    return Call(
        method=method,
        path=path,
        params=params,
        read=lambda response: _unlinked.decode(response.body).messages,
        repeat=repeat,
        wait=wait,
    )


def message_page_call(decoder: "msgspec.json.Decoder[PageBody[M]]", path: str, params: Params) -> Call[MessagePage[M]]:
    """Build the API call that reads a page of messages or history entries as a ``MessagePage``."""

    def read(response: Response) -> MessagePage[M]:
        page = decoder.decode(response.body)
        if not page.messages:
            return MessagePage([], None, page.gap, page.position)
        return MessagePage(page.messages, int(parse_qs(urlsplit(page.links[0].href).query)["marker"][0]), page.gap)

    return Call(method="GET", path=path, params=params, read=read)


def message_pages(decoder: "msgspec.json.Decoder[PageBody[M]]", path: str, params: Params) -> Call[Page[M]]:
    """Build the API call that reads the first page of messages or history entries.

    Each page contains the call for the next page. An empty page is the last one.
    """

    def read(response: Response) -> Page[M]:
        page = decoder.decode(response.body)
        if not (page.messages and page.links):
            return Page(page.messages, None)
        # The path of the link is not used, because it does not quote names that consist of dots.
        query = page.links[0].href.partition("?")[2]
        return Page(page.messages, Call(method="GET", path=f"{path}?{query}", read=read))

    return Call(method="GET", path=path, params=params, read=read)


class ResourceOperations:
    """The operations common to queues and topics."""

    kind: ClassVar[str]
    """Path segment: ``queues`` or ``topics``."""

    def __init__(self, transport: Any, name: str) -> None:
        self.transport = transport
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @operation
    def create(self, metadata: Mapping[str, Any] | None = None) -> Call[bool]:
        """Create the queue or topic and return ``True``. If the name exists, return ``False`` and change nothing.

        If the response to the first attempt is lost, a retry may return ``False`` although this call created the queue
        or topic.
        """
        self.transport.warnings.warn_of_unknown_keys(self.kind, metadata or {})
        body = checked_json(metadata) if metadata else b""
        return Call(
            method="PUT", path=self._path(), body=body, read=lambda response: {201: True, 204: False}[response.status]
        )

    @operation
    def metadata(self) -> Call[dict[str, Any]]:
        """Return the metadata, including defaults. If the queue or topic does not exist, return only the defaults."""
        return Call(method="GET", path=self._path(), read=read_object)

    @operation
    def update(self, metadata: Mapping[str, Any] | None = None, *, remove: Iterable[str] = ()) -> Call[dict[str, Any]]:
        """Set and remove metadata keys. Return the new metadata.

        Raises ``QueueNotFound`` or ``TopicNotFound`` if the queue or topic does not exist. Raises ``MetadataConflict``
        if a key in ``remove`` does not exist.
        """
        self.transport.warnings.warn_of_unknown_keys(self.kind, metadata or {})
        removed = [{"op": "remove", "path": _pointer(key)} for key in remove]
        added = [{"op": "add", "path": _pointer(key), "value": value} for key, value in (metadata or {}).items()]
        return self._patch(added + removed, Repeat.UNSENT if removed else Repeat.SAFE)

    @operation
    def delete(self) -> Call[None]:
        """Delete the queue or topic with all messages. Has no effect if it does not exist."""
        return Call(method="DELETE", path=self._path(), read=read_empty)

    @operation
    def purge(self) -> Call[None]:
        """Delete all messages."""
        body = wire.encode({"resource_types": ["messages"]})
        return Call(method="POST", path=self._path("purge"), body=body, read=read_empty, repeat=Repeat.UNSENT)

    @operation
    def stats(self) -> Call[Stats]:
        """Return the message counts, and the oldest and newest message."""
        return Call(
            method="GET",
            path=self._path("stats"),
            params={"detailed": True},
            read=lambda response: msgspec.json.decode(response.body, type=dict[str, Stats])["messages"],
        )

    @operation
    def exists(self) -> Call[bool]:
        """Return whether the queue or topic exists."""
        just_before = self.name[:-1] + chr(ord(self.name[-1:] or "0") - 1) + "~"
        return Call(
            method="GET",
            path=path(self.kind),
            params={"marker": just_before, "limit": 1},
            read=lambda response: [listed.name for listed in _listed(self.kind, response)] == [self.name],
        )

    @operation
    def get(self, message: str) -> Call[Message]:
        """Return a message. Raises ``MessageNotFound`` if the message does not exist."""
        return Call(
            method="GET",
            path=self._path("messages", message),
            params={"detailed": True},
            read=decode_as(Message),
        )

    @operation
    def get_many(self, messages: Iterable[str]) -> Call[Messages]:
        """Return messages by id. Skip unknown ids; if all ids are unknown, raise ``MessageNotFound``."""
        ids = id_list(messages)
        found = messages_call("GET", self._path("messages"), {"ids": ids, "detailed": True})
        return found if ids else replace(found, local_response=Response(200, {}, b'{"messages":[]}'))

    def _patch(self, operations: list[dict[str, Any]], repeat: Repeat = Repeat.SAFE) -> Call[dict[str, Any]]:
        body = checked_json(operations)
        return Call(method="PATCH", path=self._path(), headers=PATCH_TYPE, body=body, read=read_object, repeat=repeat)

    def _path(self, *below: str) -> str:
        return path(self.kind, self.name, *below)


def resource_page(kind: str, page_size: int | None, detailed: bool, filters: Params) -> Call[Page[ListedResource]]:
    """Build the API call that reads the first page of a listing. ``kind`` is "queues" or "topics"."""
    params = {"limit": page_size, "detailed": True if detailed else None, **filters}

    def read(response: Response) -> Page[ListedResource]:
        listed = _listed(kind, response)
        # A filter can make a page empty. Its link still has the next marker, but may lack the filters.
        marker = _marker(response)
        return Page(listed, page_call(marker) if marker else None)

    def page_call(marker: str | None) -> Call[Page[ListedResource]]:
        return Call(method="GET", path=path(kind), params={"marker": marker, **params}, read=read)

    return page_call(None)


def _marker(response: Response) -> str | None:
    for link in read_object(response).get("links", []):
        if link["rel"] == "next":
            return dict(parse_qsl(urlsplit(link["href"]).query)).get("marker")
    return None


def _listed(kind: str, response: Response) -> list[ListedResource]:
    return [ListedResource(entry["name"], entry.get("metadata")) for entry in read_object(response)[kind]]


def _pointer(key: str) -> str:
    return "/metadata/" + key.replace("~", "~0").replace("/", "~1")
