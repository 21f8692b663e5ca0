# SPDX-License-Identifier: Apache-2.0
"""Every bound of zq and its check: the only place where a bound is a number (contract 6.1, 7, 8, 16)."""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final, TypeGuard

from msgspec import Struct

from zq.errors import Invalid, InvalidBody, InvalidName, InvalidTopicName
from zq.model import QueueRef
from zq.model.attributes import TRACE_NAMES, AttributeValue
from zq.model.topics import PATTERN, Pattern, Retention, TopicRef

# The least ttl, grace or life of a claim, in seconds.
MIN_TTL: Final = 60
# The least delay, in seconds.
MIN_DELAY: Final = 0
# Entries of a page, and messages of a claim, for a request that names no limit.
DEFAULT_PAGE: Final = 10
# Claims that one page may have, and characters of a User-Agent that a claim keeps.
MAX_CLAIMS: Final = 100
MAX_AGENT: Final = 64
# Messages that a read by ids, or a ``Location``, may name: no client follows links there, so it cannot end early.
MAX_IDS: Final = 20
# Characters of the name of a queue or a topic.
MAX_NAME: Final = 64
# Characters of a project's id.
MAX_PROJECT: Final = 256
# The largest integer in a body.
MAX_BODY_NUMBER: Final = 2**63 - 1
# Levels to which the metadata of a queue may be nested.
MAX_NESTING: Final = 64
# Seconds that a ready server's clock may be away from the store's.
MAX_DRIFT: Final = 60
# Seconds by which a ready server's estimate of the store's time may be wrong: half a round trip to the store.
MAX_UNCERTAINTY: Final = 0.05
# Bytes of the body of a claim, a purge or another small request.
MAX_CONTROL_BODY: Final = 65536
# Characters of the reason of a dead letter.
MAX_REASON: Final = 1024
# Characters of an Idempotency-Key.
MAX_KEY: Final = 255
# Seconds for which an Idempotency-Key may be remembered.
MAX_WINDOW: Final = 31_536_000
# Messages that one redrive or replay handles.
MAX_BATCH: Final = 10_000
# Messages of a queue in one state that are counted, unless options say otherwise.
MAX_COUNTED: Final = 10_000
# Messages that a redrive or a replay without a limit handles.
DEFAULT_BATCH: Final = 1000
# Messages that a redrive may name.
MAX_NAMED: Final = 1000
# Bytes of a commit's body.
MAX_COMMIT_BODY: Final = 1 << 18
# Stages, and claims, that one commit may name.
MAX_COMMITTED: Final = 1000
# Characters of the name of a fence, a stage, a producer or a claim.
MAX_FREE_NAME: Final = 128
# Characters of the name of a group of messages.
MAX_GROUP: Final = 128
# Attributes that the sender of a message may choose, besides its trace context.
MAX_ATTRIBUTES: Final = 10
# Characters of the name or the type of an attribute.
MAX_ATTRIBUTE_NAME: Final = 256
# Digits of a number among attributes, and its range.
MAX_DIGITS: Final = 38
LEAST_NUMBER: Final = Decimal("-1e128")
GREATEST_NUMBER: Final = Decimal("1e126")
# Stages, fences or producers in one page of a listing at most.
MAX_WORK_PAGE: Final = 100
# Seconds (100 years) that the largest ttl, grace or delay may be set to.
MAX_LIFE: Final = 3_153_600_000
# Seconds that the longest long poll may be set to.
MAX_WAIT: Final = 3600
# Seconds (366 days) for which a producer is remembered at most.
MAX_REMEMBERED: Final = 31_622_400
# The retention of topics where nothing is set.
DEFAULT_KEEP: Final = Retention(size=1 << 26, messages=1_000_000)
# The least retention of topics.
MIN_KEEP: Final = Retention(size=1 << 20, messages=1000)
# Characters of the longest name of a queue. REST creates no queue whose name has more than ``MAX_NAME``.
MAX_LONG_NAME: Final = 80
# The name of a fence, a stage, a producer or a claim.
FREE_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,128}", re.ASCII)
# The id of a project.
PROJECT_ID: Final = re.compile(r"(?! )[\x20-\x2b\x2d-\x5b\x5d-\x7e]{1,256}(?<! )", re.ASCII)
# The name of a queue or a topic that REST creates.
QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
# The rule for the name of a queue that a body names.
QUEUE_RULE: Final = f"must be a queue name, 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - and the dot"
# The name of a queue, also a name that is too long for REST to create it.
LONG_QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}", re.ASCII)

# The name of an attribute: parts of letters (also Latin letters with diacritics), digits, _ and -, with dots between.
ATTRIBUTE_NAME: Final = re.compile(r"[\u00c0-\u017fA-Za-z0-9_-]+(?:\.[\u00c0-\u017fA-Za-z0-9_-]+)*")
# Prefixes that no attribute's name may have, in lower case.
RESERVED_PREFIXES: Final = ("aws.", "amazon.")
# The type of an attribute, with an optional label.
ATTRIBUTE_TYPE: Final = re.compile(r"(String|Number|Binary)(?:\..+)?", re.DOTALL)
# The text of a number among attributes.
ATTRIBUTE_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
# A character that no attribute may have, since XML has no form for it.
FORBIDDEN_CHARACTER: Final = re.compile("[^\t\n\r\\x20-\\ud7ff\\ue000-\\ufffd\U00010000-\U0010ffff]")

