# SPDX-License-Identifier: Apache-2.0
"""The options of the drivers. Each driver takes one of these structs. This module does not import vendors' libraries.

The docstring of an option is its description in the sample file and in ``configuration.md``.
"""

from typing import Annotated, get_type_hints

from msgspec import Struct

from zq.errors import StartRefused
from zq.model.options import Flag, Natural, Option, Text


class MongodbOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[storage:mongodb]``."""

    write_concern: Text = "majority"
    """Write concern: majority, or the number of members that must have a change before it is acknowledged. Below
    majority, a failover may lose acknowledged messages. w= in the URI takes precedence.
    """
    journal: Flag = True
    """Acknowledge a change only after it is in the journal. If false, a power failure may lose acknowledged changes.
    journal= in the URI takes precedence.
    """
    drawn_sequences: Flag = True
    """Assign the sequences of posts outside their transactions while several servers post to one queue. Listings then
    wait for posts in progress, and for up to 3 seconds after a server crashed during a post.
    """
    timeout: float = 5.0
    """Seconds after which a call is aborted; the option ``storage_timeout`` of section ``[transport]``."""
    database: str = "zq"
    """Name of the database if the URI does not name one."""


class ObjectOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[storage:object]``."""

    cache: Text = ""
    """Local directory for the copy of the store; it is emptied at start. Empty: a directory below var/zq."""
    lease: Annotated[float, Option(1, 3600)] = 10.0
    """Seconds for which a successful ownership check stays valid. The owner of the store answers requests this long
    without another check; a server that takes over waits this long before it serves.
    """
    takeover: Annotated[str, Option(choices=("wait", "refuse", "now"))] = "wait"
    """Behaviour if the store has another owner. wait: serve once the owner has stopped or was silent for owner_timeout
    seconds. refuse: do not start. now: take over at once, even from a running owner.
    """
    fencing: Annotated[str, Option(choices=("look", "position"))] = "look"
    """How a deposed owner is prevented from acknowledging a change. look: it checks its ownership after each upload.
    position: its upload fails; this saves a round trip per change, but needs an object store with conditional writes
    (all except Swift). The option may differ between starts.
    """
    owner_timeout: Annotated[float, Option(1, 86_400)] = 30.0
    """Seconds without a heartbeat after which an owner is considered dead. The owner sends three heartbeats in this
    time.
    """
    uploads: Annotated[int, Option(1, 64)] = 4
    """Maximum number of concurrent uploads of log records."""
    linger: Annotated[float, Option(0, 10)] = 0.0
    """Minimum seconds between the starts of two uploads. A larger value means fewer billed requests and slower
    posts.
    """
    patience: Annotated[float, Option(0.1, 600)] = 10.0
    """Maximum seconds that a change waits for the object store before the server answers 503."""
    keep: Annotated[float, Option(0, 315_360_000)] = 86400.0
    """Seconds back to which the store can be restored; older log records and checkpoints are removed. At least ten
    times lease.
    """
    checkpoint_bytes: Annotated[int, Option(65_536, 1 << 40)] = 1 << 26
    """Maximum bytes of log between two checkpoints."""
    checkpoint_records: Annotated[int, Option(1, 1_000_000)] = 10_000
    """Maximum number of log records between two checkpoints."""
    max_clock_jump: Natural = 172_800
    """Maximum seconds by which the machine's clock may be ahead of the store's last use at start; see
    [storage:rocksdb].
    """


class RedisOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[storage:redis]``."""

    wait_replicas: Natural = 0
    """Number of replicas that must have a change before it is acknowledged (WAIT). With 0 a failover may lose
    acknowledged messages.
    """
    timeout: float = 5.0
    """Seconds after which a call is aborted; the option ``storage_timeout`` of section ``[transport]``."""


class RocksdbOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[storage:rocksdb]``."""

    sync: Annotated[str, Option(choices=("always", "interval", "never"))] = "always"
    """When changes are synced to disk. always: before they are acknowledged. interval: every sync_interval seconds, so
    a power failure may lose that much. never: left to the operating system. If only the process is killed, no mode
    loses changes.
    """
    sync_interval: Annotated[float, Option(0.01, 3600)] = 1.0
    """Seconds between syncs, with sync = interval."""
    max_clock_jump: Natural = 172_800
    """Maximum seconds by which the machine's clock may be ahead of the store's last use at start, because a wrong clock
    would expire messages. 0: no check, like --force-clock for one start.
    """
    min_free_space: Annotated[int | None, Option(0, 1 << 60)] = None
    """Free bytes of the store's file system below which the server refuses posts until twice as much is free. 0: no
    check. Default: 5 % of the file system, at least 1 GiB, but at most 10 GiB and at most 20 %.
    """


def check_choices(options: Struct) -> None:
    """Raise ``StartRefused`` if the value of an option is not one of its choices."""
    for name, hint in get_type_hints(type(options), include_extras=True).items():
        for part in getattr(hint, "__metadata__", ()):
            value = getattr(options, name)
            if isinstance(part, Option) and part.choices and value not in part.choices:
                raise StartRefused(f"{name} must be one of {', '.join(part.choices)}, not {value!r}.")
