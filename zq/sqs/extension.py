# SPDX-License-Identifier: Apache-2.0
"""The metadata key ``_sqs``, which holds the SQS queue attributes that zq's own API does not have."""

from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from zq.core.extensions import Extension, OwnedDocuments, ProtocolKey
from zq.core.metadata import GROUPED, Metadata
from zq.errors import InvalidBody, MetadataConflict
from zq.model import Grouping
from zq.sqs.keys import KEY
from zq.sqs.limits import MAX_ACCESS_POLICY, MAX_SOURCES, MAX_TAG_KEY, MAX_TAG_VALUE, MAX_TAGS, NUMBERS
from zq.sqs.move_tasks import TASK

ATTRIBUTES: Final = "_sqs"
# Valid values of ``redrivePermission`` in a redrive allow policy.
REDRIVE_PERMISSIONS: Final = ("allowAll", "denyAll", "byQueue")
# Valid values of a FIFO queue's DeduplicationScope and FifoThroughputLimit. The first is the default.
DEDUPLICATION_SCOPES: Final = ("queue", "messageGroup")
THROUGHPUT_LIMITS: Final = ("perQueue", "perMessageGroupId")

# Default of KmsDataKeyReusePeriodSeconds.
DEFAULT_REUSE: Final = NUMBERS["KmsDataKeyReusePeriodSeconds"][2]


def _number(attribute: str) -> Metadata:
    low, high, _ = NUMBERS[attribute]
    return {"type": "integer", "minimum": low, "maximum": high}


def _record(**members: Metadata) -> Metadata:
    return {"type": "object", "properties": members, "additionalProperties": False}


_MOMENT: Final[Metadata] = {"type": "integer", "minimum": 0}
# JSON Schema of the value of ``_sqs``; api-ref/sqs.md describes each member.
SCHEMA: Final[Metadata] = _record(
    visibility=_number("VisibilityTimeout"),
    max_size=_number("MaximumMessageSize"),
    wait=_number("ReceiveMessageWaitTimeSeconds"),
    policy={"type": "string", "maxLength": MAX_ACCESS_POLICY},
    redrive_allow=_record(
        redrivePermission={"enum": list(REDRIVE_PERMISSIONS)},
        sourceQueueArns={"type": "array", "items": {"type": "string"}, "maxItems": MAX_SOURCES},
    ),
    kms=_record(
        key={"type": "string", "maxLength": 2048},
        reuse=_number("KmsDataKeyReusePeriodSeconds"),
        managed={"type": "boolean"},
    ),
    fifo={"type": "boolean"},
    content_dedup={"type": "boolean"},
    scope={"enum": list(DEDUPLICATION_SCOPES)},
    limit={"enum": list(THROUGHPUT_LIMITS)},
    purged={"type": "integer", "minimum": 0},
    created=_MOMENT,
    modified=_MOMENT,
    tags={
        "type": "object",
        "maxProperties": MAX_TAGS,
        "patternProperties": {rf"^[\s\S]{{1,{MAX_TAG_KEY}}}$": {"type": "string", "maxLength": MAX_TAG_VALUE}},
        "additionalProperties": False,
    },
) | {"type": ["object", "null"]}


class Kms(Struct, frozen=True, omit_defaults=True):
    """A queue's KMS settings. zq stores and returns them, but does not encrypt messages with KMS keys."""

    key: str = ""
    reuse: int = DEFAULT_REUSE
    managed: bool = False


class QueueAttributes(Struct, frozen=True, omit_defaults=True):
    """The SQS attributes of a queue, stored under ``_sqs``. Times are Unix times in seconds; 0 = unknown."""

    visibility: int = NUMBERS["VisibilityTimeout"][2]
    max_size: int = NUMBERS["MaximumMessageSize"][2]
    wait: int = NUMBERS["ReceiveMessageWaitTimeSeconds"][2]
    redrive_allow: dict[str, Any] | None = None
    policy: str = ""
    kms: Kms = Kms()
    fifo: bool = False
    content_dedup: bool = False
    """Whether a message without a deduplication id gets the hash of its body as the id."""
    scope: str = DEDUPLICATION_SCOPES[0]
    limit: str = THROUGHPUT_LIMITS[0]
    purged: int = 0
    """The number of purges. It is part of each idempotency key, so no new message is a duplicate of a purged one."""
    created: int = 0
    modified: int = 0
    tags: dict[str, str] = {}


class _Metadata(Struct, frozen=True):
    own: QueueAttributes | None = msgspec.field(default=None, name=ATTRIBUTES)


_decode: Final = msgspec.json.Decoder(_Metadata).decode


@lru_cache(maxsize=1024)
def read_attributes(metadata: bytes) -> QueueAttributes:
    """Return the SQS attributes in a queue's encoded metadata."""
    return _decode(metadata).own or QueueAttributes()


def get_attributes(metadata: Metadata) -> QueueAttributes:
    """Return the SQS attributes in a queue's decoded metadata."""
    return msgspec.convert(metadata.get(ATTRIBUTES) or {}, QueueAttributes)


def with_attributes(metadata: Metadata, **changes: Any) -> Metadata:
    return metadata | {ATTRIBUTES: msgspec.to_builtins(structs.replace(get_attributes(metadata), **changes))}


def is_fifo(metadata: Metadata) -> bool:
    """Return whether a queue with this metadata is a FIFO queue."""
    return bool((metadata.get(ATTRIBUTES) or {}).get("fifo"))


def _check(metadata: Metadata) -> None:
    if is_fifo(metadata) and metadata.get(GROUPED) != Grouping.ORDERED:
        raise InvalidBody(f"{ATTRIBUTES}.fifo requires that {GROUPED} is {Grouping.ORDERED}.")


def _check_change(former: Metadata, metadata: Metadata) -> None:
    if is_fifo(former) != is_fifo(metadata):
        raise MetadataConflict(f"{ATTRIBUTES}.fifo can only be set when the queue is created.")


EXTENSION: Final = Extension(
    protocol_keys=[ProtocolKey(ATTRIBUTES, SCHEMA, _check, _check_change)],
    owned_documents=[OwnedDocuments(KEY, [KEY]), OwnedDocuments(TASK)],
)