# Returns the queue, or None if it does not exist.
Find = Callable[[QueueRef], object]


class Limits(Struct, frozen=True, kw_only=True):
    """The configurable bounds and defaults, under their names in section ``[transport]``."""

    default_message_ttl: int = 3600
    default_message_delay: int = 0
    default_claim_ttl: int = 300
    default_claim_grace: int = 60
    max_message_ttl: int = 1_209_600
    max_message_delay: int = 900
    max_claim_ttl: int = 43_200
    max_claim_grace: int = 43_200
    max_queues_per_page: int = 20
    max_pools_per_page: int = 20
    max_flavors_per_page: int = 20
    max_messages_per_page: int = 1000
    max_messages_per_claim_or_pop: int = 1000
    max_answer_bytes: int = 4194304
    max_queue_metadata: int = 65536
    max_messages_post_size: int = 262144
    max_messages_per_post: int = 1000
    min_length_client_id: int = 10
    max_length_client_id: int = 36
    max_wait: int = 30
    stage_ttl: int = 3600
    max_stage_bytes: int = 268435456
    max_stage_messages: int = 100_000
    max_commit_messages: int = 1_000_000
    commit_slice: int = 2000
    max_metadata_walk: int = 1000
    producer_ttl: int = 2_592_000
    idempotency_window: int = 86400


def within(field: str, value: int, low: int, high: int, error: type[Invalid] = Invalid) -> int:
    """``value``, if ``low <= value <= high``; else ``error`` with the field and its bounds."""
    if low <= value <= high:
        return value
    raise error(f"{field} must be from {low} to {high}; it is {value if abs(value) < 10**20 else 'out of all bounds'}.")


def count_within(field: str, count: int, high: int) -> None:
    """Refuse a list of none or of more than ``high`` values."""
    if not 1 <= count <= high:
        raise Invalid(f"{field} must name 1 to {high} values; it names {count}.")


def body_size(size: int, bound: int) -> None:
    """Refuse a body of more than ``bound`` bytes by its announced size, before it is read."""
    if size > bound:
        raise Invalid(f"The body must be at most {bound} bytes; it is {size}.")


def nesting(field: str, value: object, depth: int = MAX_NESTING) -> None:
    """Refuse decoded JSON that is nested deeper than ``depth``, since it is decoded again wherever it is needed."""
    if depth < 0:
        raise InvalidBody(f"{field} must be nested at most {MAX_NESTING} deep.")
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        nesting(field, child, depth - 1)


def project_id(project: str, error: type[InvalidName] = InvalidName) -> str:
    """``project``, if it keeps the rule of tenancy 1; else ``error``."""
    if PROJECT_ID.fullmatch(project) is None:
        raise error(
            f"A project id must be 1 to {MAX_PROJECT} printable ASCII characters without commas and backslashes, and "
            f"without blanks at its ends; it has {len(project)}."
        )
    return project


@lru_cache(maxsize=4096)
def queue_ref(project: str, name: str) -> QueueRef:
    """The full name, if both parts keep the rules of contract 1.7; else ``InvalidName``."""
    _check_ref("queue", project, name, InvalidName)
    return QueueRef(project, name)


def reachable_queue_ref(project: str, name: str, find: Find | None = None) -> QueueRef:
    """Return the full name of a queue that a request names.

    A name of more than ``MAX_NAME`` characters is accepted if ``find`` returns the queue, or without ``find``, for
    requests that create no queue. Raises ``InvalidName``.
    """
    if len(name) > MAX_NAME and is_long_queue_name(name):
        queue = QueueRef(project_id(project), name)
        if find is None or find(queue) is not None:
            return queue
    return queue_ref(project, name)


def topic_ref(project: str, name: str) -> TopicRef:
    """The full name, if both parts keep the rules of contract 1.7; else ``InvalidTopicName``."""
    _check_ref("topic", project, name, InvalidTopicName)
    return TopicRef(project, name)


def _check_ref(thing: str, project: str, name: str, error: type[InvalidName]) -> None:
    project_id(project, error)
    if QUEUE_NAME.fullmatch(name) is None:
        raise error(f"A {thing} name must be 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - and the dot.")


def pattern(text: str) -> Pattern:
    """The topics that ``match`` means (extensions 8), if it keeps the rules; else ``Invalid``."""
    if PATTERN.fullmatch(text) is None or "***" in text:
        raise Invalid(
            f"match must be 1 to {MAX_NAME} characters from A-Z a-z 0-9 _ - the dot and *, at most two * in a row."
        )
    return Pattern(text)


