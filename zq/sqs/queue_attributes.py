# SPDX-License-Identifier: Apache-2.0
"""Conversion between SQS queue attributes, whose values are strings, and queue metadata.

If zq's own API has a metadata key for an attribute, the attribute is stored under this key. All other attributes are
stored under ``_sqs``.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from zq.core.metadata import Metadata
from zq.model import QueueRef
from zq.sqs import errors, names
from zq.sqs.call import Call
from zq.sqs.extension import (
    ATTRIBUTES,
    DEDUPLICATION_SCOPES,
    DEFAULT_REUSE,
    REDRIVE_PERMISSIONS,
    THROUGHPUT_LIMITS,
    QueueAttributes,
    get_attributes,
    read_attributes,
)
from zq.sqs.limits import MAX_ACCESS_POLICY, MAX_RECEIVES, MAX_SOURCES, NUMBERS

LOG = logging.getLogger(__name__)

# Read-only attributes. The first three are message counts.
READ_ONLY: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
# Attributes that a standard queue does not have. AWS has a special error message for the last two.
FIFO_ONLY: Final = ("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
FIFO_ONLY_WITH_ERROR: Final = FIFO_ONLY[1:]
# The attribute that makes a queue a FIFO queue. It can be set only when the queue is created.
FIFO: Final = "FifoQueue"
# The name by which a client requests all attributes.
ALL: Final = "All"
# Error message for a throughput limit per message group without a deduplication scope per message group.
NEEDS_SCOPE: Final = f"{THROUGHPUT_LIMITS[1]} needs a DeduplicationScope of {DEDUPLICATION_SCOPES[1]}."
_BOOLEANS: Final = {"true": True, "false": False}
_DIGITS: Final = re.compile(r"[0-9]{1,18}", re.ASCII)


def parse_boolean(text: str) -> bool | None:
    """Parse "true" or "false", ignoring case. Return None for any other text."""
    return _BOOLEANS.get(text.lower())


def check_names(attributes: Iterable[str], fifo: bool) -> None:
    """Raise ``SqsError`` if a queue of this type (``fifo`` or standard) cannot have one of the attributes."""
    for name in attributes:
        if name in FIFO_ONLY_WITH_ERROR and not fifo:
            raise errors.only_of_fifo(name)
        if name not in SETTERS or (name in FIFO_ONLY and not fifo):
            raise errors.unknown_attribute(name)


def edit_metadata(call: Call, ref: QueueRef, metadata: Metadata, attributes: Mapping[str, str]) -> Metadata:
    """Return a copy of the metadata with the given valid attributes set. Raises ``SqsError`` for an invalid value."""
    own = get_attributes(metadata)
    if attributes.get("KmsMasterKeyId") and parse_boolean(attributes.get("SqsManagedSseEnabled", "")):
        raise errors.two_encryptions()
    edit = MetadataEdit(call, ref, dict(metadata), own)
    for name, value in attributes.items():
        SETTERS[name](edit, name, value)
    if edit.own.limit != THROUGHPUT_LIMITS[0] and edit.own.scope == DEDUPLICATION_SCOPES[0]:
        raise errors.invalid_attribute_value("FifoThroughputLimit", NEEDS_SCOPE)
    return edit.metadata | {ATTRIBUTES: msgspec.to_builtins(edit.own)}


class MetadataEdit:
    """The metadata that attribute setters modify. ``own`` is the value of the key ``_sqs``."""

    def __init__(self, call: Call, ref: QueueRef, metadata: Metadata, own: QueueAttributes) -> None:
        self.call = call
        self.ref = ref
        self.metadata = metadata
        self.own = own

    def set_own(self, **changes: Any) -> None:
        """Set attributes that are stored under the metadata key ``_sqs``."""
        self.own = structs.replace(self.own, **changes)


def _parse_number(name: str, value: str) -> int:
    low, high, _ = NUMBERS[name]
    if _DIGITS.fullmatch(value) is None or not low <= int(value) <= high:
        raise errors.invalid_attribute_value(name)
    return int(value)


def _parse_boolean(name: str, value: str) -> bool:
    found = parse_boolean(value)
    if found is None:
        raise errors.invalid_attribute_value(name)
    return found


def _make_key_setter(key: str) -> Callable[[MetadataEdit, str, str], None]:
    def set_number(edit: MetadataEdit, name: str, value: str) -> None:
        edit.metadata[key] = _parse_number(name, value)

    return set_number


def _make_own_setter(member: str) -> Callable[[MetadataEdit, str, str], None]:
    def set_number(edit: MetadataEdit, name: str, value: str) -> None:
        edit.set_own(**{member: _parse_number(name, value)})

    return set_number


def _set_policy(edit: MetadataEdit, name: str, value: str) -> None:
    if value and (len(value) > MAX_ACCESS_POLICY or _json_object(value) is None):
        raise errors.invalid_attribute_value(name)
    edit.set_own(policy=value)


def _set_redrive_policy(edit: MetadataEdit, name: str, value: str) -> None:
    if not value:
        for key in ("_dead_letter_queue", "_max_claim_count"):
            edit.metadata.pop(key, None)
        return

    def refusal(reason: str) -> errors.SqsError:
        return errors.invalid_value(value, name, reason)

    policy = _json_object(value)
    if policy is None:
        raise refusal("Redrive policy is not a valid JSON map.")
    for member in ("deadLetterTargetArn", "maxReceiveCount"):
        if policy.get(member) in (None, ""):
            raise refusal(f"Redrive policy does not contain mandatory attribute: {member}.")
    arn, count = str(policy["deadLetterTargetArn"]), str(policy["maxReceiveCount"])
    if _DIGITS.fullmatch(count) is None or not 1 <= int(count) <= MAX_RECEIVES:
        raise refusal(
            f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to {MAX_RECEIVES} both inclusive."
        )
    edit.metadata |= {"_dead_letter_queue": _find_target(edit, arn, refusal), "_max_claim_count": int(count)}


def _find_target(edit: MetadataEdit, arn: str, refusal: Callable[[str], errors.SqsError]) -> str:
    """Return the name of the dead-letter queue with this ARN.

    If the queue cannot be a dead-letter queue, raise the error that ``refusal`` creates from the reason.
    """
    target = names.parse_arn(edit.call, arn)
    if target is None:
        raise refusal("Dead letter target must be a queue of the same account.")
    queue = edit.call.use_cases.find(target)
    if queue is None:
        raise refusal("Dead letter target does not exist.")
    allows = read_attributes(queue.metadata).redrive_allow or {}
    if read_attributes(queue.metadata).fifo != edit.own.fifo:
        raise refusal("Dead letter target must be of the same type, FIFO or standard.")
    permission = allows.get("redrivePermission", "allowAll")
    sources = [names.parse_arn(edit.call, source) for source in allows.get("sourceQueueArns", ())]
    if permission == "denyAll" or (permission == "byQueue" and edit.ref not in sources):
        raise refusal("The redrive allow policy of the dead letter target does not allow this queue.")
    return target.name


def _set_redrive_allow(edit: MetadataEdit, name: str, value: str) -> None:
    if not value:
        edit.set_own(redrive_allow=None)
        return
    policy = _json_object(value)
    permission = policy.get("redrivePermission") if policy else None
    sources = policy.get("sourceQueueArns") if policy else None
    if permission not in REDRIVE_PERMISSIONS or (permission == "byQueue") != bool(sources):
        reason = "redrivePermission must be allowAll, denyAll, or byQueue with sourceQueueArns."
        raise errors.invalid_value(value, name, reason)
    allowed: dict[str, Any] = {"redrivePermission": permission}
    if sources:
        if not isinstance(sources, list) or len(sources) > MAX_SOURCES or not all(map(_is_arn, sources)):
            raise errors.invalid_value(value, name, f"sourceQueueArns must be ARNs of 1 to {MAX_SOURCES} queues.")
        allowed["sourceQueueArns"] = sources
    edit.set_own(redrive_allow=allowed)


def _is_arn(value: object) -> bool:
    return isinstance(value, str) and names.ARN.fullmatch(value) is not None


def _set_kms_key(edit: MetadataEdit, _name: str, value: str) -> None:
    if value and edit.call.options.kms == "refuse":
        raise errors.unsupported_operation("KmsMasterKeyId cannot be set: this server does not encrypt with KMS keys.")
    if value and not edit.own.kms.key:
        LOG.warning("Queue %s has a KMS key, but its messages are not encrypted with it.", edit.ref.name)
    edit.set_own(kms=structs.replace(edit.own.kms, key=value[:2048], managed=edit.own.kms.managed and not value))


def _set_kms_reuse(edit: MetadataEdit, name: str, value: str) -> None:
    edit.set_own(kms=structs.replace(edit.own.kms, reuse=_parse_number(name, value or str(DEFAULT_REUSE))))


def _set_managed(edit: MetadataEdit, name: str, value: str) -> None:
    managed = _parse_boolean(name, value)
    edit.set_own(kms=structs.replace(edit.own.kms, managed=managed, key="" if managed else edit.own.kms.key))


def _set_content_deduplication(edit: MetadataEdit, name: str, value: str) -> None:
    edit.set_own(content_dedup=_parse_boolean(name, value))


def _make_choice_setter(member: str, values: Sequence[str]) -> Callable[[MetadataEdit, str, str], None]:
    def set_text(edit: MetadataEdit, name: str, value: str) -> None:
        if value not in values:
            raise errors.invalid_attribute_value(name)
        edit.set_own(**{member: value})

    return set_text


# Attribute setters by name. Attributes without a setter cannot be changed.
SETTERS: Final[Mapping[str, Callable[[MetadataEdit, str, str], None]]] = {
    "VisibilityTimeout": _make_own_setter("visibility"),
    "MessageRetentionPeriod": _make_key_setter("_default_message_ttl"),
    "DelaySeconds": _make_key_setter("_default_message_delay"),
    "MaximumMessageSize": _make_own_setter("max_size"),
    "ReceiveMessageWaitTimeSeconds": _make_own_setter("wait"),
    "RedrivePolicy": _set_redrive_policy,
    "RedriveAllowPolicy": _set_redrive_allow,
    "Policy": _set_policy,
    "KmsMasterKeyId": _set_kms_key,
    "KmsDataKeyReusePeriodSeconds": _set_kms_reuse,
    "SqsManagedSseEnabled": _set_managed,
    "ContentBasedDeduplication": _set_content_deduplication,
    "DeduplicationScope": _make_choice_setter("scope", DEDUPLICATION_SCOPES),
    "FifoThroughputLimit": _make_choice_setter("limit", THROUGHPUT_LIMITS),
}
# Attribute names that a client can request.
REQUESTABLE: Final = frozenset({ALL, FIFO, *SETTERS, *READ_ONLY})


def format_attributes(call: Call, name: str, metadata: Metadata) -> dict[str, str]:
    """Return all attributes of a queue that have a value, except message counts."""
    own = get_attributes(metadata)
    filled = call.use_cases.queues.shown(name, metadata)
    texts = {
        "VisibilityTimeout": str(own.visibility),
        "MessageRetentionPeriod": str(filled["_default_message_ttl"]),
        "DelaySeconds": str(filled["_default_message_delay"]),
        "MaximumMessageSize": str(own.max_size),
        "ReceiveMessageWaitTimeSeconds": str(own.wait),
        "RedrivePolicy": _redrive_policy(call, metadata),
        "RedriveAllowPolicy": _text(own.redrive_allow) if own.redrive_allow else "",
        "Policy": own.policy,
        "KmsMasterKeyId": own.kms.key,
        "KmsDataKeyReusePeriodSeconds": str(own.kms.reuse) if own.kms.reuse != DEFAULT_REUSE else "",
        "SqsManagedSseEnabled": str(own.kms.managed).lower(),
        "CreatedTimestamp": str(own.created or ""),
        "LastModifiedTimestamp": str(own.modified or ""),
        "QueueArn": names.queue_arn(call, name),
    }
    if own.fifo:
        values = str(own.content_dedup).lower(), own.scope, own.limit
        texts |= {FIFO: "true", **dict(zip(FIFO_ONLY, values, strict=True))}
    return {name: text for name, text in texts.items() if text}


def find_difference(existing: Mapping[str, str], requested: Mapping[str, str]) -> str:
    """Return the name of the first attribute whose given value differs from the existing value, or "" if all match."""
    return next((name for name, value in requested.items() if not _are_equal(existing.get(name, ""), value)), "")


def _are_equal(existing: str, requested: str) -> bool:
    if existing == requested or (
        _DIGITS.fullmatch(requested) and _DIGITS.fullmatch(existing) and int(requested) == int(existing)
    ):
        return True
    if parse_boolean(existing) is not None:
        return parse_boolean(existing) == parse_boolean(requested)
    policies = _json_object(existing), _json_object(requested)
    return None not in policies and _as_texts(policies[0]) == _as_texts(policies[1])


def _as_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _as_texts(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_as_texts(member) for member in value]
    return str(value)


def _redrive_policy(call: Call, metadata: Metadata) -> str:
    target, count = metadata.get("_dead_letter_queue"), metadata.get("_max_claim_count")
    if not target or count is None:
        return ""
    return _text({"deadLetterTargetArn": names.queue_arn(call, target), "maxReceiveCount": count})


def _text(value: object) -> str:
    return json.dumps(value)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None
