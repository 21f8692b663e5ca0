# SPDX-License-Identifier: Apache-2.0
"""How much a project may use (tenancy 6)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from zq.errors import Invalid

# The kind of the documents that hold projects' own values; they are the deployment's.
QUOTA: Final = "quota"
# The kind of the documents that list all projects that have made something; they are the deployment's too.
PROJECT: Final = "project"
# The largest value of any of them.
MOST: Final = 1 << 53


# Bytes that each stored message counts besides its body.
OVERHEAD: Final = 256


class Usage(Struct, frozen=True):
    """What a project has stored: messages, and the bytes of their bodies with ``OVERHEAD`` for each."""

    messages: int
    bytes: int
    exact: bool = True
    age: int = 0
    """Seconds that it may be old."""


class Work(StrEnum):
    """What batch jobs name, as their bounds in ``Quota`` are called."""

    STAGE = "stages"
    FENCE = "fences"
    PRODUCER = "producers"


class WorkCount(NamedTuple):
    """How many of a kind a project has; ``known``: whether the one that was asked about is among them."""

    total: int
    known: bool


class State(StrEnum):
    """What a project may do at all, as its administrator says."""

    ACTIVE = "active"
    READ_ONLY = "read_only"
    SUSPENDED = "suspended"


class Quota(Struct, frozen=True):
    """Bounds of one project, under their names in ``[quota]``; 0 = none. The first three are of one second."""

    requests: int = 1000
    messages: int = 10_000
    bytes: int = 33_554_432
    stored_bytes: int = 1 << 30
    stored_messages: int = 1_000_000
    metadata_bytes: int = 16_777_216
    queues: int = 1000
    topics: int = 1000
    stages: int = 100
    fences: int = 1000
    producers: int = 1000
    subscriptions: int = 1000
    tokens: int = 100
    share: int = 25
    """Percent of what one process has of threads, waiters and streams."""

    def with_own(self, own: Mapping[str, int]) -> "Quota":
        """The same with a project's own values."""
        return structs.replace(self, **own) if own else self


UNBOUNDED: Final = Quota(**dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25})
"""For servers that do not know who asks."""


class Project(Struct, frozen=True):
    """What an administrator has said of one project: its own ``limits`` and its ``state``."""

    limits: dict[str, int] = {}
    state: State = State.ACTIVE
    deleting: bool = False
    """Whether what is the project's is being removed."""


def checked(limits: Mapping[str, Any]) -> dict[str, int]:
    """Values of a project's own. Raises ``Invalid``."""
    for name, value in limits.items():
        if name not in Quota.__struct_fields__:
            known = ", ".join(Quota.__struct_fields__)
            raise Invalid(f"limits may name {known}; it names {name[:32]!r}.")
        low, high = (1, 100) if name == "share" else (0, MOST)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Invalid(f"limits.{name} must be a whole number from {low} to {high}; it is {str(value)[:32]}.")
    return dict(limits)
