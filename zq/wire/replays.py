# SPDX-License-Identifier: Apache-2.0
"""Moments and the request to replay history (extensions 5)."""

from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from zq.model import Seconds
from zq.wire import decode


class Replay(Struct):
    """The body of a replay: ``ids`` or any of the others."""

    ids: list[str] | UnsetType = UNSET
    since: str | UnsetType = UNSET
    until: str | UnsetType = UNSET
    limit: int | UnsetType = UNSET


_replay_decoder: Final = msgspec.json.Decoder(Replay)


def replay(raw: bytes) -> Replay:
    """What a replay asks for. Raises ``InvalidBody``."""
    return decode(_replay_decoder, raw)


def moment(text: str) -> Seconds | None:
    """An ISO 8601 date and time, to the millisecond; UTC unless it names an offset. None if it is no such thing."""
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        return None
    aware = told if told.tzinfo else told.replace(tzinfo=UTC)
    return max(0.0, round((aware - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds(), 3))
