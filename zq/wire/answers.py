# SPDX-License-Identifier: Apache-2.0
"""JSON responses as structs: the server encodes them, the Python client decodes them, and OpenAPI describes them.

Times are text on the server and ``datetime`` in the client. A member with a default may be absent. OpenAPI takes the
descriptions of members from the section ``Attributes:`` of docstrings.
"""

from typing import Annotated, Final, Generic, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from zq.model import Outcome, State
from zq.model.limits import MAX_BATCH, MAX_PROJECT, PROJECT_ID
from zq.model.quotas import MAX_QUOTA
from zq.wire.attributes import JsonValue

# Length in characters of ``Message.body_start``.
START: Final = 256
Time = TypeVar("Time")
M = TypeVar("M")

Count: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
# A count that every JSON parser reads exactly.
SafeCount: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_QUOTA})]
BatchCount: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": MAX_BATCH})]
# A time in the format of the extensions, and one in the format of the contract.
Timestamp: TypeAlias = Annotated[
    str,
    Meta(extra_json_schema={"pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", "format": "date-time"}),
]
DateTime: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
ProjectId: TypeAlias = Annotated[
    str,
    Meta(extra_json_schema={"pattern": f"^{PROJECT_ID.pattern}$", "minLength": 1, "maxLength": MAX_PROJECT}),
]


class Link(Struct, frozen=True):
    rel: Annotated[str, Meta(extra_json_schema={"const": "next"})]
    href: str


Links: TypeAlias = Annotated[list[Link], Meta(extra_json_schema={"maxItems": 1})]


class Error(Struct, omit_defaults=True):
    """The body of an error response.

    Attributes:
        limit: Name of the exceeded limit, if the error is about a limit.
    """

    title: str = ""
    description: str = ""
    limit: str = ""


