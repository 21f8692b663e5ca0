# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations of queues and topics: metadata, listings, stats, purge; messages and streams of topics."""

from typing import Final, NamedTuple

from zq.http.openapi.operations import (
    DETAILED,
    KEY,
    QUEUE,
    RESUME,
    SEQUENCES,
    TEXT,
    TOPIC,
    Json,
    answer,
    body,
    flag,
    integer,
    operation,
    query,
    several,
    wait,
)
from zq.http.resources import PATCH_TYPE
from zq.http.streams import MEDIA
from zq.limits import DEFAULT_PAGE, MAX_IDS, Limits
from zq.model.topics import EVERYTHING, PATTERN


class Kind(NamedTuple):
    """The differences between queues and topics: word, path, schemas."""

    word: str
    path: str
    page: str
    shown: str


# The path that needs no client id.
DEPTH: Final = f"{QUEUE}/depth"
# The kind for queues.
QUEUES = Kind("queue", QUEUE, "QueuePage", "ShownMetadata")
# The kind for topics.
TOPICS = Kind("topic", TOPIC, "TopicPage", "ShownTopicMetadata")


def queues(limits: Limits) -> Json:
    """Return the operations of queues by path and method."""
    made = _named(limits, QUEUES)
    count = flag("with_count", "Add how many queues the project has.")
    made["/v2/queues"]["get"]["parameters"].insert(-1, count)
    depth = answer("Counted up to the option max_counted, at most a second ago; zeros of a missing queue.", "Depth")
    made[DEPTH] = {"get": operation("get_queue_depth", "A queue's messages by state, for autoscalers", {200: depth})}
    return made


def topics(limits: Limits) -> Json:
    """Return the operations of topics by path and method."""
    return _named(limits, TOPICS)


def _listing(limits: Limits, word: str) -> list[Json]:
    return [
        query("marker", TEXT, "List names after this one."),
        query("limit", integer(1, limits.max_queues_per_page, default=DEFAULT_PAGE), f"{word.title()}s in the page."),
        flag("detailed", f"Add each {word}'s metadata."),
        query("name", TEXT, "List names that contain this."),
        query(
            "filters",
            {"type": "object", "additionalProperties": TEXT},
            f"Any other parameter: list {word}s whose stored metadata have this value under this key.",
            style="form",
            explode=True,
        ),
    ]


def _named(limits: Limits, kind: Kind) -> Json:
    word = kind.word
    return {
        f"/v2/{word}s": {
            "get": operation(
                f"list_{word}s",
                f"List {word}s",
                {200: answer("A page.", kind.page)},
                parameters=_listing(limits, word),
            )
        },
        kind.path: _one(kind),
        f"{kind.path}/stats": {
            "get": operation(
                f"get_{word}_stats",
                f"Count a {word}'s messages",
                {200: answer("Figures; without oldest and newest if there are no messages.", "Stats")},
                parameters=[flag("detailed", "Add sequences of the oldest and the newest message, and entered.")],
            )
        },
        f"{kind.path}/purge": {
            "post": operation(
                f"purge_{word}", "Remove messages", {204: answer("Removed.")}, body=body("Purge", required=False)
            )
        },
    }


def _one(kind: Kind) -> Json:
    word, metadata = kind.word, answer("The metadata.", kind.shown)
    made = {201: answer("Created.", "", "Location"), 204: answer("It exists; nothing was changed.", "", "Location")}
    patch = body("Patch", required=True, media_type=PATCH_TYPE)
    return {
        "get": operation(f"get_{word}", f"Metadata of a {word}, existing or not", {200: metadata}),
        "put": operation(f"create_{word}", f"Create a {word}", made, body=body("Metadata", required=False)),
        "patch": operation(f"update_{word}", "Change metadata", {200: metadata}, body=patch, errors=[404, 409, 415]),
        "delete": operation(f"delete_{word}", f"Delete a {word} and all in it", {204: answer("It is not there now.")}),
    }


def publishing(limits: Limits) -> Json:
    """Return the operations of messages in topics by path and method."""
    return {
        f"{TOPIC}/messages": {
            "get": operation(
                "list_topic_messages",
                "List a topic's messages, or get some by their ids",
                {200: answer("A page; no links if ids were given.", "TopicMessagePage", "Retry-After")},
                parameters=_published(limits),
                errors=[404],
            ),
            "post": operation(
                "publish_messages",
                "Publish messages",
                {201: answer("Published.", "PostedHrefs", "Location", "Idempotency-Replayed")},
                parameters=[KEY],
                body=body("Post", required=True),
                errors=[422],
            ),
        },
        TOPIC + "/messages/{message}": {
            "get": operation(
                "get_topic_message",
                "Get a published message",
                {200: answer("It.", "TopicMessage")},
                parameters=[DETAILED],
                errors=[404],
            )
        },
    }


def streams() -> Json:
    """Return the operations of streams by path and method."""
    glob = {"pattern": rf"^(?!.*\*\*\*){PATTERN.pattern}$", "default": EVERYTHING}
    match = query("match", TEXT | glob, "Topics to hear of: * stands for anything between two dots, ** for anything.")
    return {
        f"{TOPIC}/stream": {"get": _stream("stream_topic", "Hear what is published in a topic", [])},
        "/v2/stream": {"get": _stream("stream_topics", "Hear what is published in the project's topics", [match])},
    }


def _stream(identity: str, summary: str, parameters: list[Json]) -> Json:
    marker = query("marker", SEQUENCES, "As Last-Event-ID, which goes before it.")
    events = answer("Events, until either side hangs up.", "Events", media_type=MEDIA)
    return operation(identity, summary, {200: events}, parameters=[*parameters, RESUME, marker])


def _published(limits: Limits) -> list[Json]:
    page = limits.max_messages_per_page
    return [
        several("ids", "Get these; then wait is refused and the rest but detailed ignored.", maxItems=MAX_IDS),
        query("marker", SEQUENCES, "List messages after this one; 400 if the log has not come so far."),
        query("limit", integer(1, page, default=DEFAULT_PAGE), "Messages in the page."),
        DETAILED,
        wait(limits),
    ]
