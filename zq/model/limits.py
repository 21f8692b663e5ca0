# SPDX-License-Identifier: Apache-2.0
"""All limits of zq and their checks (contract sections 6.1, 7, 8, 16). No other module defines a limit."""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Final, TypeGuard

from msgspec import Struct

from zq.errors import Invalid, InvalidBody, InvalidName, InvalidTopicName
from zq.model import QueueRef
from zq.model.attributes import TRACE_NAMES, AttributeValue, value_size
from zq.model.options import Natural, Option, Positive
from zq.model.topics import PATTERN, Pattern, Retention, TopicRef

# Minimum ttl or grace in seconds.
MIN_TTL: Final = 60
# Minimum delay in seconds.
MIN_DELAY: Final = 0
# Default number of entries per page, and of messages per claim.
DEFAULT_PAGE: Final = 10
# Maximum number of claims per page, and maximum length of the User-Agent that a claim stores.
MAX_CLAIMS: Final = 100
MAX_AGENT: Final = 64
# Maximum number of ids in a read or a ``Location``. Such a read is never cut into pages.
MAX_IDS: Final = 20
# Maximum length of the name of a queue or topic.
MAX_NAME: Final = 64
# Maximum length of a project id.
MAX_PROJECT: Final = 256
# Maximum nesting depth of metadata.
MAX_NESTING: Final = 64
# Maximum seconds by which a ready server's clock may differ from the store's.
MAX_DRIFT: Final = 60
# Maximum error in seconds of a ready server's estimate of the store's time: half a round trip to the store.
MAX_UNCERTAINTY: Final = 0.05
# Maximum body size in bytes of a claim, purge or other small request.
MAX_CONTROL_BODY: Final = 65536
# Maximum length of the reason of a dead letter.
MAX_REASON: Final = 1024
# Maximum length of an Idempotency-Key.
MAX_KEY: Final = 255
# Maximum seconds for which an Idempotency-Key is remembered.
MAX_WINDOW: Final = 31_536_000
# Maximum number of messages of one redrive or replay.
MAX_BATCH: Final = 10_000
# Default maximum for the message count of a state.
MAX_COUNTED: Final = 10_000
# Default number of messages of a redrive or replay.
DEFAULT_BATCH: Final = 1000
# Maximum number of ids in a redrive.
MAX_NAMED: Final = 1000
# Maximum body size in bytes of a commit.
MAX_COMMIT_BODY: Final = 1 << 18
# Maximum number of stages, and of claims, in a commit.
MAX_COMMITTED: Final = 1000
# Maximum length of the name of a fence, stage, producer or claim.
MAX_FREE_NAME: Final = 128
# Maximum length of the name of a message group.
MAX_GROUP: Final = 128
# Maximum number of a message's attributes, not counting the trace context.
MAX_ATTRIBUTES: Final = 10
# Maximum characters of a message's attributes, including names and types. SQS counts attributes towards the message
# size instead.
MAX_ATTRIBUTES_SIZE: Final = 16384
# Maximum length of the name or type of an attribute.
MAX_ATTRIBUTE_NAME: Final = 256
# Maximum number of digits of a numeric attribute, and its range.
MAX_DIGITS: Final = 38
MIN_NUMBER: Final = Decimal("-1e128")
MAX_NUMBER: Final = Decimal("1e126")
# Maximum number of stages, fences or producers per page.
MAX_WORK_PAGE: Final = 100
# Maximum configurable ttl, grace or delay in seconds (100 years).
MAX_LIFE: Final = 3_153_600_000
# Maximum configurable time of a long poll in seconds.
MAX_WAIT: Final = 3600
# Maximum seconds for which a producer is remembered (366 days).
MAX_REMEMBERED: Final = 31_622_400
# Default retention of topics.
DEFAULT_KEEP: Final = Retention(size=1 << 26, messages=1_000_000)
# Minimum retention of topics.
MIN_KEEP: Final = Retention(size=1 << 20, messages=1000)
# Maximum length of an existing queue name. REST creates only names of up to ``MAX_NAME`` characters.
MAX_LONG_NAME: Final = 80
# The name of a fence, stage, producer or claim.
FREE_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,128}", re.ASCII)
# A project id.
PROJECT_ID: Final = re.compile(r"(?! )[\x20-\x2b\x2d-\x5b\x5d-\x7e]{1,256}(?<! )", re.ASCII)
# The name of a queue or topic that REST can create.
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# The rule for queue names in error messages.
QUEUE_RULE: Final = f"must be a queue name, 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - and the dot"
# The name of an existing queue, which may be too long for creation by REST.
LONG_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)

