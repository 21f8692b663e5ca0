# SPDX-License-Identifier: Apache-2.0
"""Quotas and states of projects (tenancy contract, section 6)."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Struct, structs

from zq.errors import Invalid
from zq.model.declarations import find_declarations
from zq.model.options import Option

# Kind of the deployment's documents that hold the settings of projects.
QUOTA: Final = "quota"
# Kind of the deployment's documents that list all projects that have created something.
PROJECT: Final = "project"
# Maximum value of a quota.
MAX_QUOTA: Final = 1 << 53
# The type of a limit; 0 = no limit.
Amount = Annotated[int, Option(0, MAX_QUOTA, reload=True)]

# Bytes counted per stored message in addition to its body.
OVERHEAD: Final = 256


class Usage(Struct, frozen=True):
    """The storage usage of a project.

    ``messages`` is the number of messages. ``bytes`` is the total size of the messages. The size of a message is the
    size of its body plus ``OVERHEAD``.
    """

    messages: int
    bytes: int
    exact: bool = True
    age: int = 0
    """Maximum age of the counts in seconds."""


class Work(StrEnum):
    """The kinds of named objects that transactions use. Each value is also the name of a limit in ``Quota``."""

    STAGE = "stages"
    FENCE = "fences"
    PRODUCER = "producers"


class WorkCount(NamedTuple):
    """The number of a project's stages, fences or producers.

    Attributes:
        total: The number of objects of this kind.
        known: Whether the object with the given name exists already.
    """

    total: int
    known: bool


class State(StrEnum):
    """The state of a project, set by an administrator."""

    ACTIVE = "active"
    READ_ONLY = "read_only"
    SUSPENDED = "suspended"


class Quota(Struct, frozen=True):
    """The limits of one project, named as in ``[quota]``; 0 = no limit."""

    requests: Amount = 1000
    """Requests per second; up to two seconds' worth in one burst. 0: no limit."""
    messages: Amount = 10_000
    """Messages per second that are posted, staged, published or delivered, with the same burst. 0: no limit."""
    bytes: Amount = 33_554_432
    """Body bytes per second in requests and responses, with the same burst. 0: no limit."""
    stored_bytes: Amount = 1 << 30
    """Bytes of a project's messages in the store: their bodies and 256 bytes per message. 0: no limit."""
    stored_messages: Amount = 1_000_000
    """Messages of a project in the store. 0: no limit."""
    metadata_bytes: Amount = 16_777_216
    """Metadata bytes of a project's queues and topics; the first 4096 bytes of each are free. 0: no limit."""
    queues: Amount = 1000
    """Queues of a project. 0: no limit."""
    topics: Amount = 1000
    """Topics of a project. 0: no limit."""
    stages: Amount = 100
    """Stages of a project. 0: no limit."""
    fences: Amount = 1000
    """Fences of a project. 0: no limit."""
    producers: Amount = 1000
    """Producers of a project whose last commit is stored. 0: no limit."""
    subscriptions: Amount = 1000
    """Subscriptions of a project. 0: no limit."""
    tokens: Amount = 100
    """Unexpired tokens of a project. 0: no limit."""
    share: Annotated[int, Option(1, 100, reload=True)] = 25
    """Percentage of threads, max_waiters and max_streams per process that one project may use."""

    def with_own(self, own: Mapping[str, int]) -> "Quota":
        """Return a copy of this quota with the limits in ``own`` in place of the limits of the same name."""
        return structs.replace(self, **own) if own else self


# Minimum and maximum of each limit.
BOUNDS: Final[dict[str, tuple[Any, Any]]] = {
    field.name: (option.low, option.high) for field, option in find_declarations(Quota, Option)
}
UNBOUNDED: Final = Quota(**dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25})
"""The quota of servers that do not authenticate callers."""


class Project(Struct, frozen=True):
    """An administrator's settings for a project: its own ``limits`` and its ``state``."""

    limits: dict[str, int] = {}
    state: State = State.ACTIVE
    deleting: bool = False
    """Whether the project is being deleted."""


def validate_limits(limits: Mapping[str, Any]) -> dict[str, int]:
    """Check the limits that an administrator has set for a project, and return them. Raises ``Invalid``."""
    for name, value in limits.items():
        if name not in BOUNDS:
            known = ", ".join(BOUNDS)
            raise Invalid(f"limits may contain {known}, not {name[:32]!r}.")
        low, high = BOUNDS[name]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise Invalid(f"limits.{name} must be an integer from {low} to {high}, not {str(value)[:32]}.")
    return dict(limits)
