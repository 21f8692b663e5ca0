# SPDX-License-Identifier: Apache-2.0
"""Operations on topics' messages, and streams."""

from zq.http.openapi.operations import TEXT, TOPIC, Json, answer, body, operation
from zq.http.openapi.parameters import DETAILED, KEY, RESUME, SEQUENCES, integer, query, several, wait
from zq.http.streams import MEDIA
from zq.limits import DEFAULT_PAGE, MAX_IDS, Limits
from zq.topics import EVERYTHING, PATTERN


def publishing(limits: Limits) -> Json:
    """By path and method."""
    return {
        f"{TOPIC}/messages": {
            "get": operation(
                "list_topic_messages",
                "List a topic's messages, or get some by their ids",
                {200: answer("A page; no links if ids were given.", "TopicMessagePage", "Retry-After")},
                parameters=_listing(limits),
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
    """By path and method."""
    glob = {"pattern": rf"^(?!.*\*\*\*){PATTERN.pattern}$", "default": EVERYTHING}
    match = query("match", TEXT | glob, "Topics to hear of: * stands for anything between two dots, ** for anything.")
    return {
        f"{TOPIC}/stream": {"get": _stream("stream_topic", "Hear what is published in a topic", [])},
        "/v2/stream": {"get": _stream("stream_topics", "Hear what is published in the project's topics", [match])},
    }


def _stream(identity: str, summary: str, parameters: list[Json]) -> Json:
    place = query("marker", SEQUENCES, "As Last-Event-ID, which goes before it.")
    heard = answer("Events, until either side hangs up.", "Events", media_type=MEDIA)
    return operation(identity, summary, {200: heard}, parameters=[*parameters, RESUME, place])


def _listing(limits: Limits) -> list[Json]:
    page = limits.max_messages_per_page
    return [
        several("ids", "Get these; then wait is refused and the rest but detailed ignored.", maxItems=MAX_IDS),
        query("marker", SEQUENCES, "List messages after this one; 400 if the log has not come so far."),
        query("limit", integer(1, page, default=DEFAULT_PAGE), "Messages in the page."),
        DETAILED,
        wait(limits),
    ]