# The name of an attribute: parts separated by dots. A part consists of letters (also with diacritics), digits, _ and -.
ATTRIBUTE_NAME: Final = re.compile(r"[\u00c0-\u017fA-Za-z0-9_-]+(?:\.[\u00c0-\u017fA-Za-z0-9_-]+)*")
# Prefixes that attribute names must not have, in lower case.
RESERVED_PREFIXES: Final = ("aws.", "amazon.")
# The type of an attribute, with an optional label.
ATTRIBUTE_TYPE: Final = re.compile(r"(String|Number|Binary)(?:\..+)?", re.DOTALL)
# The text of a numeric attribute. No digit can match two parts of the expression, so a match takes linear time.
ATTRIBUTE_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# A character that attributes must not contain, because XML cannot represent it.
FORBIDDEN_CHARACTER: Final = re.compile("[^\t\n\r\\x20-\\ud7ff\\ue000-\\ufffd\U00010000-\U0010ffff]")

# Returns the queue, or ``None`` if it does not exist.
Find = Callable[[QueueRef], object]


class Limits(Struct, frozen=True, kw_only=True):
    """The configurable limits and defaults, named as in section ``[transport]``."""

    default_message_ttl: Annotated[int, Option(MIN_TTL, "max_message_ttl", reload=True)] = 3600
    """Default TTL of a message in seconds, unless queue_ttl matches or the queue has a default of its own."""
    default_message_delay: Annotated[int, Option(0, "max_message_delay")] = 0
    """Default delay of a message in seconds, unless the queue has a default of its own."""
    default_claim_ttl: Annotated[int, Option(MIN_TTL, "max_claim_ttl")] = 300
    """Default TTL of a claim in seconds."""
    default_claim_grace: Annotated[int, Option(MIN_TTL, "max_claim_grace")] = 60
    """Default grace of a claim: seconds by which claimed messages outlive the claim."""
    max_message_ttl: Annotated[int, Option(MIN_TTL, MAX_LIFE)] = 1_209_600
    """Maximum message TTL in seconds."""
    max_message_delay: Annotated[int, Option(0, MAX_LIFE)] = 900
    """Maximum message delay in seconds."""
    max_claim_ttl: Annotated[int, Option(MIN_TTL, MAX_LIFE)] = 43_200
    """Maximum claim TTL in seconds."""
    max_claim_grace: Annotated[int, Option(MIN_TTL, MAX_LIFE)] = 43_200
    """Maximum claim grace in seconds."""
    max_queues_per_page: Positive = 20
    """Maximum number of queues per page."""
    max_pools_per_page: Positive = 20
    """Maximum number of pools per page."""
    max_flavors_per_page: Positive = 20
    """Maximum number of flavors per page."""
    max_messages_per_page: Annotated[int, Option(1, sample=20)] = 1000
    """Maximum number of messages per page, or of ids per deletion or replay. Default: 1000. Zaqar's limit is 20."""
    max_messages_per_claim_or_pop: Annotated[int, Option(1, sample=20)] = 1000
    """Maximum number of messages per claim, pop or settlement. Default: 1000. Zaqar's limit is 20."""
    max_answer_bytes: Annotated[int, Option("max_messages_post_size")] = 4194304
    """Maximum bytes of bodies and attributes per response: a claim or pop returns fewer messages and a page is shorter,
    but each has at least one message."""
    max_queue_metadata: Natural = 65_536
    """Maximum size of queue metadata in bytes."""
    max_messages_post_size: Natural = 262144
    """Maximum body size of a post in bytes."""
    max_messages_per_post: Positive = 1000
    """Maximum number of messages per post, stage request or publish request."""
    min_length_client_id: Annotated[int, Option(1, "max_length_client_id")] = 10
    """Minimum length of a Client-ID with client_id_uuid_safe = off."""
    max_length_client_id: Natural = 36
    """Maximum length of a Client-ID with client_id_uuid_safe = off."""
    max_wait: Annotated[int, Option(0, MAX_WAIT)] = 30
    """Maximum seconds that a request may wait for messages."""
    stage_ttl: Annotated[int, Option(MIN_TTL, MAX_REMEMBERED)] = 3600
    """Seconds after which an unpublished stage is discarded."""
    max_stage_bytes: Natural = 268435456
    """Maximum bytes of message bodies per stage."""
    max_stage_messages: Positive = 100_000
    """Maximum number of messages per stage."""
    max_commit_messages: Positive = 1_000_000
    """Maximum number of messages that one commit publishes and deletes."""
    commit_slice: Positive = 2000
    """Maximum number of messages that one storage transaction of a commit publishes and deletes; a larger commit runs
    in several transactions."""
    max_metadata_walk: Positive = 1000
    """Maximum number of queues or topics that a filtered listing reads per request."""
    producer_ttl: Annotated[int, Option(MIN_TTL, MAX_REMEMBERED)] = 2_592_000
    """Seconds for which a producer's last commit is remembered."""
    idempotency_window: Annotated[int, Option(MIN_TTL, MAX_WINDOW)] = 86_400
    """Seconds for which an Idempotency-Key is remembered."""

    @property
    def max_settle_body(self) -> int:
        """Maximum size in bytes of the request body of a settlement.

        The limit includes the maximum size of a post, because a settlement can give new bodies to moved messages.
        """
        return self.max_messages_post_size + MAX_CONTROL_BODY


