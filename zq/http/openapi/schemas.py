# SPDX-License-Identifier: Apache-2.0
"""OpenAPI schemas of bodies, derived from the structs that decode and encode them."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from zq import wire
from zq.core.extensions import ProtocolKey
from zq.core.metadata import metadata_schema, shown_defaults, topic_defaults
from zq.http.openapi.operations import FREE_NAMES, QUEUE_NAMES, TEXT, Json, delays, integer, reference
from zq.http.service import FIXED
from zq.limits import (
    MAX_ATTRIBUTE_NAME,
    MAX_BATCH,
    MAX_COMMITTED,
    MAX_GROUP,
    MAX_NAMED,
    MAX_REASON,
    MIN_TTL,
    Limits,
)
from zq.model import Outcome, SettleResult, State
from zq.wire import answers, extensions
from zq.wire.attributes import AttributesOut
from zq.wire.numbers import MAX_BODY_NUMBER
from zq.wire.tokens import TokenTerms

# Structs that decode request bodies, by component name.
REQUESTS: Final[dict[str, type[Struct]]] = {
    "Post": wire.Post,
    "ClaimTerms": wire.ClaimTerms,
    "Purge": wire.Purge,
    "PatchOperation": wire.Operation,
    "SettleTerms": extensions.SettleTerms,
    "RedriveTerms": extensions.RedriveTerms,
    "ReplayTerms": extensions.ReplayTerms,
    "CommitTerms": extensions.CommitTerms,
    "TokenTerms": TokenTerms,
}
# The schema of a count.
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
# The schema of a time in the format of the extensions.
MOMENT: Final[Json] = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", "format": "date-time"}
# The schema of links.
LINKS: Final = {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")}


def schemas(limits: Limits, protocol_keys: Sequence[ProtocolKey]) -> Json:
    """Return all schemas of the core by name. ``protocol_keys`` are the metadata keys of features."""
    figures = _figures() | _work() | _service()
    return _requests(limits) | _metadata(limits, protocol_keys) | _messages() | _published() | _tokens() | figures


def _requests(limits: Limits) -> Json:
    """Return the schemas of request bodies, derived from structs, with the limits that the use cases check."""
    _, found = msgspec.json.schema_components(REQUESTS.values(), ref_template="#/components/schemas/{name}")
    names = {kind.__name__: name for name, kind in REQUESTS.items()}
    components = {names.get(name, name): schema for name, schema in found.items()}
    for schema in components.values():
        del schema["title"]
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
    """Return the limits that are checked after decoding, by component and member."""
    ttl, delay = integer(MIN_TTL, limits.max_message_ttl), delays(limits)
    names = {"propertyNames": {"minLength": 1, "maxLength": MAX_ATTRIBUTE_NAME}}
    batch, held = integer(1, MAX_BATCH), {"maxItems": limits.max_messages_per_claim_or_pop}
    return {
        "Post": {"messages": {"minItems": 1}},
        "Posted": {"ttl": ttl, "delay": delay, "group": {"minLength": 1, "maxLength": MAX_GROUP}, "attributes": names},
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
        "Released": {"delay": delay},
        "Moved": {"queue": QUEUE_NAMES, "ttl": ttl, "delay": delay},
        "Buried": {"reason": {"minLength": 1, "maxLength": MAX_REASON}},
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
    """Return the valid combinations of members, by component."""

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
    return {
        "Metadata": metadata_schema(limits, protocol_keys) | {"description": "Any keys; reserved keys are listed."},
        "Patch": {"type": "array", "items": reference("schemas", "PatchOperation")},
        "ShownMetadata": _shown(limits, "queue", shown_defaults(limits)),
        "ShownTopicMetadata": _shown(limits, "topic", topic_defaults(limits)),
        "QueuePage": _record("count", queues=_entries("ShownMetadata"), links=LINKS, count=COUNT),
        "TopicPage": _record(topics=_entries("ShownTopicMetadata"), links=LINKS),
    }


def _shown(limits: Limits, thing: str, defaults: Json) -> Json:
    reserved = metadata_schema(limits)["properties"]
    return {
        "type": "object",
        "properties": {key: {"type": reserved[key]["type"]} if key in reserved else {} for key in defaults},
        "required": list(defaults),
        "additionalProperties": True,
        "description": f"The {thing}'s metadata, with defaults for unset reserved keys.",
    }


def _entries(metadata: str) -> Json:
    return _list(_record("metadata", name=TEXT, href=TEXT, metadata=reference("schemas", metadata)))


def _messages() -> Json:
    message, popped = _struct(answers.MessageOut), _struct(answers.PoppedOut)
    more = {
        **dict.fromkeys(("sequence", "claim_count", "origin_claim_count"), COUNT),
        **dict.fromkeys(("created", "expires", "available_at"), MOMENT),
        **dict.fromkeys(("origin", "reason"), TEXT),
        "group": TEXT,
        **_struct(AttributesOut)["properties"],
    }
    together = {
        "sequence": ["created", "expires", "available_at", "claim_count"],
        "origin": ["origin_claim_count"],
        "finished": ["outcome"],
    }
    end = {"finished": MOMENT, "outcome": {"enum": [outcome.value for outcome in Outcome]}}
    start = {"body_start": TEXT | {"maxLength": answers.START}, "body_bytes": COUNT}
    message["required"] = [name for name in message["required"] if name != "body"]
    message["oneOf"] = [{"required": ["body"]}, {"required": list(start)}]
    details = more | start
    unknown: Json = {"anyOf": [TEXT, {"type": "null"}]}
    holding: Json = {"client": unknown, "agent": unknown, "created": MOMENT, "ends": MOMENT}
    return {
        "Message": _also(message, details, together),
        "PoppedMessage": _also(popped, more, together),
        "FinishedMessage": _also(message, details | end, together),
        "MessagePage": _record("links", messages=_list(reference("schemas", "Message")), links=LINKS),
        "HistoryPage": _record(messages=_list(reference("schemas", "FinishedMessage")), links=LINKS),
        "Located": _record(
            queue=TEXT,
            state={"enum": [*(state.value for state in State), "finished"]},
            message=reference("schemas", "FinishedMessage"),
        ),
        "Messages": _record(messages=_list(reference("schemas", "Message"))),
        "PoppedMessages": _record(messages=_list(reference("schemas", "PoppedMessage"))),
        "Claim": _record(
            " ".join(holding),
            age=COUNT,
            ttl=COUNT,
            href=TEXT,
            messages=_list(reference("schemas", "Message")),
            **holding,
        ),
        "ClaimPage": _record(
            claims=_list(
                _record(id=TEXT, queue=TEXT, href=TEXT, **dict.fromkeys(("age", "ttl", "messages"), COUNT), **holding)
            ),
            links=LINKS,
        ),
        "PostedHrefs": _record(resources=_list(TEXT)),
    }


def _published() -> Json:
    details = {"sequence": COUNT, "created": MOMENT, "expires": MOMENT}
    gap = _record(after=COUNT, resumes=COUNT)
    return {
        "TopicMessage": _also(_struct(answers.MessageOut), details, {"sequence": ["created", "expires"]}),
        "TopicMessagePage": _record(
            "links gap position",
            messages=_list(reference("schemas", "TopicMessage")),
            links=LINKS,
            gap=reference("schemas", "Gap"),
            position=COUNT,
        ),
        "Gap": gap | {"description": "The messages between these two sequences were trimmed from the log."},
        "Events": TEXT
        | {
            "description": "Server-sent events: message, whose data is a TopicMessage with its topic, and gap, whose "
            "data is a Gap. The id of an event is the sequence."
        },
    }


def _tokens() -> Json:
    shown = dict.fromkeys(("id", "project", "user", "name", "by"), TEXT)
    shown |= {"roles": _list(TEXT), "scopes": {"anyOf": [_list(TEXT), {"type": "null"}]}}
    shown |= {"created": MOMENT, "expires": MOMENT, "last_used": {"anyOf": [MOMENT, {"type": "null"}]}}
    return {
        "Token": _record(**shown),
        "MadeToken": _record(token=TEXT, **shown),
        "TokenPage": _record(tokens=_list(reference("schemas", "Token")), links=LINKS),
    }


def _figures() -> Json:
    landmark = reference("schemas", "Landmark")
    counts = dict.fromkeys(("claimed", "free", "total", "entered"), COUNT)
    stats = _record("entered oldest newest", **counts, oldest=landmark, newest=landmark)
    epoch = {"type": "integer", "minimum": 1}
    ids = {"type": "array", "items": TEXT}
    counted, by_queue = integer(0, MAX_BATCH), {"type": "object", "additionalProperties": COUNT}
    named: list[str] = [*_struct(Limits)["properties"], *FIXED]
    return {
        "Landmark": _record("sequence", href=TEXT, age=COUNT, created=TEXT | {"format": "date-time"}, sequence=COUNT),
        "Stats": _record(messages=stats),
        "Depth": _record(
            **dict.fromkeys(("ready", "claimed", "delayed", "backlog"), COUNT),
            oldest_ready_seconds={"type": "number", "minimum": 0},
        ),
        "Settled": _struct(SettleResult),
        "Redriven": _record("lost", moved=COUNT, remaining=counted, lost=ids),
        "RedriveDryRun": _record(
            "lost",
            **dict.fromkeys(("would_move", "without_origin", "counted"), counted),
            origins=by_queue,
            missing_origin=by_queue,
            lost=ids,
        ),
        "RedriveAnswer": {"anyOf": [reference("schemas", "Redriven"), reference("schemas", "RedriveDryRun")]},
        "Replayed": _record(replayed=COUNT),
        "ReplayDryRun": _record("lost", would_replay=counted, counted=counted, lost=ids),
        "ReplayAnswer": {"anyOf": [reference("schemas", "Replayed"), reference("schemas", "ReplayDryRun")]},
        "Epoch": _record(epoch=epoch),
        "Staged": _record(staged=COUNT),
        "Committed": _record(published=COUNT, deleted=COUNT, replayed={"type": "boolean"}),
        "LastCommit": _record(batch=COUNT, published=COUNT, deleted=COUNT),
        "Limits": _record(**dict.fromkeys(named, COUNT)),
    }


def _work() -> Json:
    """Return the schemas of fences, stages and producers. Times not recorded by earlier versions are null."""

    def since(moment: str) -> Json:
        return {moment: {"anyOf": [MOMENT, {"type": "null"}]}, "age": {"type": ["integer", "null"], "minimum": 0}}

    counts = dict.fromkeys(("batch", "published", "deleted"), COUNT)
    producer = {"producer": TEXT, "href": TEXT, **counts, "open": {"type": "boolean"}, **since("decided")}
    named = {"name": TEXT, "href": TEXT}
    stage = {**named, "messages": COUNT, "bytes": COUNT, "expires": MOMENT, "dropped_in": COUNT}
    return {
        "FencePage": _record(fences=_list(_record(**named, epoch=COUNT, **since("advanced"))), links=LINKS),
        "StagePage": _record(stages=_list(_record(**stage)), links=LINKS),
        "CommitPage": _record(commits=_list(_record(**producer)), links=LINKS),
    }


def store_report() -> Json:
    """Return the schema of the health report of one store."""
    done = _record(
        succeeded={"type": "boolean"},
        seconds={"type": "number", "minimum": 0},
        ref={"type": ["string", "null"], "format": "uuid"},
    )
    return _record(
        storage_reachable={"type": "boolean"},
        operation_status={"type": "object", "additionalProperties": done},
        message_volume=_record(free=COUNT, claimed=COUNT, total=COUNT),
    )


def _service() -> Json:
    return {
        "Error": _record("description limit", title=TEXT, description=TEXT, limit=TEXT),
        "Link": _record(rel={"const": "next"}, href=TEXT),
        "Alive": _record(status={"const": "ok"}),
        "HealthReport": store_report(),
        "Versions": _record(versions=_list({"type": "object"})),
        "Home": _record(resources={"type": "object"}),
        "Document": {"type": "object", "description": "This document."},
        "Metrics": TEXT | {"description": "Prometheus text format."},
    }


def _record(optional: str = "", /, **members: Json) -> Json:
    """Return the schema of an object; ``optional`` names the members that may be absent."""
    return {
        "type": "object",
        "properties": members,
        "required": [name for name in members if name not in optional.split()],
    }


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _struct(kind: type[Struct]) -> Json:
    """Return the schema of an encoded struct. All members are required unless the struct omits defaults."""
    _, components = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    schema = components[kind.__name__]
    if not kind.__struct_config__.omit_defaults:
        schema["required"] = list(schema["properties"])
    return {name: schema[name] for name in ("type", "properties", "required")}


def _also(schema: Json, members: Json, together: dict[str, list[str]]) -> Json:
    """Return the schema with more optional members; ``together`` names members that occur only together."""
    properties = schema["properties"] | members
    depends = {name: others for name, others in together.items() if name in members}
    return schema | {"properties": properties, "dependentRequired": depends}
