# SPDX-License-Identifier: Apache-2.0
"""Answers of the server: messages, claims, history and stats (contract 6 to 8, extensions 5, 7)."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import Raw, Struct, to_builtins
from msgspec.structs import asdict

from zq.model import Claim, ClaimSummary, Edge, HistoryEntry, Holder, LocatedMessage, Message, Seconds, Stats, age
from zq.model.attributes import decode_attributes
from zq.model.stats import Depth
from zq.turns import slices
from zq.wire import encode
from zq.wire.attributes import attributes_out

# Length in characters of the shown start of a body, and maximum UTF-8 bytes of a character.
START: Final = 256
MAX_CHARACTER_BYTES: Final = 4


class MessageOut(Struct, omit_defaults=True):
    """A message as shown to clients (contract 7.1)."""

    id: str
    href: str
    ttl: int
    age: int
    body: Raw
    checksum: str = ""


class PoppedOut(Struct, omit_defaults=True):
    """A popped message as shown to clients (contract 7.7)."""

    id: str
    age: int
    ttl: int
    body: Raw
    claim_id: str | None
    claim_count: int
    checksum: str = ""


def claim_href(queue: str, claim: str) -> str:
    """Return the path of a claim."""
    return f"/v2/queues/{queue}/claims/{claim}"


def next_link(path: str, query: dict[str, str]) -> dict[str, str]:
    """Return the link to the next page. The last parameter of the query is the one that changes from page to page."""
    *given, (name, value) = query.items()
    return {"rel": "next", "href": f"{path}?{_encoded(tuple(given))}{name}={_quoted(value)}"}


def _quoted(value: str) -> str:
    return value if value.isascii() and value.isalnum() else quote(value, safe="")


@lru_cache(maxsize=1024)
def _encoded(given: tuple[tuple[str, str], ...]) -> str:
    """Return the beginning of a query, up to the last parameter."""
    return urlencode(given, quote_via=quote) + "&" if given else ""


def message_page(
    queue: str,
    messages: Sequence[Message],
    now: Seconds,
    query: dict[str, str] | None,
    detailed: bool = False,
    starts: bool = False,
) -> bytes:
    """Encode a page of messages.

    Args:
        query: Parameters of the link to the next page; ``None`` = no link.
        starts: Whether only the start of each body is shown, as in the functions below.
    """
    return _page(f"/v2/queues/{queue}/messages", _outs(queue, messages, now, detailed, starts), query)


def history_page(
    queue: str,
    finished: Sequence[HistoryEntry],
    now: Seconds,
    query: dict[str, str] | None,
    detailed: bool,
    starts: bool = False,
) -> bytes:
    """Encode a page of history. Live messages have neither ``finished`` nor ``outcome`` (extensions 5)."""
    outs = _outs(queue, [record.message for record in finished], now, detailed, starts)
    pairs = list(zip(outs, finished, strict=True))
    shown = [_finished(out, record) for part in slices(pairs) for out, record in part]
    return _page(f"/v2/queues/{queue}/history", shown, query)


def message(queue: str, message: Message, now: Seconds, detailed: bool = False, starts: bool = False) -> bytes:
    """Encode one message (contract 7.1)."""
    return encode(_outs(queue, [message], now, detailed, starts)[0])


def located(found: LocatedMessage, now: Seconds, detailed: bool, starts: bool) -> bytes:
    """Encode a message found by id: its queue, its state or "finished", and the message."""
    [out] = _outs(found.queue.name, [found.entry.message], now, detailed, starts)
    state = found.entry.message.state(now).value if found.entry.outcome is None else "finished"
    return encode({"queue": found.queue.name, "state": state, "message": _finished(out, found.entry)})


def messages(
    queue: str, messages: Sequence[Message], now: Seconds, detailed: bool = False, starts: bool = False
) -> bytes:
    """Encode messages without links, as read by ids or claimed."""
    return encode({"messages": _outs(queue, messages, now, detailed, starts)})


def popped(messages: Sequence[Message], now: Seconds, detailed: bool = False) -> bytes:
    """Encode popped messages (contract 7.7)."""
    outs = [
        PoppedOut(m.id, age(m.created, now), m.ttl, Raw(m.body), None, m.claim_count, m.checksum)
        for part in slices(messages)
        for m in part
    ]
    return encode({"messages": _with_details(outs, messages) if detailed else outs})


def post_result(queue: str, ids: Sequence[str]) -> bytes:
    """Encode the paths of posted messages."""
    prefix = f"/v2/queues/{queue}/messages/"
    return encode({"resources": [prefix + message for part in slices(ids) for message in part]})


def claim(queue: str, claim: Claim, now: Seconds, detailed: bool = False, starts: bool = False) -> bytes:
    """Encode a claim with its messages (contract 8.2); with ``detailed`` also its holder, start and end."""
    shown = {
        "age": age(claim.created, now),
        "ttl": claim.ttl,
        "href": claim_href(queue, claim.id),
        "messages": _outs(queue, claim.messages, now, detailed, starts),
    }
    return encode(shown | (_holding(claim.holder, claim.created, claim.created + claim.ttl) if detailed else {}))


def claims(path: str, found: Sequence[ClaimSummary], now: Seconds, query: dict[str, str] | None) -> bytes:
    """Encode a page of live claims.

    Args:
        query: Parameters of the link to the next page; ``None`` = no link.
    """
    shown = [
        {
            "id": one.id,
            "queue": one.queue,
            "href": claim_href(one.queue, one.id),
            "age": age(one.created, now),
            "ttl": round(one.ends - one.created),
            "messages": one.messages,
        }
        | _holding(one.holder, one.created, one.ends)
        for one in found
    ]
    return encode({"claims": shown, "links": [] if query is None else [next_link(path, query)]})


def _holding(holder: Holder, created: Seconds, ends: Seconds) -> dict[str, str | None]:
    """Return holder, start and end of a claim. An unknown holder is null."""
    return {
        "client": holder.client if holder.is_known else None,
        "agent": holder.agent if holder.is_known else None,
        "created": timestamp(created),
        "ends": timestamp(ends),
    }


def depth(found: Depth, now: Seconds) -> bytes:
    """Encode message counts by state, the backlog, and the age in seconds of the oldest ready message."""
    waits = 0.0 if found.oldest_ready is None else max(0.0, now - found.oldest_ready)
    return encode(
        {
            "ready": found.ready,
            "claimed": found.claimed,
            "delayed": found.delayed,
            "backlog": found.ready + found.claimed,
            "oldest_ready_seconds": round(waits, 3),
        }
    )


def stats(path: str, stats: Stats, now: Seconds, detailed: bool) -> bytes:
    """Encode the counts and, unless the queue or topic at ``path`` is empty, the oldest and newest message.

    See contract 6.7.
    """
    counts: dict[str, Any] = {"claimed": stats.claimed, "free": stats.free, "total": stats.claimed + stats.free}
    if detailed and stats.entered is not None:
        counts["entered"] = stats.entered
    if stats.oldest is not None and stats.newest is not None:
        counts["oldest"] = _edge(path, stats.oldest, now, detailed)
        counts["newest"] = _edge(path, stats.newest, now, detailed)
    return encode({"messages": counts})


@lru_cache(maxsize=4096)
def timestamp(moment: Seconds) -> str:
    """Format a time as ISO 8601 in UTC with milliseconds.

    Cached, because the messages of a post have equal times and formatting dominates the cost of encoding a message.
    """
    return datetime.fromtimestamp(round(moment, 3), UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _edge(path: str, edge: Edge, now: Seconds, detailed: bool) -> dict[str, Any]:
    created = datetime.fromtimestamp(int(edge.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    shown = {"href": f"{path}/messages/{edge.id}", "age": age(edge.created, now), "created": created}
    return shown | {"sequence": edge.sequence} if detailed else shown


def _page(path: str, shown: Sequence[object], query: dict[str, str] | None) -> bytes:
    return encode({"messages": shown, "links": [] if query is None else [next_link(path, query)]})


def _outs(queue: str, messages: Sequence[Message], now: Seconds, detailed: bool, starts: bool = False) -> list[Any]:
    prefix = f"/v2/queues/{queue}/messages/"
    outs: list[Any] = [
        MessageOut(
            m.id,
            f"{prefix}{m.id}?claim_id={m.claim}" if m.claim else prefix + m.id,
            m.ttl,
            age(m.created, now),
            Raw(m.body),
            m.checksum,
        )
        for part in slices(messages)
        for m in part
    ]
    if starts:
        outs = [_with_start(out, m.body) for part in slices(list(zip(outs, messages, strict=True))) for out, m in part]
    return _with_details(outs, messages) if detailed else outs


def _with_start(out: MessageOut, body: bytes) -> dict[str, Any]:
    """Replace the body by its first characters and its size in bytes."""
    members = _members(out)
    del members["body"]
    start = body[: MAX_CHARACTER_BYTES * START].decode("utf-8", "ignore")[:START]
    return members | {"body_start": start, "body_bytes": len(body)}


def _finished(out: Any, record: HistoryEntry) -> Any:
    if record.outcome is None:
        return out
    return _members(out) | {"finished": timestamp(record.finished), "outcome": record.outcome}


def _with_details(outs: Iterable[Any], messages: Sequence[Message]) -> list[dict[str, Any]]:
    pairs = list(zip(outs, messages, strict=True))
    return [_members(out) | _details(message) for part in slices(pairs) for out, message in part]


def _members(out: Any) -> dict[str, Any]:
    """Return the message as a mapping to which members can be added."""
    members: dict[str, Any] = out if isinstance(out, dict) else asdict(out)
    return {name: value for name, value in members.items() if name != "checksum" or value}


def _details(message: Message) -> dict[str, Any]:
    """Return the members that ``detailed`` adds (extensions 7)."""
    details: dict[str, Any] = {
        "sequence": message.sequence,
        "created": timestamp(message.created),
        "expires": timestamp(message.expires),
        "available_at": timestamp(message.available),
        "claim_count": message.claim_count,
    }
    if message.origin:
        details["origin"] = message.origin
        details["origin_claim_count"] = message.origin_claim_count
    if message.reason:
        details["reason"] = message.reason
    if message.attributes:
        details |= to_builtins(attributes_out(decode_attributes(message.attributes)))
    if message.group:
        details["group"] = message.group
    return details