class BriefMessage(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message without details."""

    id: str
    ttl: int
    age: int
    href: str = ""
    raw: Raw | UnsetType = field(name="body", default=UNSET)
    checksum: str = ""


class Message(BriefMessage, Generic[Time], kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A message. The members after ``checksum`` are present only if they were requested.

    Attributes:
        available_at: The time from which the message can be claimed.
        claim_count: Number of claims so far.
        origin: The queue from which a dead letter was moved.
        origin_claim_count: Number of claims in the origin queue.
        reason: The reason why a dead letter was moved.
        attributes: The attributes that the producer set, and the trace context.
        deduplication_id: The deduplication id of a message in a FIFO queue (SQS).
        aws_trace_header: The AWS X-Ray trace header (SQS).
        body_start: First 256 characters of the body, in a listing with ``bodies=start``.
        body_bytes: Size of the whole body in bytes, in a listing with ``bodies=start``.
    """

    sequence: Count | UnsetType = UNSET
    created: Time | None = None
    expires: Time | None = None
    available_at: Time | None = None
    claim_count: Count | UnsetType = UNSET
    origin: str = ""
    origin_claim_count: Count | UnsetType = UNSET
    reason: str = ""
    group: str = ""
    attributes: dict[str, JsonValue] = {}
    deduplication_id: str = ""
    aws_trace_header: str = ""
    body_start: Annotated[str, Meta(extra_json_schema={"maxLength": START})] = ""
    body_bytes: Count = 0


class BriefPoppedMessage(Struct, omit_defaults=True, gc=False):
    """A message that a pop has deleted, without details. Encoding it is faster than encoding a ``PoppedMessage``."""

    id: str
    ttl: int
    age: int
    body: Raw
    claim_id: str | None
    claim_count: Count
    checksum: str = ""


class PoppedMessage(Message[Time], Generic[Time], kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A message that a pop has deleted."""

    claim_id: str | None


class FinishedMessage(Message[Time], Generic[Time], kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A message in a queue's history. Some listings include live messages, which have no outcome."""

    finished: Time | None = None
    outcome: Annotated[str, Meta(extra_json_schema={"enum": [*Outcome]})] = ""


class TopicMessage(BriefMessage, Generic[Time], kw_only=True, frozen=True, omit_defaults=True, gc=False):
    """A published message. The members after ``checksum`` are present only if they were requested."""

    sequence: Count = 0
    created: Time | None = None
    expires: Time | None = None
    attributes: dict[str, JsonValue] = {}


class Messages(Struct, Generic[M]):
    """A list of messages that were read by ids, claimed or popped."""

    messages: list[M]


class MessagePage(Messages[M], Generic[M]):
    """A page of messages. If the messages were read by ids, the page has no links."""

    links: Links | UnsetType = UNSET


class HistoryPage(Messages[M], Generic[M]):
    """A page of a queue's history."""

    links: Links


class Gap(Struct, frozen=True):
    """A range of messages that are no longer in the log: sequence numbers above ``after`` and below ``resumes``."""

    after: Count
    resumes: Count


class TopicMessagePage(MessagePage[M], Generic[M], omit_defaults=True):
    """A page of a topic's messages.

    Attributes:
        gap: The range of messages before the page that are no longer in the log.
        position: Log position up to which the server searched. Present only if details were requested and the page has
            no messages.
    """

    gap: Gap | None = None
    position: Count | None = None


class LocatedMessage(Struct, Generic[M], frozen=True):
    """A message found by id, with its queue and its state: ``ready``, ``delayed``, ``claimed`` or ``finished``."""

    queue: str
    state: Annotated[str, Meta(extra_json_schema={"enum": [*State, "finished"]})]
    message: M


class PostedHrefs(Struct):
    resources: list[str]


class Claim(Struct, Generic[M, Time], omit_defaults=True):
    """A claim with its messages. The members after ``messages`` are present only if details were requested.

    Attributes:
        client: Client id of the holder; null if unknown.
        agent: Start of the holder's User-Agent; null if unknown.
    """

    age: Count
    ttl: Count
    href: str
    messages: list[M]
    client: str | UnsetType | None = UNSET
    agent: str | UnsetType | None = UNSET
    created: Time | UnsetType = UNSET
    ends: Time | UnsetType = UNSET


class LiveClaim(Struct, Generic[Time], frozen=True):
    """A claim in a listing.

    Attributes:
        age: Seconds since ``created``.
        messages: Number of messages in the claim.
        client: Client id of the holder; null if unknown.
        agent: First 64 characters of the holder's User-Agent; null if unknown.
        created: Time of the last renewal, or of the creation if the claim was never renewed.
        ends: Expiry time.
    """

    id: str
    queue: str
    href: str
    age: Count
    ttl: Count
    messages: Count
    client: str | None
    agent: str | None
    created: Time
    ends: Time


class Edge(Struct, Generic[Time], frozen=True, omit_defaults=True):
    """The oldest or newest message of a queue or topic."""

    href: str
    age: Count
    created: Time
    sequence: Count = 0


class Stats(Struct, Generic[Time], frozen=True, omit_defaults=True):
    """The message counts of a queue or topic.

    Attributes:
        entered: Counter of posted messages. The start value is arbitrary, so only differences are meaningful. Absent if
            unknown.
    """

    claimed: Count
    free: Count
    total: Count
    entered: Count | None = None
    oldest: Edge[Time] | None = None
    newest: Edge[Time] | None = None


class StatsDocument(Struct, Generic[Time]):
    messages: Stats[Time]


class Depth(Struct, frozen=True):
    """The number of messages per state. The counts stop at the server's ``max_counted`` and may be one second old.

    Attributes:
        backlog: Number of ready and claimed messages.
        oldest_ready_seconds: Seconds since the oldest ready message became ready.
    """

    ready: Count
    claimed: Count
    delayed: Count
    backlog: Count
    oldest_ready_seconds: Annotated[float, Meta(extra_json_schema={"minimum": 0})]


class RedriveResult(Struct, frozen=True):
    """The result of a redrive.

    Attributes:
        remaining: Number of messages left in the queue, exact up to 10,000.
        lost: The requested ids without a ready message, in request order; absent if no ids were requested.
    """

    moved: Count
    remaining: BatchCount
    lost: list[str] | UnsetType = UNSET


class RedriveDryRun(Struct, frozen=True):
    """The expected result of a redrive.

    Attributes:
        would_move: Number of messages that would be moved.
        origins: Number of messages by origin queue.
        without_origin: Number of messages without an origin.
        missing_origin: Number of messages by origin queue, for origin queues that do not exist.
        counted: Number of inspected messages.
        lost: The requested ids without a ready message, in request order; absent if no ids were requested.
    """

    would_move: BatchCount
    origins: dict[str, Count]
    without_origin: BatchCount
    missing_origin: dict[str, Count]
    counted: BatchCount
    lost: list[str] | UnsetType = UNSET


class ReplayResult(Struct):
    replayed: Count


class ReplayDryRun(Struct, frozen=True):
    """The expected result of a replay.

    Attributes:
        would_replay: Number of copies that would be posted.
        counted: Number of inspected history entries.
        lost: The requested ids without a history entry, in request order; absent if no ids were requested.
    """

    would_replay: BatchCount
    counted: BatchCount
    lost: list[str] | UnsetType = UNSET


class Epoch(Struct):
    epoch: Annotated[int, Meta(extra_json_schema={"minimum": 1})]


class StageResult(Struct):
    staged: Count


class CommitResult(Struct):
    """The result of a commit.

    Attributes:
        replayed: True if the producer had committed this batch, or a later one, before.
    """

    published: Count
    deleted: Count
    replayed: bool


class LastCommit(Struct, frozen=True):
    """The last committed batch of a producer.

    Attributes:
        published: Number of published messages.
        deleted: Number of deleted messages.
    """

    batch: Count
    published: Count
    deleted: Count


class JobStage(Struct, frozen=True):
    """A stage in a listing: messages that no commit has published yet.

    Attributes:
        bytes: Total size of the message bodies.
        dropped_in: Seconds until the stage expires.
    """

    name: str
    href: str
    messages: Count
    bytes: Count
    expires: Timestamp
    dropped_in: Count


class JobFence(Struct, frozen=True):
    """A fence in a listing. The server rejects requests with an epoch older than the current one.

    Attributes:
        epoch: Current epoch.
        advanced: Time at which the epoch began; null if unknown.
        age: Seconds since ``advanced``; null if unknown.
    """

    name: str
    href: str
    epoch: Count
    advanced: Timestamp | None
    age: Count | None


class JobCommit(Struct, frozen=True):
    """The last committed batch of a producer, in a listing.

    Attributes:
        published: Number of published messages.
        deleted: Number of deleted messages.
        open: Whether the server is still applying the commit.
        decided: Time of the commit; null if unknown.
        age: Seconds since ``decided``; null if unknown.
    """

    producer: str
    href: str
    batch: Count
    published: Count
    deleted: Count
    open: bool
    decided: Timestamp | None
    age: Count | None
