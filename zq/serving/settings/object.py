# SPDX-License-Identifier: Apache-2.0
"""Options of stores in an object store: section ``[storage:object]``."""

from typing import Final

from oslo_config import cfg

# URI schemes of stores that share the section.
SCHEMES: Final = ("swift", "s3", "gs", "az")
SECTION: Final = "storage:object"
OBJECT: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "cache",
        default="",
        help="Local directory for the copy of the store; it is emptied at start. Empty: a directory below var/zq.",
    ),
    cfg.FloatOpt(
        "lease",
        default=10.0,
        min=1,
        max=3600,
        help="Seconds for which a successful ownership check stays valid. The owner of the store answers requests "
        "this long without another check; a server that takes over waits this long before it serves.",
    ),
    cfg.StrOpt(
        "takeover",
        default="wait",
        choices=["wait", "refuse", "now"],
        help="Behaviour if the store has another owner. wait: serve once the owner has stopped or was silent for "
        "owner_timeout seconds. refuse: do not start. now: take over at once, even from a running owner.",
    ),
    cfg.StrOpt(
        "fencing",
        default="look",
        choices=["look", "position"],
        help="How a deposed owner is prevented from acknowledging a change. look: it checks its ownership after each "
        "upload. position: its upload fails; this saves a round trip per change, but needs an object store with "
        "conditional writes (all except Swift). The option may differ between starts.",
    ),
    cfg.FloatOpt(
        "owner_timeout",
        default=30.0,
        min=1,
        max=86400,
        help="Seconds without a heartbeat after which an owner is considered dead. The owner sends three heartbeats "
        "in this time.",
    ),
    cfg.IntOpt("uploads", default=4, min=1, max=64, help="Maximum number of concurrent uploads of log records."),
    cfg.FloatOpt(
        "linger",
        default=0.0,
        min=0,
        max=10,
        help="Minimum seconds between the starts of two uploads. A larger value means fewer billed requests and "
        "slower posts.",
    ),
    cfg.FloatOpt(
        "patience",
        default=10.0,
        min=0.1,
        max=600,
        help="Maximum seconds that a change waits for the object store before the server answers 503.",
    ),
    cfg.FloatOpt(
        "keep",
        default=86400.0,
        min=0,
        max=315_360_000,
        help="Seconds back to which the store can be restored; older log records and checkpoints are removed. At "
        "least ten times lease.",
    ),
    cfg.IntOpt(
        "checkpoint_bytes",
        default=64 << 20,
        min=1 << 16,
        max=1 << 40,
        help="Maximum bytes of log between two checkpoints.",
    ),
    cfg.IntOpt(
        "checkpoint_records",
        default=10_000,
        min=1,
        max=1_000_000,
        help="Maximum number of log records between two checkpoints.",
    ),
    cfg.IntOpt(
        "max_clock_jump",
        default=172800,
        min=0,
        help="Maximum seconds by which the machine's clock may be ahead of the store's last use at start; see "
        "[storage:rocksdb].",
    ),
]
