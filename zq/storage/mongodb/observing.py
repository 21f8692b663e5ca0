# SPDX-License-Identifier: Apache-2.0
"""Read-only queries: list messages by filter or state, find a message by id, and list live claims."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.model import (
    BrowsePage,
    ClaimSummary,
    HistoryEntry,
    ListFilter,
    LocatedMessage,
    Page,
    Position,
    QueueRef,
    State,
    take_portion,
)
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.floors import counters_of, floor_of, search
from zq.storage.mongodb.layout import CLAIM_ORDER, BsonDocument, QueueKey
from zq.storage.mongodb.open_posts import UNLIMITED, Found, OpenPosts, PageLimits
from zq.storage.mongodb.unions import FLOORS

# Maximum number of messages that are read for one page of claims. The index has the claimed messages of all projects.
STEPS: Final = 5000


def filter_conditions(list_filter: ListFilter, now: int) -> BsonDocument:
    """Convert the filter of a list request to MongoDB conditions."""
    conditions: BsonDocument = {}
    # A claimed message never becomes available before its claim expires, so the condition on ``d`` also excludes
    # claimed messages.
    if not list_filter.delayed:
        due = {"d": {"$lte": now}}
        conditions = {"$or": [due, {"c.e": {"$gt": now}}]} if list_filter.claimed else due
    elif not list_filter.claimed:
        conditions["c.e"] = {"$not": {"$gt": now}}
    if list_filter.without:
        conditions["u"] = {"$ne": layout.encode_text(list_filter.without)}
    return conditions


def browse(
    client: StoreClient,
    open_posts: OpenPosts,
    key: QueueKey,
    state: State,
    after: Position,
    limit: int,
    now: int,
    max_bytes: int,
) -> BrowsePage:
    """Return a page of messages in one state, as ``MessageController.browse`` does.

    For ready messages, the function waits until concurrent posts are committed or aborted. Afterwards, no post can add
    a message within the page. For other states, it does not wait, because a claim or a delay may make a message appear
    anywhere in the listing.
    """
    after = Position(*(min(number, layout.LARGEST_MARKER) for number in after))
    find = partial(_find_in_state, client, key, state, after, limit, now, max_bytes)
    if state is State.READY:
        found, _ = open_posts.read_page(key, find, is_by_sequence=False)
    else:
        found, _ = find(UNLIMITED)
    items = [layout.to_message(key, document, now) for document in take_portion(found, max_bytes, layout.size_of)]
    if not items:
        return BrowsePage([], None)
    last = found[len(items) - 1]
    return BrowsePage(items, Position(0 if state is State.CLAIMED else int(last["d"]), int(last["k"])))


def _find_in_state(
    client: StoreClient,
    key: QueueKey,
    state: State,
    after: Position,
    limit: int,
    now: int,
    max_bytes: int,
    limits: PageLimits,
) -> Found:
    """Return the message documents of a page, and the queue's document.

    The page ends before the first message whose sequence is above ``limits.last``. Each page of claimed messages
    requires a sort, because no index contains them in the order of sequences.
    """
    found: list[BsonDocument] = []
    counter: BsonDocument = {}
    for conditions in _in_state(state, after, now):
        if len(found) < limit:
            some, counter = search(
                client,
                key,
                client.where(key, e={"$gt": DatetimeMS(now)}, **conditions),
                limit=limit - len(found),
                sort={"k": 1} if state is State.CLAIMED else CLAIM_ORDER,
                hint=layout.CLAIMS,
                committed=limits.committed,
                max_bytes=max_bytes,
            )
            found += some
    visible = [one for one in found if one["k"] > floor_of(counter)]
    return list(takewhile(lambda one: bool(one["k"] <= limits.last), visible)), counter


def _in_state(state: State, after: Position, now: int) -> Sequence[BsonDocument]:
    """Return filters for the messages in a state after a position."""
    if state is State.CLAIMED:
        return [{"d": {"$gt": now}, "k": {"$gt": after.sequence}, "c.e": {"$gt": now}}]
    beside = {"d": after.available, "k": {"$gt": after.sequence}}
    if state is State.READY:
        return [beside, {"d": {"$gt": after.available, "$lte": now}}] if after.available <= now else []
    free: BsonDocument = {"c.e": {"$not": {"$gt": now}}}
    behind = {"d": {"$gt": max(after.available, now)}, **free}
    return [{**beside, **free}, behind] if after.available > now else [behind]


def locate(client: StoreClient, project: str, message: str, now: int) -> LocatedMessage | None:
    """Return the live message with this id and its queue, or None if the message does not exist."""
    doc_id = layout.key(QueueRef(project, "")).project + layout.encode_text(message)
    for document in client.find({"_id": doc_id, "e": {"$gt": DatetimeMS(now)}}, hint="_id_", committed=True):
        if document["q"].startswith("m"):  # else it is a history entry
            key = layout.key(layout.queue_of(document["s"]))
            counters = client.find(counters_of(client, [key]))
            if counters and document["k"] <= floor_of(counters[0]):
                return None
            return LocatedMessage(key.ref, HistoryEntry(layout.to_message(key, document, now)))
    return None


def list_claims(client: StoreClient, project: str, after: str, limit: int, now: int, queue: str) -> Page[ClaimSummary]:
    """Return a page of claims in the order of claim id and queue, as ``ClaimController.list`` does.

    The marker of the next page is ``id/queue``, or ``id/`` if the page ends after the last queue of a claim id.
    """
    claim, _, name = after.partition("/")
    behind = layout.encode_text(claim), layout.key(QueueRef(project, name)).messages if name else END
    ids: BsonDocument = {"$gte" if name else "$gt": behind[0]}
    bounded: list[BsonDocument] = [{"$sort": {"c.i": 1}}, {"$limit": STEPS}]
    floors: dict[str, int] = {}
    while True:
        ours: BsonDocument = {"$and": [_scope(project, queue), *(_above_floor(*floor) for floor in floors.items())]}
        groups = _groups(client, ids, bounded, ours, now)
        last = max((group["last"] for group in groups), default="")
        is_cut = sum(group["n"] for group in groups) == STEPS
        if is_cut:  # the last claim may be incomplete, so all of its messages are read again
            groups += _groups(client, {"$eq": last}, [], ours, now)
        placed = {(group["_id"]["i"], group["_id"]["q"]): group for group in groups if group["_id"]}
        found = [placed[place] for place in sorted(placed) if place > behind]
        if not (removed := _removed_floors(client, found)):
            break
        floors |= removed
    if len(found) > limit:
        page = [_summary(group) for group in found[:limit]]
        return Page(page, f"{page[-1].id}/{page[-1].queue}")
    return Page([_summary(group) for group in found], f"{layout.decode_text(last)}/" if is_cut else None)


def _removed_floors(client: StoreClient, groups: Sequence[BsonDocument]) -> Mapping[str, int]:
    """Find the queues with removed messages in ``groups``, and return each queue's last removed sequence.

    Removed messages were purged, or deleted with their queue, but are still in the database. The keys of the result are
    the queues' shard keys.
    """
    first: dict[str, int] = {}
    for group in groups:
        shard = group["_id"]["q"][1:]
        first[shard] = min(first.get(shard, group["first"]), group["first"])
    if not first:
        return {}
    named = counters_of(client, [layout.key(layout.queue_of(shard)) for shard in first])
    floors = {counter["s"]: floor_of(counter) for counter in client.find(named, fields=FLOORS)}
    return {shard: floor for shard, floor in floors.items() if first[shard] <= floor}


# A text that is greater than the ``q`` of every message.
END: Final = "n"


def _scope(project: str, queue: str) -> BsonDocument:
    if queue:
        return {"$eq": ["$q", {"$literal": layout.key(QueueRef(project, queue)).messages}]}
    prefix = "m" + layout.project_prefix(project)
    low, high = {"$gt": ["$q", {"$literal": prefix}]}, {"$lt": ["$q", {"$literal": layout.after(prefix)}]}
    return {"$and": [low, high]}


def _above_floor(shard: str, floor: int) -> BsonDocument:
    return {"$or": [{"$ne": ["$q", {"$literal": "m" + shard}]}, {"$gt": ["$k", floor]}]}


def _groups(
    client: StoreClient, ids: BsonDocument, bounded: Sequence[BsonDocument], ours: BsonDocument, now: int
) -> list[BsonDocument]:
    """Group claimed messages by claim and queue, and return one document per group.

    The function reads the messages whose claim id matches ``ids``. The pipeline stages ``bounded`` limit their number.
    The document with the ``_id`` None counts the ignored messages: expired messages, messages of expired claims, and
    messages that do not match the expression ``ours``.
    """
    held = {"$and": [ours, {"$gt": ["$c.e", now]}, {"$gt": ["$e", DatetimeMS(now)]}]}
    group: BsonDocument = {
        "_id": {"$cond": [held, {"i": "$c.i", "q": "$q"}, None]},
        "n": {"$sum": 1},
        "last": {"$max": "$c.i"},
        "first": {"$min": "$k"},
        **{field: {"$max": f"$c.{field}"} for field in "seh"},
    }
    return client.aggregate([{"$match": {"c.i": ids}}, *bounded, {"$group": group}], layout.HELD)


def _summary(group: BsonDocument) -> ClaimSummary:
    queue = layout.queue_of(group["_id"]["q"][1:]).name
    claim, holder = layout.decode_text(group["_id"]["i"]), layout.holder(group)
    return ClaimSummary(claim, queue, holder, group["s"] / 1000, group["e"] / 1000, group["n"])
