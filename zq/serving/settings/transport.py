# SPDX-License-Identifier: Apache-2.0
"""Section ``[transport]``: default, description and range of each limit."""

from typing import Final

from oslo_config import cfg

from zq.limits import MAX_LIFE, MAX_REMEMBERED, MAX_WAIT, MAX_WINDOW, MIN_TTL, Limits

# Defaults of section ``[transport]``.
LIMITS: Final = Limits()
# Help texts of the limits.
LIMIT_HELP: Final = {
    "default_message_ttl": "Default TTL of a message in seconds, unless queue_ttl matches or the queue has a default "
    "of its own.",
    "default_message_delay": "Default delay of a message in seconds, unless the queue has a default of its own.",
    "default_claim_ttl": "Default TTL of a claim in seconds.",
    "default_claim_grace": "Default grace of a claim: seconds by which claimed messages outlive the claim.",
    "max_message_ttl": "Maximum message TTL in seconds.",
    "max_message_delay": "Maximum message delay in seconds.",
    "max_claim_ttl": "Maximum claim TTL in seconds.",
    "max_claim_grace": "Maximum claim grace in seconds.",
    "max_queues_per_page": "Maximum number of queues per page.",
    "max_pools_per_page": "Maximum number of pools per page.",
    "max_flavors_per_page": "Maximum number of flavors per page.",
    "max_messages_per_page": "Maximum number of messages per page, or of ids per deletion or replay. Default: 1000. "
    "Zaqar's limit is 20.",
    "max_messages_per_claim_or_pop": "Maximum number of messages per claim, pop or settlement. Default: 1000. Zaqar's "
    "limit is 20.",
    "max_answer_bytes": "Maximum bytes of bodies and attributes per response: a claim or pop returns fewer messages "
    "and a page is shorter, but each has at least one message.",
    "max_queue_metadata": "Maximum size of queue metadata in bytes.",
    "max_messages_post_size": "Maximum body size of a post in bytes.",
    "max_messages_per_post": "Maximum number of messages per post, stage request or publish request.",
    "min_length_client_id": "Minimum length of a Client-ID with client_id_uuid_safe = off.",
    "max_length_client_id": "Maximum length of a Client-ID with client_id_uuid_safe = off.",
    "max_wait": "Maximum seconds that a request may wait for messages.",
    "stage_ttl": "Seconds after which an unpublished stage is discarded.",
    "max_stage_bytes": "Maximum bytes of message bodies per stage.",
    "max_stage_messages": "Maximum number of messages per stage.",
    "max_commit_messages": "Maximum number of messages that one commit publishes and deletes.",
    "commit_slice": "Maximum number of messages that one storage transaction of a commit publishes and deletes; a "
    "larger commit runs in several transactions.",
    "max_metadata_walk": "Maximum number of queues or topics that a filtered listing reads per request.",
    "producer_ttl": "Seconds for which a producer's last commit is remembered.",
    "idempotency_window": "Seconds for which an Idempotency-Key is remembered.",
}
# Defaults of Zaqar, shown in the sample configuration instead of zq's.
ZAQARS: Final = {"max_messages_per_page": 20, "max_messages_per_claim_or_pop": 20}
# Minimum and maximum of each limit; a name stands for the value of that option. Other limits are at least 0.
BOUNDS: Final[dict[str, tuple[int | str, int | str | None]]] = {
    "default_message_ttl": (MIN_TTL, "max_message_ttl"),
    "default_message_delay": (0, "max_message_delay"),
    "default_claim_ttl": (MIN_TTL, "max_claim_ttl"),
    "default_claim_grace": (MIN_TTL, "max_claim_grace"),
    "min_length_client_id": (1, "max_length_client_id"),
    "idempotency_window": (MIN_TTL, MAX_WINDOW),
    "max_wait": (0, MAX_WAIT),
    "stage_ttl": (MIN_TTL, MAX_REMEMBERED),
    "producer_ttl": (MIN_TTL, MAX_REMEMBERED),
    "max_message_ttl": (MIN_TTL, MAX_LIFE),
    "max_claim_ttl": (MIN_TTL, MAX_LIFE),
    "max_claim_grace": (MIN_TTL, MAX_LIFE),
    "max_message_delay": (0, MAX_LIFE),
    "max_queues_per_page": (1, None),
    "max_pools_per_page": (1, None),
    "max_flavors_per_page": (1, None),
    "max_messages_per_page": (1, None),
    "max_messages_per_claim_or_pop": (1, None),
    "max_answer_bytes": ("max_messages_post_size", None),
    "max_messages_per_post": (1, None),
    "max_stage_messages": (1, None),
    "max_commit_messages": (1, None),
    "commit_slice": (1, None),
    "max_metadata_walk": (1, None),
}
# The options of the section.
TRANSPORT: Final[list[cfg.Opt]] = [
    *[
        cfg.IntOpt(
            name,
            default=getattr(LIMITS, name),
            sample_default=ZAQARS.get(name),
            min=0,
            mutable=name == "default_message_ttl",
            help=text,
        )
        for name, text in LIMIT_HELP.items()
    ],
    cfg.StrOpt(
        "client_id_uuid_safe",
        default="strict",
        choices=["strict", "off"],
        help="strict: a Client-ID must be a UUID. off: any text within the length limits.",
    ),
    cfg.FloatOpt(
        "storage_timeout",
        default=5.0,
        min=0.1,
        max=600,
        help="Seconds after which a call to a networked store is aborted; the server then answers 503. A request that "
        "waits or makes several calls may take longer.",
    ),
    cfg.StrOpt(
        "message_encryption_key_file",
        default="",
        help="A file (mode 0600 or 0640) with one key per line: an id and 32 bytes in base64. The first key encrypts "
        "the messages of queues with _enable_encrypt_messages; all keys decrypt. Empty: encryption is unavailable. "
        "Reloaded on SIGHUP.",
    ),
    cfg.BoolOpt(
        "message_delete_with_claim_id",
        default=False,
        help="Require claim ids when messages are deleted by id.",
    ),
]