def check_range(field: str, value: int, low: int, high: int, error: type[Invalid] = Invalid, unit: str = "") -> int:
    """Return ``value`` if ``low`` <= ``value`` <= ``high``, else raise ``error`` with field, bounds and unit."""
    if low <= value <= high:
        return value
    bounds = f"from {low} to {high} {unit}".rstrip()
    raise error(f"{field} must be {bounds}; it is {value if abs(value) < 10**20 else 'far out of range'}.")


def check_count(field: str, count: int, high: int) -> None:
    """Raise ``Invalid`` if a list is empty or has more than ``high`` values. ``count`` is its length."""
    if not 1 <= count <= high:
        raise Invalid(f"{field} must contain 1 to {high} values, not {count}.")


def check_body_size(size: int, bound: int) -> None:
    """Raise ``Invalid`` if the body has more than ``bound`` bytes. ``size`` may be its ``Content-Length``."""
    if size > bound:
        raise Invalid(f"The body must be at most {bound} bytes; it is {size}.")


def check_nesting(field: str, value: object, depth: int = MAX_NESTING) -> None:
    """Raise ``InvalidBody`` if decoded JSON is nested deeper than ``depth`` levels."""
    if depth < 0:
        raise InvalidBody(f"{field} must be nested at most {MAX_NESTING} levels deep.")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        check_nesting(field, child, depth - 1)


def project_id(project: str, error: type[InvalidName] = InvalidName) -> str:
    """Return ``project`` if it is a valid project id (tenancy contract, section 1). Raises ``error`` if it is not."""
    if PROJECT_ID.fullmatch(project) is None:
        raise error(
            f"A project id must be 1 to {MAX_PROJECT} printable ASCII characters without commas and backslashes, "
            f"and must not begin or end with a space; it has {len(project)} characters."
        )
    return project


@lru_cache(maxsize=4096)
def queue_ref(project: str, name: str) -> QueueRef:
    """Return the full name of a queue. Raises ``InvalidName`` if a part is not valid (contract section 1.7)."""
    _check_ref("queue", project, name, InvalidName)
    return QueueRef(project, name)


def reachable_queue_ref(project: str, name: str, find: Find | None = None) -> QueueRef:
    """Return the full name of a queue. Raises ``InvalidName`` if a part is not valid.

    The REST API cannot create queues with more than ``MAX_NAME`` characters. Such a name is valid only if ``find``
    returns the queue, or if ``find`` is None.
    """
    if len(name) > MAX_NAME and is_long_queue_name(name):
        queue = QueueRef(project_id(project), name)
        if find is None or find(queue) is not None:
            return queue
    return queue_ref(project, name)


@lru_cache(maxsize=4096)
def topic_ref(project: str, name: str) -> TopicRef:
    """Return the full name of a topic. Raises ``InvalidTopicName`` if a part is not valid (contract section 1.7)."""
    _check_ref("topic", project, name, InvalidTopicName)
    return TopicRef(project, name)


def _check_ref(thing: str, project: str, name: str, error: type[InvalidName]) -> None:
    project_id(project, error)
    if QUEUE_NAME.fullmatch(name) is None:
        raise error(f"A {thing} name must be 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - and the dot.")


def pattern(text: str) -> Pattern:
    """Parse the parameter ``match``, a topic pattern (extensions, section 8). Raises ``Invalid`` if it is not valid."""
    if PATTERN.fullmatch(text) is None or "***" in text:
        raise Invalid(
            f"match must be 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - the dot and *, with at most two * in a row."
        )
    return Pattern(text)


def check_queue_name(field: str, value: str) -> str:
    """Return ``value`` if it is a queue name of up to ``MAX_LONG_NAME`` characters. Raises ``Invalid`` if it is not."""
    if is_long_queue_name(value):
        return value
    raise Invalid(f"{field} {QUEUE_RULE}.")


def check_target(field: str, queue: QueueRef, find: Find, error: type[Invalid] = Invalid) -> None:
    """Raise ``error`` if the queue does not exist and its name is too long for the REST API to create it."""
    if len(queue.name) > MAX_NAME and find(queue) is None:
        raise error(f"{field} {QUEUE_RULE}.")


