# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations of queues and topics (metadata, listings, stats, purge), and of messages and streams in topics."""

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
from zq.model.limits import DEFAULT_PAGE, MAX_IDS, Limits
from zq.model.topics import EVERYTHING, PATTERN


class Kind(NamedTuple):
    """The values that differ between the OpenAPI operations of queues and of topics: name, path and schema names."""

    word: str
    path: str
    page: str
    shown: str


# The path of a queue's message counts. It requires no client id.
DEPTH: Final = f"{QUEUE}/depth"
# The kind for queues.
QUEUES = Kind("queue", QUEUE, "QueuePage", "ShownMetadata")
# The kind for topics.
TOPICS = Kind("topic", TOPIC, "TopicPage", "ShownTopicMetadata")


def queues(limits: Limits) -> Json:
    """Return the OpenAPI operations of queues, by path and method."""
    made = _named(limits, QUEUES)
    count = flag("with_count", "Add the number of queues in the project.")
    made["/v2/queues"]["get"]["parameters"].insert(-1, count)
    depth = answer("Counts up to the option max_counted, at most one second old; zeros for a missing queue.", "Depth")
    made[DEPTH] = {
        "get": operation("get_queue_depth", "Count a queue's messages by state, for autoscalers", {200: depth})
    }
    return made


def topics(limits: Limits) -> Json:
    """Return the OpenAPI operations of topics, by path and method."""
    return _named(limits, TOPICS)


def _listing(limits: Limits, word: str) -> list[Json]:
    return [
        query("marker", TEXT, "List names after this one."),
        query("limit", integer(1, limits.max_queues_per_page, default=DEFAULT_PAGE), f"Maximum number of {word}s."),
        flag("detailed", f"Add the metadata of each {word}."),
        query("name", TEXT, "List only names that contain this text."),
        query(
            "filters",
            {"type": "object", "additionalProperties": TEXT},
            f"Any other parameter: list only {word}s whose stored metadata has this value for this key.",
            style="form",
            explode=True,
        ),
    ]


def _named(limits: Limits, kind: Kind) -> Json:
    word = kind.word
    return {
        f"/v2/{word}s": {
            "get": operation(f"list_{word}s", f"List {word}s", {200: kind.page}, parameters=_listing(limits, word))
        },
        kind.path: _one(kind),
        f"{kind.path}/stats": {
            "get": operation(
                f"get_{word}_stats",
                f"Count a {word}'s messages",
                {200: answer("The counts; without oldest and newest if there are no messages.", "Stats")},
                parameters=[
                    flag(
                        "detailed",
                        "Add the sequences of the oldest and newest message, and the number of posted messages.",
                    )
                ],
            )
        },
        f"{kind.path}/purge": {
            "post": operation(
                f"purge_{word}",
                "Delete messages or subscriptions",
                {204: ""},
                body=body("Purge", required=False),
            )
        },
    }


def _one(kind: Kind) -> Json:
    word, metadata = kind.word, answer("The metadata.", kind.shown)
    made = {
        201: answer("Created.", "", "Location"),
        204: answer("The resource already exists and was not changed.", "", "Location"),
    }
    patch = body("Patch", required=True, media_type=PATCH_TYPE)
    return {
        "get": operation(f"get_{word}", f"Get the metadata of a {word}, or the defaults", {200: metadata}),
        "put": operation(f"create_{word}", f"Create a {word}", made, body=body("Metadata", required=False)),
        "patch": operation(f"update_{word}", "Change metadata", {200: metadata}, body=patch, errors=[404, 409, 415]),
        "delete": operation(f"delete_{word}", f"Delete a {word} with its messages", {204: ""}),
    }


def publishing(limits: Limits) -> Json:
    """Return the OpenAPI operations of messages in topics, by path and method."""
    return {
        f"{TOPIC}/messages": {
            "get": operation(
                "list_topic_messages",
                "List a topic's messages, or get messages by id",
                {200: answer("A page of messages; without links for ids.", "TopicMessagePage", "Retry-After")},
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
                {200: "TopicMessage"},
                parameters=[DETAILED],
                errors=[404],
            )
        },
    }


def streams() -> Json:
    """Return the OpenAPI operations of streams, by path and method."""
    glob = {"pattern": rf"^(?!.*\*\*\*){PATTERN.pattern}$", "default": EVERYTHING}
    match = query("match", TEXT | glob, "Topic pattern: * matches any text between two dots, ** any text.")
    return {
        f"{TOPIC}/stream": {"get": _stream("stream_topic", "Stream the messages of a topic", [])},
        "/v2/stream": {"get": _stream("stream_topics", "Stream the messages of the project's topics", [match])},
    }


def _stream(identity: str, summary: str, parameters: list[Json]) -> Json:
    marker = query("marker", SEQUENCES, "Alternative to Last-Event-ID, which takes precedence.")
    events = answer("Events until either side disconnects.", "Events", media_type=MEDIA)
    return operation(identity, summary, {200: events}, parameters=[*parameters, RESUME, marker])


def _published(limits: Limits) -> list[Json]:
    page = limits.max_messages_per_page
    return [
        several(
            "ids",
            "Ids of messages. Cannot be combined with wait. Other parameters except detailed are ignored.",
            maxItems=MAX_IDS,
        ),
        query("marker", SEQUENCES, "List messages after this sequence; 400 if it is beyond the end of the log."),
        query("limit", integer(1, page, default=DEFAULT_PAGE), "Maximum number of messages."),
        DETAILED,
        wait(limits),
    ]
