# SPDX-License-Identifier: Apache-2.0
"""OpenAPI schemas of bodies, derived from the structs that decode and encode them."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from zq import wire
from zq.core.extensions import ProtocolKey
from zq.core.health import Operation, Report, Volume
from zq.core.metadata import metadata_schema
from zq.http.openapi.operations import FREE_NAMES, QUEUE_NAMES, TEXT, Json, delays, integer, reference
from zq.http.openapi.structs import LINKS, answer_schemas, page_schema, request_schemas
from zq.http.service import FIXED
from zq.model import SettleResult
from zq.model.declarations import read_docstrings
from zq.model.limits import (
    ATTRIBUTE_NAME,
    MAX_ATTRIBUTE_NAME,
    MAX_BATCH,
    MAX_COMMITTED,
    MAX_GROUP,
    MAX_NAMED,
    MAX_REASON,
    MIN_TTL,
    Limits,
)
from zq.wire import answers, extensions
from zq.wire.answers import DateTime, Timestamp
from zq.wire.metadata import FeatureKeys, ReservedKeys, build_key_schemas, shown_defaults
from zq.wire.numbers import MAX_BODY_NUMBER
from zq.wire.tokens import MadeToken, Token, TokenTerms

Message: TypeAlias = answers.Message[Timestamp]
Popped: TypeAlias = answers.PoppedMessage[Timestamp]
Finished: TypeAlias = answers.FinishedMessage[Timestamp]
Published: TypeAlias = answers.TopicMessage[Timestamp]
# The schema of a count.
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
# The names and types of message attributes as ECMA-262 patterns. SQS reserves the two prefixes.
ATTRIBUTE_NAMES: Final = rf"^(?!([aA][wW][sS]|[aA][mM][aA][zZ][oO][nN])\.){ATTRIBUTE_NAME.pattern}$"
ATTRIBUTE_TYPES: Final = r"^(String|Number|Binary)(\.[\s\S]+)?$"


def schemas(limits: Limits, protocol_keys: Sequence[ProtocolKey]) -> Json:
    """Return all schemas of the core by name. ``protocol_keys`` are metadata keys that features add."""
    return _answers() | _requests(limits) | _metadata(limits, protocol_keys) | _service()


def _requests(limits: Limits) -> Json:
    components = request_schemas(
        *(wire.Post, wire.ClaimTerms, wire.Purge, extensions.SettleTerms, extensions.RedriveTerms),
        *(extensions.ReplayTerms, extensions.CommitTerms, TokenTerms),
        PatchOperation=wire.Operation,
    )
    for name, members in _bounds(limits).items():
        for member, bounds in members.items():
            components[name]["properties"][member].update(bounds)
    for name, conditions in _conditions().items():
        components[name].update(conditions)
    claim = components["ClaimTerms"]
    # Contract 8.3: the grace of a renewal is clamped, not refused.
    renewal = {"properties": claim["properties"] | {"grace": {"type": "integer"}}}
    components["RenewalTerms"] = claim | renewal
    return components


def _bounds(limits: Limits) -> dict[str, dict[str, Json]]:
    """Return the bounds of values that the structs do not declare, as JSON Schemas by component and property."""
    ttl, delay = integer(MIN_TTL, limits.max_message_ttl), delays(limits)
    names = {"propertyNames": {"maxLength": MAX_ATTRIBUTE_NAME, "pattern": ATTRIBUTE_NAMES}}
    batch, held = integer(1, MAX_BATCH), {"maxItems": limits.max_messages_per_claim_or_pop}
    return {
        "Post": {"messages": {"minItems": 1}},
        "Posted": {"ttl": ttl, "delay": delay, "group": {"minLength": 1, "maxLength": MAX_GROUP}, "attributes": names},
        "TypedValue": {
            "type": {"maxLength": MAX_ATTRIBUTE_NAME, "pattern": ATTRIBUTE_TYPES},
            "value": {"minLength": 1},
        },
        "ClaimTerms": {
            "ttl": integer(MIN_TTL, limits.max_claim_ttl),
            "grace": integer(MIN_TTL, limits.max_claim_grace),
        },
        "Purge": {"resource_types": {"items": {"enum": ["messages", "subscriptions"]}}},
        "PatchOperation": {
            "op": {"enum": ["add", "replace", "remove"]},
            "path": {"pattern": r"^/metadata/(?![\s\x1c-\x1f\x85]*$)([^/~]|~[01])+$"},
        },
        "SettleTerms": dict.fromkeys(("delete", "release", "move", "bury"), held),
        "ReleaseTerms": {"delay": delay},
        "MoveTerms": {"queue": QUEUE_NAMES, "ttl": ttl, "delay": delay},
        "BuryTerms": {"reason": {"minLength": 1, "maxLength": MAX_REASON}},
        "RedriveTerms": {
            "to": QUEUE_NAMES,
            "limit": batch,
            "ids": {"minItems": 1, "maxItems": MAX_NAMED, "uniqueItems": True},
            "origin": QUEUE_NAMES,
        },
        "ReplayTerms": {
            "ids": {"minItems": 1, "maxItems": limits.max_messages_per_page, "uniqueItems": True},
            "since": {"format": "date-time"},
            "until": {"format": "date-time"},
            "limit": batch,
        },
        "CommitTerms": {
            "producer": FREE_NAMES,
            "batch": integer(0, MAX_BODY_NUMBER),
            "publish": {"maxItems": MAX_COMMITTED, "uniqueItems": True},
            "settle": {"maxItems": MAX_COMMITTED, "uniqueItems": True},
        },
        "CountedStage": {"stage": FREE_NAMES, "messages": integer(0, MAX_BODY_NUMBER)},
        "HeldClaim": {"queue": QUEUE_NAMES, "claim": {"minLength": 1}},
    }


def _conditions() -> dict[str, Json]:
    def any_of(*members: str) -> Json:
        return {"anyOf": [{"required": [member]} for member in members]}

    named = [
        {"required": [member], "properties": {member: {"minItems": 1}}}
        for member in extensions.SettleTerms.__struct_fields__
    ]
    return {
        "PatchOperation": {"anyOf": [{"properties": {"op": {"const": "remove"}}}, {"required": ["value"]}]},
        "SettleTerms": {"anyOf": named},
        "RedriveTerms": {"not": {"required": ["ids"], **any_of("limit", "origin")}},
        "ReplayTerms": {"oneOf": [any_of("ids"), any_of("since", "until", "limit")]},
    }


def _metadata(limits: Limits, protocol_keys: Sequence[ProtocolKey]) -> Json:
    metadata = metadata_schema(limits, protocol_keys)
    meanings = read_docstrings(ReservedKeys) | read_docstrings(FeatureKeys)
    described = {
        name: {"title": meanings[name[1:]], **schema} if name[1:] in meanings else schema
        for name, schema in metadata["properties"].items()
    }
    return {
        "Metadata": metadata | {"properties": described, "description": "Any keys; reserved keys are listed."},
        "Patch": {"type": "array", "items": reference("schemas", "PatchOperation")},
        "ShownMetadata": _shown(limits, "queue", shown_defaults(limits)),
        "ShownTopicMetadata": _shown(limits, "topic", shown_defaults(limits, topic=True)),
        "QueuePage": _record("count", queues=_entries("ShownMetadata"), links=LINKS, count=COUNT),
        "TopicPage": _record(topics=_entries("ShownTopicMetadata"), links=LINKS),
    }


def _shown(limits: Limits, thing: str, defaults: Json) -> Json:
    reserved = build_key_schemas(limits)
    return {
        "type": "object",
        "properties": {key: {"type": reserved[key]["type"]} for key in defaults},
        "required": list(defaults),
        "additionalProperties": True,
        "description": f"The {thing}'s metadata, with defaults for unset reserved keys.",
    }


def _entries(metadata: str) -> Json:
    return _list(_record("metadata", name=TEXT, href=TEXT, metadata=reference("schemas", metadata)))


def _answers() -> Json:
    components = answer_schemas(
        *(Message, Popped, Finished, Published, answers.Messages[Message], answers.MessagePage[Message]),
        *(answers.HistoryPage[Finished], answers.TopicMessagePage[Published], answers.LocatedMessage[Finished]),
        *(answers.PostedHrefs, answers.Claim[Message, Timestamp], answers.LiveClaim[Timestamp], answers.Depth),
        *(answers.RedriveResult, answers.RedriveDryRun, answers.ReplayResult, answers.ReplayDryRun, answers.Epoch),
        *(
            answers.StageResult,
            answers.CommitResult,
            answers.LastCommit,
            answers.JobStage,
            answers.JobFence,
            answers.JobCommit,
        ),
        *(Token, MadeToken, answers.Error),
        PoppedMessages=answers.Messages[Popped],
        Stats=answers.StatsDocument[DateTime],
        MessageCounts=answers.Stats[DateTime],
        Landmark=answers.Edge[DateTime],
        Settled=SettleResult,
    )
    for name in ("href", "body_start", "body_bytes"):
        del components["PoppedMessage"]["properties"][name]
    named = ["id", "href", "ttl", "age"]
    listed = {"required": named, "oneOf": [{"required": ["body"]}, {"required": ["body_start", "body_bytes"]}]}
    times = ["created", "expires"]
    together = {"sequence": [*times, "available_at", "claim_count"], "origin": ["origin_claim_count"]}
    conditions: dict[str, Json] = {
        "Message": {**listed, "dependentRequired": together},
        "FinishedMessage": {**listed, "dependentRequired": together | {"finished": ["outcome"]}},
        "PoppedMessage": {
            "required": ["id", "age", "ttl", "body", "claim_id", "claim_count"],
            "dependentRequired": together,
        },
        "TopicMessage": {"required": [*named, "body"], "dependentRequired": {"sequence": times}},
        "Error": {"required": ["title"]},
        "Settled": {"required": [*SettleResult.__struct_fields__]},
    }
    for name, condition in conditions.items():
        components[name].update(condition)
    return components | {
        "ClaimPage": page_schema("claims", "LiveClaim"),
        "FencePage": page_schema("fences", "JobFence"),
        "StagePage": page_schema("stages", "JobStage"),
        "CommitPage": page_schema("commits", "JobCommit"),
        "TokenPage": page_schema("tokens", "Token"),
        "RedriveAnswer": {"anyOf": [reference("schemas", "RedriveResult"), reference("schemas", "RedriveDryRun")]},
        "ReplayAnswer": {"anyOf": [reference("schemas", "ReplayResult"), reference("schemas", "ReplayDryRun")]},
        "Limits": _record(**dict.fromkeys([*Limits.__struct_fields__, *FIXED], COUNT)),
        "Events": TEXT
        | {
            "description": "Server-sent events: message, whose data is a TopicMessage with its topic, and gap, whose "
            "data is a Gap. The id of an event is the sequence."
        },
    }


def _service() -> Json:
    return answer_schemas(StoreReport=Report, ProbeResult=Operation, MessageVolume=Volume) | {
        "Alive": _record(status={"const": "ok"}),
        "HealthReport": reference("schemas", "StoreReport"),
        "Versions": _record(versions=_list({"type": "object"})),
        "Home": _record(resources={"type": "object"}),
        "Document": {"type": "object", "description": "This document."},
        "Metrics": TEXT | {"description": "Prometheus text format."},
    }


def _record(optional: str = "", /, **members: Json) -> Json:
    """Return the schema of an object with the properties ``members``.

    ``optional`` contains the names of the optional properties, separated by spaces.
    """
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name not in optional.split()],
    }


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}