def check_unique(field: str, values: Sequence[str]) -> None:
    """Raise ``Invalid`` if a value is repeated."""
    if len(set(values)) < len(values):
        raise Invalid(f"{field} must name each message only once.")


def is_long_queue_name(value: object) -> TypeGuard[str]:
    """Return whether the value is a queue name of up to ``MAX_LONG_NAME`` characters."""
    return isinstance(value, str) and LONG_QUEUE_NAME.fullmatch(value) is not None


def check_free_name(field: str, name: str) -> str:
    """Return ``name`` if it is a valid name of a claim, stage, fence or producer. Otherwise, raise ``Invalid``."""
    if FREE_NAME.fullmatch(name) is None:
        raise Invalid(
            f"{field}: a name must be 1 to {MAX_FREE_NAME} characters from A-Z a-z 0-9 _ - and the dot, and "
            "not only dots."
        )
    return name


def check_group_name(name: str) -> str:
    """Return ``name`` if it is a valid name of a message group. Raises ``Invalid`` if it is not."""
    if not 1 <= len(name) <= MAX_GROUP:
        raise Invalid(f"group must be 1 to {MAX_GROUP} characters; it has {len(name)}.")
    return name


def check_attributes(values: Mapping[str, AttributeValue]) -> None:
    """Raise ``Invalid`` if a message's attributes break a rule or limit of SQS."""
    if (count := sum(name not in TRACE_NAMES for name in values)) > MAX_ATTRIBUTES:
        raise Invalid(f"attributes must have at most {MAX_ATTRIBUTES} members, not {count}.")
    if (size := sum(value_size(name, value) for name, value in values.items())) > MAX_ATTRIBUTES_SIZE:
        raise Invalid(
            f"attributes must have at most {MAX_ATTRIBUTES_SIZE} characters in total, with names and types, not {size}."
        )
    for name, value in values.items():
        _check_attribute(f"attributes.{name}", name, value)


def _check_attribute(field: str, name: str, value: AttributeValue) -> None:
    if not 1 <= len(name) <= MAX_ATTRIBUTE_NAME:
        raise Invalid(f"attributes: a name must be 1 to {MAX_ATTRIBUTE_NAME} characters; one has {len(name)}.")
    if ATTRIBUTE_NAME.fullmatch(name) is None:
        raise Invalid(
            f"{field}: a name may contain only letters, digits, _, - and single dots, and no dot at either end."
        )
    if name.lower().startswith(RESERVED_PREFIXES):
        raise Invalid(f"{field}: a name must not begin with AWS. or Amazon.")
    matched = ATTRIBUTE_TYPE.fullmatch(value.data_type)
    if matched is None:
        raise Invalid(f"{field}.type must be String, Number or Binary, optionally followed by a dot and a label.")
    if len(value.data_type) > MAX_ATTRIBUTE_NAME:
        raise Invalid(f"{field}.type must be at most {MAX_ATTRIBUTE_NAME} characters; it has {len(value.data_type)}.")
    content = value.binary_value if matched[1] == "Binary" else value.string_value
    if not content:
        raise Invalid(f"{field} must not be empty.")
    if matched[1] == "Binary":
        if not is_base64(content):
            raise Invalid(f"{field}.value must be base64, because its type is Binary.")
    elif not is_allowed_text(content):
        raise Invalid(f"{field} must not have control characters other than tab, line feed and carriage return.")
    elif matched[1] == "Number" and not is_attribute_number(content):
        raise Invalid(
            f"{field} must be a number from -10^128 to 10^126 with at most {MAX_DIGITS} digits, not {content[:40]}."
        )


def is_allowed_text(text: str) -> bool:
    """Return whether message attributes may contain all characters of the text."""
    return text.isprintable() or FORBIDDEN_CHARACTER.search(text) is None


def is_attribute_number(text: str) -> bool:
    """Return whether the text is a number in the range of numeric attributes."""
    if ATTRIBUTE_NUMBER.fullmatch(text) is None:
        return False
    digits = re.split("[eE]", text)[0].lstrip("+-0").replace(".", "").strip("0")
    return len(digits) <= MAX_DIGITS and MIN_NUMBER <= Decimal(text) <= MAX_NUMBER


def is_base64(text: str) -> bool:
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def check_claim_name(name: str) -> str:
    """Return ``name`` if it is a valid claim name that contains a dot. Otherwise, raise ``Invalid``."""
    if "." not in name:
        raise Invalid("The name of a claim must contain a dot, which distinguishes it from ids assigned by the server.")
    return check_free_name("claim", name)
