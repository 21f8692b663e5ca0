# SPDX-License-Identifier: Apache-2.0
"""Declarations of all metrics; see ``api-ref/metrics.md``. The names lack the prefix ``zq_``."""

from enum import StrEnum
from typing import Final

from msgspec import Struct

# Prefix of all metric names.
PREFIX: Final = "zq_"


class Kind(StrEnum):
    """The types of Prometheus metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Definition(Struct, frozen=True):
    """The declaration of a metric. For a gauge, ``several`` is the ``multiprocess_mode`` of prometheus-client."""

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


# Histogram buckets of the durations of requests and storage calls, in seconds.
SHORT: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
# Histogram buckets of the durations of long polls, in seconds.
POLL: Final = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 60.0)
# Histogram buckets of the durations of active expiry rounds, in seconds.
ROUND: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 600.0, 1800.0)
# Histogram buckets of the time between post and first claim, in seconds.
DWELL: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3600.0, 86400.0, 604800.0)
# Histogram buckets of message TTLs, in seconds.
LIFE: Final = (60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0, 604800.0, 1209600.0)

# Metrics that each process counts. The page shows the sum over all processes.
COUNTED: Final[dict[str, Definition]] = {
    "requests_total": _counter("Answered requests.", "method", "route", "status"),
    "request_seconds": _histogram("Request duration in seconds, without long polls.", "method", "route", buckets=SHORT),
    "long_poll_seconds": _histogram(
        "Duration of long polls (requests with wait) in seconds.", "method", "route", buckets=POLL
    ),
    "storage_seconds": _histogram(
        "Duration of storage verbs in seconds, including failed ones.", "verb", buckets=SHORT
    ),
    "messages_posted_total": _counter("Messages stored by posts, stages and replays."),
    "message_ttl_seconds": _histogram("TTL of posted messages in seconds.", buckets=LIFE),
    "claims_total": _counter("Created claims."),
    "messages_claimed_total": _counter("Messages delivered by claims."),
    "messages_redelivered_total": _counter("Claimed messages that had been claimed before."),
    "messages_lapsed_total": _counter("Claimed messages whose previous claim had expired."),
    "message_dwell_seconds": _histogram("Seconds between a message's post and its first claim or pop.", buckets=DWELL),
    "messages_finished_total": _counter("Finished messages, as reported by the store.", "outcome"),
    "commits_total": _counter("Answered commits, by outcome: made or replayed.", "outcome"),
    "commit_messages_published_total": _counter("Messages published by commits."),
    "waiters": _gauge("Requests that are waiting for messages."),
    "waiters_limit": _gauge("Maximum number of waiting requests."),
    "wakeups_total": _counter("Wake-ups of waiting requests, by whether the request then found a message.", "found"),
    "waits_turned_away_total": _counter("Requests that could not wait because max_waiters was reached."),
    "auth_failures_total": _counter(
        "Requests rejected because of their credential (unauthenticated, forbidden, throttled) or project_inactive.",
        "reason",
    ),
    "quota_refusals_total": _counter("Requests rejected because of a quota or rate limit, by its name.", "limit"),
    "messages_published_total": _counter("Messages published to topics."),
    "streams": _gauge("Open streams."),
    "streams_limit": _gauge("Maximum number of open streams."),
    "streamed_messages_total": _counter("Messages sent to stream readers."),
    "refused_total": _counter(
        "Requests and connections rejected by the HTTP server before the application, by reason.", "reason"
    ),
    "streams_refused_total": _counter("Streams rejected because max_streams was reached."),
    "messages_unreadable_total": _counter("Reads of messages that could not be decrypted."),
    "streams_dropped_total": _counter("Streams disconnected because the client stopped reading."),
    "spans_dropped_total": _counter("Spans that were not sent, because the queue was full or the receiver failed."),
    "sweep_seconds": _histogram("Duration of a sweep round in seconds, including pauses.", buckets=ROUND),
    "sweep_removed_total": _counter("Expired messages removed by sweeps."),
    "sweep_limit_reached_total": _counter("Sweep rounds that reached sweep_max_deletes."),
    "sweep_rest_seconds_total": _counter("Seconds for which sweeps paused in favour of requests."),
    "sweep_latency_ratio": _gauge(
        "Duration of storage verbs during sweeps relative to other times.", several="livemax"
    ),
    "sweep_share": _gauge("Fraction of time that a sweep works while requests are served.", several="livemax"),
    "mode": _gauge("Mode of the service: 0 = normal, 1 = no_posts, 2 = read_only.", several="livemax"),
    "store_level": _gauge("Level of the store, which an upgrade raises.", several="livemax"),
    "queue_expired_removed_total": _counter("Expired messages removed by sweeps, by queue.", "project", "queue"),
}
# Totals that the driver counts in each process since it opened the store.
STORE_TOTALS: Final[dict[str, Definition]] = {
    "expired_removed_total": _counter("Expired messages removed, by expiry layer.", "layer"),
    "delete_queue_dropped_total": _counter("Expired messages dropped from the delete queue because it was full."),
    "store_corruptions_total": _counter("Store reads and writes that found corruption."),
    "store_background_errors_total": _counter("Errors in background work of the store."),
    "store_stall_seconds_total": _counter("Seconds for which the store stalled writes."),
    "store_compacted_bytes_total": _counter("Bytes written by compactions."),
    "store_syncs_total": _counter("Syncs of the write-ahead log to disk."),
    "store_transactions_total": _counter("Transaction attempts on the store, by outcome.", "outcome"),
    "object_uploads_total": _counter("Attempts of this owner to upload a log record, by outcome.", "result"),
    "object_upload_seconds_total": _counter("Total seconds of successful uploads; concurrent uploads add up."),
    "object_uploaded_bytes_total": _counter("Bytes of uploaded log records."),
    "object_commits_total": _counter("Changes in acknowledged log records."),
    "object_requests_total": _counter("Requests to the object store, by verb and response status.", "verb", "code"),
}
# Gauges that the store reports, with the same value in all processes.
STORE_GAUGES: Final[dict[str, Definition]] = {
    "expired_waiting": _gauge("Expired messages that are not removed yet, counted up to 100,000."),
    "store_messages": _gauge("Messages in the store, including expired ones."),
    "sweep_lag_seconds": _gauge("Age of the oldest sweep entry that is due, in seconds."),
    "delete_queue_length": _gauge("Expired messages that readers found and that wait for removal."),
    "delete_queue_capacity": _gauge("Maximum length of the delete queue (delete_queue_size)."),
    "compaction_filter_active": _gauge("1 if compactions drop expired messages."),
    "store_bytes": _gauge("Storage space in use, in bytes.", "part"),
    "store_limit_bytes": _gauge("Storage space limit in bytes; 0 = no limit."),
    "store_pending_compaction_bytes": _gauge("Bytes that compactions still have to rewrite."),
    "store_running_compactions": _gauge("Running compactions."),
    "object_epoch": _gauge("Epoch of the current owner of a store in an object store."),
    "object_position": _gauge("Last acknowledged position in the log of a store in an object store."),
    "object_waiting_bytes": _gauge("Bytes of changes that are not acknowledged yet."),
    "object_proof_age_seconds": _gauge("Seconds since the last successful ownership check."),
    "backup_age_seconds": _gauge("Age of the last complete backup in seconds; absent without a backup."),
    "backup_pause_seconds": _gauge("Seconds for which the last backup paused all requests."),
    "disk_free_bytes": _gauge("Free bytes on the file system of an embedded store.", "path"),
    "disk_size_bytes": _gauge("Size of the file system of an embedded store, in bytes.", "path"),
    "object_checkpoint_age_seconds": _gauge("Age of the newest checkpoint in seconds, or time since the takeover."),
    "object_restore_seconds": _gauge("Seconds that this owner took to restore the store."),
}
# Metrics that the scraped process reads on each scrape.
READ: Final[dict[str, Definition]] = {
    # The layout of the store is not a label, because the version determines it. The level is the value of
    # zq_store_level, because an upgrade raises it while servers run, and a changed label would start a new series.
    # The name is short, because the labels describe the server and its store, not only the build.
    "info": _gauge("Always 1; the labels identify the server.", "version", "store", "engine"),
    "clock_offset_seconds": _gauge("Seconds by which the server's clock is ahead of the store's clock."),
    "clock_uncertainty_seconds": _gauge("Maximum error of the server's estimate of the store's time, in seconds."),
    "store_up": _gauge("1 if the store answered the queries of this scrape."),
    "queues": _gauge("Queues that the following metrics include."),
    "queue_messages": _gauge("Messages by state, counted up to max_counted per queue.", "state"),
    "queue_oldest_ready_seconds": _gauge("Age of the oldest ready message in seconds, excluding dead-letter queues."),
    "queue_oldest_dead_letter_seconds": _gauge("Age of the oldest ready message in dead-letter queues, in seconds."),
}
# Metrics of the scraped server process, without the store's own metrics.
SERVER: Final[dict[str, Definition]] = {
    "draining": _gauge("1 while the server drains or stops."),
    "open_files_ratio": _gauge("Open files of the scraped process, as a fraction of its limit."),
    "certificate_expires_seconds": _gauge("Seconds until the TLS certificate expires; absent if unknown."),
    "quota_used_ratio": _gauge(
        "Largest used fraction of a quota (stored_messages, stored_bytes, metadata_bytes), among the projects whose "
        "writes the scraped process has checked within 5 minutes.",
        "limit",
        "project",
    ),
}
ALL: Final = COUNTED | STORE_TOTALS | STORE_GAUGES | READ | SERVER
# Additional labels of queue metrics if ``[metrics] per_queue`` is set. The option is named after the queues, because
# they determine the number of series; it also adds the project to the quota metrics.
PER_QUEUE: Final = ("project", "queue")
