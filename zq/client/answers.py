# SPDX-License-Identifier: Apache-2.0
"""What answers say: errors as the classes that the server raised, and whether an answer is one of a zq server."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from zq.errors import ZqError
from zq.wire import refusals

if TYPE_CHECKING:
    import httpx

UNREADABLE: Final = (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError)
"""What reading raises where something else came than was expected."""
LONGEST: Final = 3600.0
"""Seconds; no server is left alone for longer."""


class Refusal(Struct):
    """The body of an error."""

    title: str = ""
    description: str = ""


def told(response: "httpx.Response") -> ZqError:
    """The error that an answer tells, as the class that the server raised."""
    try:
        refusal = msgspec.json.decode(response.content, type=Refusal)
    except UNREADABLE:  # a proxy's own page
        refusal = Refusal()
    title = refusal.title or response.reason_phrase
    reason = title.removeprefix(f"{response.status_code} ")
    sentence = refusal.description or f"The server answered {response.status_code} {reason}."
    if response.status_code < 400:
        place = response.headers.get("Location", "nowhere")
        sentence = f"The server answered {response.status_code} {reason}, which leads to {place}; no call follows."
    return refusals.error(response.status_code, response.headers.get(refusals.HEADER, ""), title, sentence)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds for which the server asks to be left alone; 0 if it does not, or names a date."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), LONGEST) if asked.isascii() and asked.isdigit() else 0.0


@contextmanager
def understood(method: str, path: str) -> Generator[None, None, None]:
    """Around the reading of an answer. Raises ``ZqError`` for one that no zq server gives."""
    try:
        yield
    except UNREADABLE as error:
        raise ZqError(f"The answer to {method} {path} is none that this client understands.") from error
