# SPDX-License-Identifier: Apache-2.0
"""Options of stores in an object store: ``[storage:object]``."""

from typing import Final

from oslo_config import cfg

# URI schemes of such stores, which share one section.
SCHEMES: Final = ("swift", "s3", "gs", "az")
SECTION: Final = "storage:object"
OBJECT: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "cache",
        default="",
        help="Local directory for what is in the object store, which is emptied at start; empty: one below var/zq.",
    ),
    cfg.FloatOpt(
        "lease",
        default=10.0,
        min=1,
        max=3600,
        help="Seconds that the server that owns the store may answer without having asked the object store whether it "
        "still does. Another one that takes the store over waits as long before it serves.",
    ),
    cfg.StrOpt(
        "takeover",
        default="wait",
        choices=["wait", "refuse", "now"],
        help="What a server does that finds another owner. wait: serve once that one has ended or is silent for "
        "owner_timeout seconds. refuse: do not start. now: take the store over at once, whatever the other one does.",
    ),
    cfg.StrOpt(
        "fencing",
        default="look",
        choices=["look", "position"],
        help="How a server that was deposed learns of it before it acknowledges a change. look: it asks the object "
        "store after each upload. position: its upload fails, which takes an object store that lets one of several "
        "writers have a name (all but Swift), and saves a round trip for each change. Starts may differ in it.",
    ),
    cfg.FloatOpt(
        "owner_timeout",
        default=30.0,
        min=1,
        max=86400,
        help="Seconds of silence after which an owner counts as gone. It says a third as often that it is there.",
    ),
    cfg.IntOpt("uploads", default=4, min=1, max=64, help="Records of the log that are uploaded at a time."),
    cfg.FloatOpt(
        "linger",
        default=0.0,
        min=0,
        max=10,
        help="Least seconds between the starts of two uploads: more means fewer requests to pay for, and slower posts.",
    ),
    cfg.FloatOpt(
        "patience",
        default=10.0,
        min=0.1,
        max=600,
        help="Seconds that a change may wait for the object store; then it is answered by 503.",
    ),
    cfg.FloatOpt(
        "keep",
        default=86400.0,
        min=0,
        max=315_360_000,
        help="Seconds back to which the store can be restored: records of the log and checkpoints that are older are "
        "removed. At least ten leases.",
    ),
    cfg.IntOpt(
        "checkpoint_bytes",
        default=64 << 20,
        min=1 << 16,
        max=1 << 40,
        help="Bytes of log after which a checkpoint is made.",
    ),
    cfg.IntOpt(
        "checkpoint_records",
        default=10_000,
        min=1,
        max=1_000_000,
        help="Records of log after which a checkpoint is made.",
    ),
    cfg.IntOpt(
        "max_clock_jump",
        default=172800,
        min=0,
        help="Seconds that the machine's clock may be ahead of the store's last use at start; see [storage:rocksdb].",
    ),
]