def queue_name(field: str, value: str) -> str:
    """Return ``value`` if it is the name of a queue of up to ``MAX_LONG_NAME`` characters; else raise ``Invalid``."""
    if is_long_queue_name(value):
        return value
    raise Invalid(f"{field} {QUEUE_RULE}.")


def check_target(field: str, queue: QueueRef, find: Find, error: type[Invalid] = Invalid) -> None:
    """Raise ``error`` if the queue does not exist and its name is too long for REST to create it."""
    if len(queue.name) > MAX_NAME and find(queue) is None:
        raise error(f"{field} {QUEUE_RULE}.")


def each_once(field: str, values: Sequence[str]) -> None:
    """Refuse a list that names something twice."""
    if len(set(values)) < len(values):
        raise Invalid(f"{field} must name each message at most once.")


def is_long_queue_name(value: object) -> TypeGuard[str]:
    """Return whether the value is the name of a queue of up to ``MAX_LONG_NAME`` characters."""
    return isinstance(value, str) and LONG_QUEUE_NAME.fullmatch(value) is not None


def free_name(field: str, name: str) -> str:
    """A name that callers choose for a claim, a stage, a fence or a producer (extensions 9), if it keeps the rules."""
    if FREE_NAME.fullmatch(name) is None:
        raise Invalid(
            f"{field}: a name must be 1 to {MAX_FREE_NAME} characters from A-Z a-z 0-9 _ - and the dot, not dots alone."
        )
    return name


def group_name(name: str) -> str:
    """The name of a group of messages, any text but an empty one."""
    if not 1 <= len(name) <= MAX_GROUP:
        raise Invalid(f"group must be 1 to {MAX_GROUP} characters; it has {len(name)}.")
    return name


def check_attributes(values: Mapping[str, AttributeValue]) -> None:
    """Refuse attributes of a message that break a rule or a bound; those of SQS are the same."""
    if (count := sum(name not in TRACE_NAMES for name in values)) > MAX_ATTRIBUTES:
        raise Invalid(f"attributes must have at most {MAX_ATTRIBUTES} members; it has {count}.")
    for name, value in values.items():
        _check_attribute(f"attributes.{name}", name, value)


def _check_attribute(field: str, name: str, value: AttributeValue) -> None:
    if not 1 <= len(name) <= MAX_ATTRIBUTE_NAME:
        raise Invalid(f"attributes: a name must be 1 to {MAX_ATTRIBUTE_NAME} characters; one has {len(name)}.")
    if ATTRIBUTE_NAME.fullmatch(name) is None:
        raise Invalid(f"{field}: a name must be letters, digits, _ - and single dots between them.")
    if name.lower().startswith(RESERVED_PREFIXES):
        raise Invalid(f"{field}: a name must not begin with AWS. or Amazon.")
    matched = ATTRIBUTE_TYPE.fullmatch(value.data_type)
    if matched is None:
        raise Invalid(f"{field}.type must be String, Number or Binary, with an optional label behind a dot.")
    if len(value.data_type) > MAX_ATTRIBUTE_NAME:
        raise Invalid(f"{field}.type must be at most {MAX_ATTRIBUTE_NAME} characters; it has {len(value.data_type)}.")
    content = value.binary_value if matched[1] == "Binary" else value.string_value
    if not content:
        raise Invalid(f"{field} must not be empty.")
    if matched[1] == "Binary":
        if not is_base64(content):
            raise Invalid(f"{field}.value must be base64, since its type is Binary.")
    elif not is_allowed_text(content):
        raise Invalid(f"{field} must not have control characters other than tab, line feed and carriage return.")
    elif matched[1] == "Number" and not is_attribute_number(content):
        raise Invalid(
            f"{field} must be a number from -10^128 to 10^126 with at most {MAX_DIGITS} digits, not {content[:40]}."
        )


def is_allowed_text(text: str) -> bool:
    """Return whether a text has no forbidden character. The faster check for printable texts comes first."""
    return text.isprintable() or FORBIDDEN_CHARACTER.search(text) is None


def is_attribute_number(text: str) -> bool:
    """Return whether the text is a number within the bounds for attributes."""
    if ATTRIBUTE_NUMBER.fullmatch(text) is None:
        return False
    digits = re.split("[eE]", text)[0].lstrip("+-0").replace(".", "").strip("0")
    return len(digits) <= MAX_DIGITS and LEAST_NUMBER <= Decimal(text) <= GREATEST_NUMBER


def is_base64(text: str) -> bool:
    """Return whether the text is base64."""
    try:
        b64decode(text, validate=True)
    except ValueError:
        return False
    return True


def claim_name(name: str) -> str:
    """A claim's name; ids that the server gives hold no dot."""
    if "." not in name:
        raise Invalid("The name of a claim must hold a dot, to be told from ids that the server gives.")
    return free_name("claim", name)


def integer_in_body(value: int) -> int:
    """``value``, if it fits in signed 64 bits (contract 1.6)."""
    return within("An integer in the body", value, -MAX_BODY_NUMBER - 1, MAX_BODY_NUMBER, InvalidBody)
