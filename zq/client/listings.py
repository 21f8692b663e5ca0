# SPDX-License-Identifier: Apache-2.0
"""Messages in answers: pages that are linked, and single answers with several."""

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from zq.client.calls import Answer, Call, Page, Params, Repeat
from zq.client.values import Finished, Gap, Message, Messages, Stretch
from zq.errors import Invalid

T = TypeVar("T")
M = TypeVar("M", bound=Message)
Ids = list[str]


class Paged(Struct, Generic[M]):
    """A page of messages on the wire."""

    messages: list[M]
    links: list[dict[str, str]] = []
    gap: Gap | None = None
    position: int | None = None


_messages: Final = msgspec.json.Decoder(Paged[Message])
_finished: Final = msgspec.json.Decoder(Paged[Finished])


def linked(path: str, items: list[T], links: list[dict[str, str]], read: Callable[[Answer], Page[T]]) -> Page[T]:
    """A page, continued by its link until one comes back empty."""
    if not (items and links):
        return Page(items, None)
    # Of the link only the query: dots that are a name are quoted in the call's own path alone.
    return Page(items, Call(method="GET", path=f"{path}?{links[0]['href'].partition('?')[2]}", read=read))


def id_list(ids: Iterable[str]) -> Ids:
    """Ids as a list. Raises ``Invalid`` for a text, whose letters are none."""
    if isinstance(ids, str):
        raise Invalid("Ids must be a list of texts, not one text.")
    return [*ids]


def several(method: str, path: str, params: Params, wait: int = 0, repeat: Repeat = Repeat.SAFE) -> Call[Messages]:
    """Messages without pages."""
    return Call(
        method=method,
        path=path,
        params=params,
        read=lambda answer: _messages.decode(answer.body).messages,
        repeat=repeat,
        wait=wait,
    )


def message_pages(path: str, params: Params) -> Call[Page[Message]]:
    """The first page of messages."""
    return _listing(path, params, _messages)


def finished_pages(path: str, params: Params) -> Call[Page[Finished]]:
    """The first page of history."""
    return _listing(path, params, _finished)


def message_stretch(path: str, params: Params) -> Call[Stretch[Message]]:
    """One page of messages and where it ends."""
    return _stretch(path, params, _messages)


def finished_stretch(path: str, params: Params) -> Call[Stretch[Finished]]:
    """One page of history and where it ends."""
    return _stretch(path, params, _finished)


def _stretch(path: str, params: Params, decoder: "msgspec.json.Decoder[Paged[M]]") -> Call[Stretch[M]]:
    def read(answer: Answer) -> Stretch[M]:
        page = decoder.decode(answer.body)
        if not page.messages:
            return Stretch([], None, page.gap, page.position)
        return Stretch(page.messages, int(parse_qs(urlsplit(page.links[0]["href"]).query)["marker"][0]), page.gap)

    return Call(method="GET", path=path, params=params, read=read)


def _listing(path: str, params: Params, decoder: "msgspec.json.Decoder[Paged[M]]") -> Call[Page[M]]:
    def read(answer: Answer) -> Page[M]:
        page = decoder.decode(answer.body)
        return linked(path, page.messages, page.links, read)

    return Call(method="GET", path=path, params=params, read=read)
