# SPDX-License-Identifier: Apache-2.0
"""Section ``[transport]``: the default, description and range of each limit."""

from typing import Final

from oslo_config import cfg

from zq.limits import MAX_LIFE, MAX_REMEMBERED, MAX_WAIT, MAX_WINDOW, MIN_TTL, Limits

# Defaults of [transport].
LIMITS: Final = Limits()
# Help texts of [transport].
LIMIT_HELP: Final = {
    "default_message_ttl": "Seconds that a message lives, unless it, its queue or queue_ttl says otherwise.",
    "default_message_delay": "Seconds until a message can be claimed, unless it or its queue says otherwise.",
    "default_claim_ttl": "Seconds that a claim lives, unless it says otherwise.",
    "default_claim_grace": "Seconds that claimed messages outlive their claim, unless the claim says otherwise.",
    "max_message_ttl": "Largest ttl of a message, in seconds.",
    "max_message_delay": "Largest delay of a message, in seconds.",
    "max_claim_ttl": "Largest ttl of a claim, in seconds.",
    "max_claim_grace": "Largest grace of a claim, in seconds.",
    "max_queues_per_page": "Most queues in one page of a listing.",
    "max_pools_per_page": "Most pools in one page of a listing.",
    "max_flavors_per_page": "Most flavors in one page of a listing.",
    "max_messages_per_page": "Most messages in one page of a listing, or ids in one deletion or replay. Default: 1000. "
    "Zaqar's bound is 20.",
    "max_messages_per_claim_or_pop": "Most messages that one claim or pop returns, or that one settlement names. "
    "Default: 1000. Zaqar's bound is 20.",
    "max_answer_bytes": "Most bytes of message bodies in one answer: a claim or pop takes fewer messages, a page ends "
    "earlier, but holds one at least.",
    "max_queue_metadata": "Largest metadata document, in bytes.",
    "max_messages_post_size": "Largest body of one post of messages, in bytes.",
    "max_messages_per_post": "Most messages in one post, staged or published ones too.",
    "min_length_client_id": "Fewest characters of a Client-ID, when client_id_uuid_safe is off.",
    "max_length_client_id": "Most characters of a Client-ID, when client_id_uuid_safe is off.",
    "max_wait": "Most seconds that a request may wait for messages.",
    "stage_ttl": "Seconds after which a stage that was not published is dropped.",
    "max_stage_bytes": "Most bytes of message bodies in one stage.",
    "max_stage_messages": "Most messages in one stage.",
    "max_commit_messages": "Most messages that one commit publishes and deletes together.",
    "commit_slice": "Most messages, published and deleted together, that one step of the store commits; a larger "
    "commit is carried out slice by slice.",
    "max_metadata_walk": "Most queues or topics that one request looks at to find those that its filters mean.",
    "producer_ttl": "Seconds that the last commit of a producer is remembered.",
    "idempotency_window": "Seconds for which a request with an Idempotency-Key is remembered.",
}
# Defaults of Zaqar that the sample configuration shows instead of zq's.
ZAQARS: Final = {"max_messages_per_page": 20, "max_messages_per_claim_or_pop": 20}
# Minimum and maximum of each limit; a name refers to another option's value. Other limits are at least 0.
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
        help="strict: a Client-ID must be a UUID. off: any text of an allowed length.",
    ),
    cfg.FloatOpt(
        "storage_timeout",
        default=5.0,
        min=0.1,
        max=600,
        help="Seconds after which a step on a store on the network that does not answer ends with 503; a request "
        "that waits, or takes several steps, may take longer.",
    ),
    cfg.StrOpt(
        "message_encryption_key_file",
        default="",
        help="A file (mode 0600 or 0640) with a key a line, its id and 32 bytes in base64: the first one seals the "
        "messages of queues with _enable_encrypt_messages, all of them open. Empty: no queue can be encrypted. The "
        "file is read again at HUP.",
    ),
    cfg.BoolOpt(
        "message_delete_with_claim_id",
        default=False,
        help="Deleting messages by ids needs their claim ids as well.",
    ),
]
