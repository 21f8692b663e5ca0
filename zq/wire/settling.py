# SPDX-License-Identifier: Apache-2.0
"""The requests that end work on messages: settle and redrive (extensions 3, 4)."""

from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from zq.wire import decode


class Released(Struct):
    """A message that is given back."""

    id: str
    delay: int | UnsetType = UNSET


class Moved(Struct):
    """A message that goes to another queue. Without ``body`` with its own."""

    id: str
    queue: str
    body: Raw | UnsetType = UNSET
    ttl: int | UnsetType = UNSET
    delay: int | UnsetType = UNSET


class Buried(Struct):
    """A message that goes to the dead letter queue."""

    id: str
    reason: str


class Terms(Struct):
    """The body of a settlement; ``delete`` may be ``"*"`` for whatever the claim holds besides."""

    delete: list[str] | Literal["*"] = []
    release: list[Released] = []
    move: list[Moved] = []
    bury: list[Buried] = []


class Redrive(Struct):
    """The body of a redrive."""

    to: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET


_terms_decoder: Final = msgspec.json.Decoder(Terms)
_redrive_decoder: Final = msgspec.json.Decoder(Redrive)


def terms(raw: bytes) -> Terms:
    """What a settlement asks for. Raises ``InvalidBody``."""
    return decode(_terms_decoder, raw)


def redrive(raw: bytes) -> Redrive:
    """What a redrive asks for. Raises ``InvalidBody``."""
    return decode(_redrive_decoder, raw)
