# SPDX-License-Identifier: Apache-2.0
"""Declarations of all metrics: name (without the prefix ``zq_``), kind, labels and help. See ``api-ref/metrics.md``."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

# Prefix of all names.
PREFIX: Final = "zq_"


class Kind(StrEnum):
    """The kinds of Prometheus metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Definition(Struct, frozen=True):
    """One metric. ``several``: how prometheus-client combines the gauges of several processes."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    several: str = "livesum"


def _counter(help: str, *labels: str) -> Definition:
    return Definition(Kind.COUNTER, help, labels)


def _gauge(help: str, *labels: str, several: str = "livesum") -> Definition:
    return Definition(Kind.GAUGE, help, labels, several=several)


def _histogram(help: str, *labels: str, buckets: tuple[float, ...]) -> Definition:
    return Definition(Kind.HISTOGRAM, help, labels, buckets)


# Buckets of the durations of requests and store calls, in seconds.
SHORT: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Buckets of long polls, in seconds.
POLL: Final = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 60.0)
# Buckets of rounds of active expiry, in seconds.
ROUND: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 600.0, 1800.0)
# Buckets of the time from the post to the first claim, in seconds.
DWELL: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0, 86400.0, 604800.0)
# Buckets of message TTLs, in seconds.
LIFE: Final = (60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0, 604800.0, 1209600.0)

# Metrics that each process counts. The page combines the processes.
COUNTED: Final[dict[str, Definition]] = {
    "requests_total": _counter("Requests answered.", "method", "route", "status"),
    "request_seconds": _histogram("Time to answer, without long polls.", "method", "route", buckets=SHORT),
    "long_poll_seconds": _histogram("Time to answer where the request said wait.", "method", "route", buckets=POLL),
    "storage_seconds": _histogram("Time of the store's verbs, failed ones too.", "verb", buckets=SHORT),
    "messages_posted_total": _counter("Messages stored by posts, stages and replays."),
    "message_ttl_seconds": _histogram("How long posted messages are to live.", buckets=LIFE),
    "claims_total": _counter("Claims made."),
    "messages_claimed_total": _counter("Messages handed out by claims."),
    "messages_redelivered_total": _counter("Those of them that had been claimed before."),
    "messages_lapsed_total": _counter("Those of them whose former claim had lapsed."),
    "message_dwell_seconds": _histogram("Time from the post to the first claim, or to the pop.", buckets=DWELL),
    "messages_finished_total": _counter("Messages that finished, as far as the store tells.", "outcome"),
    "commits_total": _counter("Commits answered, by whether they were made or told again.", "outcome"),
    "commit_messages_published_total": _counter("Messages that commits published."),
    "waiters": _gauge("Requests that wait for messages now."),
    "waiters_limit": _gauge("Requests that may wait at a time."),
    "wakeups_total": _counter("Times that a waiting request was woken, by whether it found something.", "found"),
    "waits_turned_away_total": _counter("Requests that were to wait and found no place to."),
    "messages_published_total": _counter("Messages stored by publishes to topics."),
    "streams": _gauge("Streams open now."),
    "streams_limit": _gauge("Streams that may be open at a time."),
    "streamed_messages_total": _counter("Messages sent to readers of streams."),
    "refused_total": _counter("Requests and connections that the engine turned away by itself, by reason.", "reason"),
    "streams_refused_total": _counter("Streams for which there was no place."),
    "messages_unreadable_total": _counter("Reads of messages whose encrypted bodies could not be opened."),
    "streams_dropped_total": _counter("Streams whose reader took nothing and was hung up on."),
    "sweep_seconds": _histogram("Time of a round of the sweeper, rests too.", buckets=ROUND),
    "sweep_removed_total": _counter("Expired messages that sweeps removed."),
    "sweep_limit_reached_total": _counter("Rounds that ended at sweep_max_deletes."),
    "sweep_rest_seconds_total": _counter("Time that sweeps rested, to leave room for requests."),
    "sweep_latency_ratio": _gauge("Time of verbs beside sweeps, in proportion to otherwise.", several="livemax"),
    "sweep_share": _gauge("Share of its time that a sweep works beside requests.", several="livemax"),
    "queue_expired_removed_total": _counter("Expired messages that sweeps removed, by queue.", "project", "queue"),
}
# Totals that the driver of each process counts from the opening of the store.
STORE_TOTALS: Final[dict[str, Definition]] = {
    "expired_removed_total": _counter("Expired messages removed, by the layer that did it.", "layer"),
    "delete_queue_dropped_total": _counter("Entries for which the delete queue had no room."),
    "store_corruptions_total": _counter("Reads and writes that met damage in the store's files."),
    "store_background_errors_total": _counter("Failures of the store's background work."),
    "store_stall_seconds_total": _counter("Time for which the store held up writes."),
    "store_compacted_bytes_total": _counter("Bytes written by compactions."),
    "store_syncs_total": _counter("Syncs of the store's log to disk."),
    "store_transactions_total": _counter("Runs of transactions on the store, by outcome.", "outcome"),
    "object_uploads_total": _counter("Attempts of this owner to upload a record of the log, by outcome.", "result"),
    "object_upload_seconds_total": _counter("Time that those took that stored one, of which several run at a time."),
    "object_uploaded_bytes_total": _counter("Bytes of the records that are stored."),
    "object_commits_total": _counter("Changes in the records that are acknowledged."),
    "object_requests_total": _counter("Requests to the object store, by the status of the answer.", "verb", "code"),
}
# Gauges that the store reports, equal in all processes.
STORE_GAUGES: Final[dict[str, Definition]] = {
    "expired_waiting": _gauge("Messages that have expired and are not removed yet, counted up to 100,000."),
    "store_messages": _gauge("Messages in the store, expired ones too."),
    "sweep_lag_seconds": _gauge("How long the oldest entry has been due that no sweep has removed yet."),
    "delete_queue_length": _gauge("Expired messages that readers met, to be removed."),
    "delete_queue_capacity": _gauge("How many of them are remembered at most: delete_queue_size."),
    "compaction_filter_active": _gauge("1 if compactions drop expired messages."),
    "store_bytes": _gauge("Space that the store takes.", "part"),
    "store_limit_bytes": _gauge("Space that the store may take; 0 = no limit."),
    "store_pending_compaction_bytes": _gauge("Bytes that compactions have yet to rewrite."),
    "store_running_compactions": _gauge("Compactions under way."),
    "object_epoch": _gauge("The number of the owner of a store in an object store."),
    "object_position": _gauge("The last position of its log that is acknowledged."),
    "object_waiting_bytes": _gauge("Bytes of changes that are not acknowledged yet."),
    "object_proof_age_seconds": _gauge("Since when it is not known whether this server still owns the store."),
    "backup_age_seconds": _gauge("Age of the last whole backup, if one was ever made."),
    "backup_pause_seconds": _gauge("For how long the last backup held up every request."),
    "object_checkpoint_age_seconds": _gauge("Age of the newest checkpoint, or of this owner."),
    "object_restore_seconds": _gauge("Time that it took this owner to fetch the store."),
}
# Metrics that the answering process reads when the page is requested.
READ: Final[dict[str, Definition]] = {
    "info": _gauge("1; the labels say which server this is.", "version", "store", "engine"),
    "clock_offset_seconds": _gauge("How far the server's clock is ahead of the store's."),
    "clock_uncertainty_seconds": _gauge("How far the store's time may be from what the server takes for it."),
    "store_up": _gauge("1 if the store has answered what this page asked."),
    "queues": _gauge("Queues that the next figures are of."),
    "queue_messages": _gauge("Messages of the queues by state, each queue's counted up to max_counted.", "state"),
    "queue_oldest_ready_seconds": _gauge(
        "How long the message has been ready that has been so longest, dead letter queues left out."
    ),
    "queue_oldest_dead_letter_seconds": _gauge(
        "How long the message has been ready that has been so longest in a dead letter queue."
    ),
}
# Additional labels of metrics of queues, with ``[metrics] per_queue``.
PER_QUEUE: Final = ("project", "queue")


class Options(Struct, frozen=True, kw_only=True):
    """The options for queues in the section ``[metrics]``."""

    per_queue: bool = False
    max_queues: int = 1000
    max_counted: int = 10_000
