# SPDX-License-Identifier: Apache-2.0
"""Every bound of zq and its check: the only place where a bound is a number (contract 6.1, 7, 8, 16)."""

import re
from typing import Final, TypeGuard

from msgspec import Struct

from zq.errors import Invalid, InvalidBody, InvalidName
from zq.model import QueueRef

MIN_TTL: Final = 60
MIN_DELAY: Final = 0
DEFAULT_PAGE: Final = 10
MAX_NAME: Final = 64
MAX_PROJECT: Final = 256
MAX_BODY_NUMBER: Final = 2**63 - 1
MAX_NESTING: Final = 64
MAX_DRIFT: Final = 60
"""Seconds that a ready server's clock may be away from the store's."""
MAX_CONTROL_BODY: Final = 65536
"""Bytes of a claim's, a purge's or another small request's body."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)


class Limits(Struct, frozen=True, kw_only=True):
    """The configurable bounds and defaults, under their names in section ``[transport]``."""

    default_message_ttl: int = 3600
    default_message_delay: int = 0
    default_claim_ttl: int = 300
    default_claim_grace: int = 60
    max_message_ttl: int = 1209600
    max_message_delay: int = 900
    max_claim_ttl: int = 43200
    max_claim_grace: int = 43200
    max_queues_per_page: int = 20
    max_messages_per_page: int = 20
    max_messages_per_claim_or_pop: int = 20
    max_queue_metadata: int = 65536
    max_messages_post_size: int = 262144
    min_length_client_id: int = 10
    max_length_client_id: int = 36


def within(field: str, value: int, low: int, high: int, error: type[Invalid] = Invalid) -> int:
    """``value``, if ``low <= value <= high``; else ``error`` with the field and its bounds."""
    if low <= value <= high:
        return value
    raise error(f"{field} must be from {low} to {high}; it is {value if abs(value) < 10**20 else 'out of all bounds'}.")


def count_within(field: str, count: int, high: int) -> None:
    """Refuse a list of none or of more than ``high`` values."""
    if not 1 <= count <= high:
        raise Invalid(f"{field} must name 1 to {high} values; it names {count}.")


def body_size(size: int, bound: int) -> None:
    """Refuse a body of more than ``bound`` bytes by its announced size, before it is read."""
    if size > bound:
        raise Invalid(f"The body must be at most {bound} bytes; it is {size}.")


def nesting(field: str, value: object, depth: int = MAX_NESTING) -> None:
    """Refuse decoded JSON that is nested deeper than ``depth``, since it is decoded again wherever it is needed."""
    if depth < 0:
        raise InvalidBody(f"{field} must be nested at most {MAX_NESTING} deep.")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        nesting(field, child, depth - 1)


def queue_ref(project: str, name: str) -> QueueRef:
    """The full name, if both parts keep the rules of contract 1.7; else ``InvalidName``."""
    if len(project) > MAX_PROJECT:
        raise InvalidName(f"A project id must be at most {MAX_PROJECT} characters; it has {len(project)}.")
    if _NAME.fullmatch(name) is None:
        raise InvalidName(f"A queue name must be 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - and the dot.")
    return QueueRef(project, name)


def is_queue_name(value: object) -> TypeGuard[str]:
    """Whether a value could name a queue."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def integer_in_body(value: int) -> int:
    """``value``, if it fits in signed 64 bits (contract 1.6)."""
    return within("An integer in the body", value, -MAX_BODY_NUMBER - 1, MAX_BODY_NUMBER, InvalidBody)
