# SPDX-License-Identifier: Apache-2.0
"""The reserved metadata keys of queues and topics. Each key is declared as one field of a struct.

The field has the name of the key without the underscore, the type of its parsed value, and the value of an unset key.
Its docstring is the description in ``api-ref/queues.md``. The schema, the defaults that clients see, the OpenAPI
document and the console's form are derived from these fields.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from msgspec import UNSET, Struct

from zq.errors import InvalidBody
from zq.model import Grouping
from zq.model.declarations import Declaration, find_declarations
from zq.model.limits import LONG_QUEUE_NAME, MIN_DELAY, MIN_TTL, QUEUE_RULE, Limits, is_long_queue_name

Json = dict[str, Any]


class Values(Struct, frozen=True):
    """The valid values of a key.

    Args:
        schema: Returns the JSON Schema. If the schema has a description, the error message for an invalid value is
            the name of the key, followed by the description.
        text: Description of the values in ``api-ref/queues.md``.
    """

    schema: Callable[[Limits], Json]
    text: str


class Key(Struct, frozen=True):
    """The properties of a key besides its name and description.

    Args:
        values: The valid values.
        shown: The value that clients see if the key is unset. A string is the name of a limit, whose value clients
            see. With ``UNSET``, clients see no value.
        topics: Whether the key has an effect on topics.
        shown_on_topics: Whether clients see the value of ``shown`` on topics, too.
        refusal: The reason why a topic cannot have the key, or "" if a topic can have the key. The reason is the end of
            a sentence in an error message.
        parse: Converts a stored value to the parsed value. Without ``parse``, the stored value is used, or the field's
            default if the value is unset or falsy.
        page: The documentation page or section that explains the key, relative to ``api-ref``.
    """

    values: Values
    shown: Any = UNSET
    topics: bool = False
    shown_on_topics: bool = False
    refusal: str = ""
    parse: Callable[[Any, Limits], Any] | None = None
    page: str = ""


def _fixed(schema: Json, text: str) -> Values:
    return Values(lambda _limits: schema, text)


def _integer(low: int, high: str, zero: bool = False, unit: str = "seconds") -> Values:
    def schema(limits: Limits) -> Json:
        maximum, kind = getattr(limits, high), "0, an integer" if zero else "an integer"
        integers = {"type": ["integer", "null"], "minimum": low, "maximum": maximum}
        either = {"anyOf": [{"enum": [0, None]}, integers]} if zero else integers
        return either | {"description": f"must be {kind} from {low} to {maximum} ({unit}), or null"}

    return Values(schema, f"integer, {'0 or ' if zero else ''}{low} to `{high}`")


def _choice(*choices: str) -> Values:
    described = f"must be {', '.join(choices)} or null"
    return _fixed({"enum": [*choices, None], "description": described}, ", ".join(f"`{each}`" for each in choices))


# JSON Schema of ``_retry_policy``.
RETRY_POLICY: Final[Json] = {
    "properties": {
        "retries_with_no_delay": {"type": "integer"},
        "minimum_delay_retries": {"type": "integer"},
        "minimum_delay": {"type": "integer"},
        "maximum_delay": {"type": "integer"},
        "maximum_delay_retries": {"type": "integer"},
        "retry_backoff_function": {"enum": ["linear", "arithmetic", "geometric", "exponential"]},
        "ignore_subscription_override": {"type": "boolean"},
    },
    "type": "object",
}
_QUEUE_NAME: Final[Json] = {
    "type": ["string", "null"],
    "pattern": f"^{LONG_QUEUE_NAME.pattern}$",
    "description": f"{QUEUE_RULE}, or null",
}


class ReservedKeys(Struct, frozen=True, kw_only=True):
    """The reserved keys of a queue or topic, parsed."""

    max_messages_post_size: Annotated[
        int,
        Key(
            _integer(1, "max_messages_post_size", unit="bytes"),
            shown="max_messages_post_size",
            topics=True,
            shown_on_topics=True,
            # The limit also caps a value that was stored under a larger limit.
            parse=lambda value, limits: min(value or limits.max_messages_post_size, limits.max_messages_post_size),
        ),
    ]
    """Maximum body size of a post in bytes."""
    default_message_ttl: Annotated[
        int | None, Key(_integer(MIN_TTL, "max_message_ttl"), "default_message_ttl", topics=True, shown_on_topics=True)
    ] = None
    """TTL in seconds of messages that are posted without one. Unset: the default of the server."""
    default_message_delay: Annotated[
        int,
        Key(
            _integer(MIN_DELAY, "max_message_delay"),
            "default_message_delay",
            shown_on_topics=True,
            parse=lambda value, limits: value or limits.default_message_delay,
            page="redelivery.md#delayed-queues",
        ),
    ]
    """Delay in seconds of messages that are posted without one. With 0 the queue ignores delays."""
    dead_letter_queue: Annotated[
        str,
        Key(
            _fixed(_QUEUE_NAME, "a queue name; the queue's own name only in an SQS queue"),
            None,
            parse=lambda value, _limits: value if is_long_queue_name(value) else "",
            page="claims.md#dead-letters",
        ),
    ] = ""
    """Queue to which a message moves after ``_max_claim_count`` claims."""
    dead_letter_queue_messages_ttl: Annotated[int | None, Key(_integer(MIN_TTL, "max_message_ttl"), None)] = None
    """TTL in seconds of a dead letter."""
    max_claim_count: Annotated[
        int | None,
        Key(
            _fixed({"type": ["integer", "null"]}, "integer"),
            None,
            parse=lambda value, _limits: None if value is None or value < 0 else value,
        ),
    ] = None
    """Number of claims after which a message becomes a dead letter."""
    enable_encrypt_messages: Annotated[
        bool, Key(_fixed({"type": ["boolean", "null"]}, "boolean"), False, topics=True, page="operations.md#encryption")
    ] = False
    """Whether message bodies are encrypted in the store. ``true`` requires a key file on the server, else 400."""
    retry_policy: Annotated[Json | None, Key(_fixed(RETRY_POLICY, "object, see below"))] = None
    """The value is checked and stored, but has no effect."""
    redelivery_delay: Annotated[int, Key(_integer(0, "max_message_delay"), page="redelivery.md")] = 0
    """Seconds until a message is ready again after its claim ended."""
    redelivery_backoff: Annotated[str, Key(_choice("constant", "exponential"))] = "constant"
    """Whether ``_redelivery_delay`` doubles with each claim."""
    redelivery_max_delay: Annotated[
        int,
        Key(
            _integer(0, "max_message_ttl"),
            parse=lambda value, limits: limits.max_message_delay if value is None else value,
        ),
    ]
    """Maximum seconds until a message is ready again after its claim ended. Unset: ``max_message_delay``."""
    paused: Annotated[
        str, Key(_choice("claims", "posts", "all"), refusal="only queues can be paused.", page="#pause")
    ] = ""
    """Paused requests: claims and pops, posts, or both."""
    grouped: Annotated[
        str,
        Key(
            _choice(*(each.value for each in Grouping if each)),
            refusal="only queues support message groups.",
            page="#groups",
        ),
    ] = ""
    """Delivery order within message groups. It can only be set when the queue is created."""
    history_ttl: Annotated[
        int, Key(_integer(MIN_TTL, "max_message_ttl", zero=True), page="messages.md#history-and-replay")
    ] = 0
    """Seconds for which the queue keeps a history entry of a finished message."""


class FeatureKeys(Struct, frozen=True, kw_only=True):
    """The reserved keys of optional features. Each feature checks its own keys."""

    flavor: Annotated[Any, Key(_fixed({}, "any; with `pooling` a flavor of the project"), page="pools.md")] = None
    """Pools in which the server may create the queue. No effect without ``pooling``."""
    sqs: Annotated[Any, Key(_fixed({}, "object"), page="sqs.md#attributes")] = None
    """Attributes and tags of the queue in SQS."""


def _index_keys(keys: type[Struct]) -> dict[str, tuple[Declaration, Key]]:
    return {f"_{field.name}": (field, key) for field, key in find_declarations(keys, Key)}


KEYS: Final = _index_keys(ReservedKeys)
# The names that clients may use, by kind of resource.
KNOWN_KEYS: Final = {
    "queues": (*KEYS, *_index_keys(FeatureKeys)),
    "topics": tuple(name for name, (_, key) in KEYS.items() if key.topics or key.shown_on_topics),
}


def parse_keys(metadata: Mapping[str, Any], limits: Limits) -> Json:
    """Parse the reserved keys in valid metadata. Return the fields of ``ReservedKeys`` by name."""
    return {
        field.name: key.parse(metadata.get(name), limits) if key.parse else metadata.get(name) or field.default
        for name, (field, key) in KEYS.items()
    }


def build_key_schemas(limits: Limits) -> Json:
    """Return the JSON Schema of each reserved key, by key."""
    return {name: key.values.schema(limits) for name, (_, key) in KEYS.items()}


def check_retry_span(policy: Mapping[str, Any], field: str = "_retry_policy") -> None:
    """Raise ``InvalidBody`` if the minimum and maximum delay of a ``_retry_policy`` are too close."""
    if policy.get("maximum_delay", 30) - policy.get("minimum_delay", 5) < 10:
        raise InvalidBody(
            f"{field}: maximum_delay must exceed minimum_delay by at least 10 seconds (defaults 30 and 5)."
        )


def shown_defaults(limits: Limits, topic: bool = False) -> Json:
    """Return the values that clients see for unset keys, by key (contract sections 6.1 and 13)."""
    shown = {name: key.shown for name, (_, key) in KEYS.items() if key.shown is not UNSET}
    return {
        name: getattr(limits, value) if isinstance(value, str) else value
        for name, value in shown.items()
        if not topic or KEYS[name][1].shown_on_topics
    }
