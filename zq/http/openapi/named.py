# SPDX-License-Identifier: Apache-2.0
"""Operations on queues and topics themselves: metadata, listings, stats, purge."""

from typing import NamedTuple

from zq.http.named import PATCH_TYPE
from zq.http.openapi.operations import QUEUE, TEXT, TOPIC, Json, answer, body, operation
from zq.http.openapi.parameters import flag, integer, query
from zq.limits import DEFAULT_PAGE, Limits


class Kind(NamedTuple):
    """What differs: the word, and the schemas."""

    word: str
    path: str
    page: str
    shown: str


QUEUES = Kind("queue", QUEUE, "QueuePage", "ShownMetadata")
TOPICS = Kind("topic", TOPIC, "TopicPage", "ShownTopicMetadata")


def queues(limits: Limits) -> Json:
    """By path and method."""
    made = _named(limits, QUEUES)
    count = flag("with_count", "Add how many queues the project has.")
    made["/v2/queues"]["get"]["parameters"].insert(-1, count)
    return made


def topics(limits: Limits) -> Json:
    """By path and method."""
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
                {200: answer("Figures; without landmarks if there are no messages.", "Stats")},
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
