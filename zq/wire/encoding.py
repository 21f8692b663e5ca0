# SPDX-License-Identifier: Apache-2.0
"""Encoding of the server's responses: model values are converted to structs of ``answers``, then to JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlencode

from msgspec import UNSET, Raw

from zq.model import (
    Claim,
    ClaimSummary,
    EndMessage,
    HistoryEntry,
    Holder,
    KnownFence,
    KnownStage,
    KnownWork,
    LocatedMessage,
    Message,
    Seconds,
    Stats,
    age,
)
from zq.model.attributes import decode_attributes
from zq.model.stats import Depth
from zq.turns import slices
from zq.wire import answers, encode
from zq.wire.attributes import format_attributes

# Maximum UTF-8 bytes of a character.
MAX_CHARACTER_BYTES: Final = 4


def claim_href(queue: str, claim: str) -> str:
    """Return the URL path of a claim."""
    return f"/v2/queues/{queue}/claims/{claim}"


def page(member: str, items: Sequence[object], path: str, query: dict[str, str] | None) -> bytes:
    """Encode a page of a listing, with a link to the next page.

    ``member`` is the name of the JSON member that has the items.
    """
    return encode({member: items, "links": next_links(path, query)})


def next_links(path: str, query: dict[str, str] | None) -> list[answers.Link]:
    """Return the link to the next page, or an empty list if ``query`` is None.

    The last parameter of ``query`` must be the one that changes from page to page, because the encoded form of all
    other parameters is cached.
    """
    if query is None:
        return []
    *given, (name, value) = query.items()
    return [answers.Link("next", f"{path}?{_encoded(tuple(given))}{name}={_quoted(value)}")]


def _quoted(value: str) -> str:
    return value if value.isascii() and value.isalnum() else quote(value, safe="")


@lru_cache(maxsize=1024)
def _encoded(given: tuple[tuple[str, str], ...]) -> str:
    return urlencode(given, quote_via=quote) + "&" if given else ""


def message_page(
    queue: str,
    messages: Sequence[Message],
    now: Seconds,
    query: dict[str, str] | None,
    detailed: bool = False,
    starts: bool = False,
) -> bytes:
    """Encode a page of messages."""
    shown = _format_messages(queue, messages, now, detailed, starts)
    return encode(answers.MessagePage(shown, next_links(f"/v2/queues/{queue}/messages", query)))


def history_page(
    queue: str,
    finished: Sequence[HistoryEntry],
    now: Seconds,
    query: dict[str, str] | None,
    detailed: bool,
    starts: bool = False,
) -> bytes:
    """Encode a page of a queue's history (extensions contract, section 5).

    If the page includes live messages, they have neither ``finished`` nor ``outcome``.
    """
    shown = [_format_entry(queue, entry, now, detailed, starts) for part in slices(finished) for entry in part]
    return encode(answers.HistoryPage(shown, next_links(f"/v2/queues/{queue}/history", query)))


def message(queue: str, message: Message, now: Seconds, detailed: bool = False, starts: bool = False) -> bytes:
    """Encode one message (contract section 7.1)."""
    return encode(_format_messages(queue, [message], now, detailed, starts)[0])


def located(found: LocatedMessage, now: Seconds, detailed: bool, starts: bool) -> bytes:
    """Encode a message found by id, with its queue and its state."""
    queue, entry = found.queue.name, found.entry
    state = entry.message.state(now).value if entry.outcome is None else "finished"
    return encode(answers.LocatedMessage(queue, state, _format_entry(queue, entry, now, detailed, starts)))


def messages(
    queue: str, messages: Sequence[Message], now: Seconds, detailed: bool = False, starts: bool = False
) -> bytes:
    """Encode a list of messages, without a link to a next page."""
    return encode(answers.Messages(_format_messages(queue, messages, now, detailed, starts)))


def popped(messages: Sequence[Message], now: Seconds, detailed: bool = False) -> bytes:
    """Encode popped messages (contract section 7.7)."""
    if detailed:
        return encode(answers.Messages([_format_popped(m, now) for part in slices(messages) for m in part]))
    shown = [
        answers.BriefPoppedMessage(m.id, m.ttl, age(m.created, now), Raw(m.body), None, m.claim_count, m.checksum)
        for part in slices(messages)
        for m in part
    ]
    return encode(answers.Messages(shown))


def _format_popped(message: Message, now: Seconds) -> answers.PoppedMessage[str]:
    common = message.id, message.ttl, age(message.created, now), "", Raw(message.body), message.checksum
    return answers.PoppedMessage(*common, claim_id=None, **_format_details(message))


def post_result(queue: str, ids: Sequence[str]) -> bytes:
    """Encode the paths of posted messages."""
    prefix = f"/v2/queues/{queue}/messages/"
    return encode(answers.PostedHrefs([prefix + id for id in ids]))


def claim(queue: str, claim: Claim, now: Seconds, detailed: bool = False, starts: bool = False) -> bytes:
    """Encode a claim with its messages. With ``detailed``, include its holder, creation and expiry."""
    return encode(
        answers.Claim(
            age(claim.created, now),
            claim.ttl,
            claim_href(queue, claim.id),
            _format_messages(queue, claim.messages, now, detailed, starts),
            **(_format_holding(claim.holder, claim.created, claim.created + claim.ttl) if detailed else {}),
        )
    )


def claims(path: str, found: Sequence[ClaimSummary], now: Seconds, query: dict[str, str] | None) -> bytes:
    """Encode a page of live claims."""
    shown: list[answers.LiveClaim[str]] = [
        answers.LiveClaim(
            id=one.id,
            queue=one.queue,
            href=claim_href(one.queue, one.id),
            age=age(one.created, now),
            ttl=round(one.ends - one.created),
            messages=one.messages,
            **_format_holding(one.holder, one.created, one.ends),
        )
        for one in found
    ]
    return page("claims", shown, path, query)


def _format_holding(holder: Holder, created: Seconds, ends: Seconds) -> dict[str, Any]:
    return {
        "client": holder.client if holder.is_known else None,
        "agent": holder.agent if holder.is_known else None,
        "created": timestamp(created),
        "ends": timestamp(ends),
    }


def depth(found: Depth, now: Seconds) -> bytes:
    """Encode the message count of each state, the backlog, and the age in seconds of the oldest ready message."""
    waits = 0.0 if found.oldest_ready is None else max(0.0, now - found.oldest_ready)
    backlog = found.ready + found.claimed
    return encode(answers.Depth(found.ready, found.claimed, found.delayed, backlog, round(waits, 3)))


def stats(path: str, stats: Stats, now: Seconds, detailed: bool) -> bytes:
    """Encode the message counts and, if there are messages, the oldest and the newest (contract section 6.7)."""
    ends: list[answers.Edge[str] | None] = [None, None]
    if stats.oldest is not None and stats.newest is not None:
        ends = [_format_edge(path, edge, now, detailed) for edge in (stats.oldest, stats.newest)]
    total, entered = stats.claimed + stats.free, stats.entered if detailed else None
    return encode(answers.StatsDocument(answers.Stats(stats.claimed, stats.free, total, entered, *ends)))


def format_work(work: KnownWork, now: Seconds) -> answers.JobStage | answers.JobFence | answers.JobCommit:
    """Convert a stage, fence or producer to its entry in a listing. Unknown times are null."""
    if isinstance(work, KnownStage):
        left = max(0, round(work.expires - now))
        href, expires = f"/v2/stages/{work.name}", timestamp(work.expires)
        return answers.JobStage(work.name, href, work.messages, work.bytes, expires, left)
    if isinstance(work, KnownFence):
        return answers.JobFence(work.name, f"/v2/fences/{work.name}", work.epoch, *_format_since(work.advanced, now))
    last, href = work.last, f"/v2/commits/{work.name}"
    since = _format_since(work.decided, now)
    return answers.JobCommit(work.name, href, last.batch, last.published, last.deleted, last.open, *since)


def _format_since(moment: Seconds | None, now: Seconds) -> tuple[str | None, int | None]:
    return (None, None) if moment is None else (timestamp(moment), age(moment, now))


@lru_cache(maxsize=4096)
def timestamp(moment: Seconds) -> str:
    """Format a time as ISO 8601 in UTC with milliseconds.

    The result is cached, because all messages of a post have the same time.
    """
    return datetime.fromtimestamp(round(moment, 3), UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _format_edge(path: str, edge: EndMessage, now: Seconds, detailed: bool) -> answers.Edge[str]:
    created = datetime.fromtimestamp(int(edge.created), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    href, sequence = f"{path}/messages/{edge.id}", edge.sequence if detailed else 0
    return answers.Edge(href, age(edge.created, now), created, sequence)


def _format_messages(
    queue: str, messages: Sequence[Message], now: Seconds, detailed: bool, starts: bool
) -> list[answers.BriefMessage]:
    prefix = f"/v2/queues/{queue}/messages/"
    if detailed or starts:
        return [_format_message(prefix, m, now, detailed, starts) for part in slices(messages) for m in part]
    return [
        answers.BriefMessage(
            m.id,
            m.ttl,
            age(m.created, now),
            f"{prefix}{m.id}?claim_id={m.claim}" if m.claim else prefix + m.id,
            Raw(m.body),
            m.checksum,
        )
        for part in slices(messages)
        for m in part
    ]


def _format_message(
    prefix: str, message: Message, now: Seconds, detailed: bool, starts: bool, **more: Any
) -> answers.FinishedMessage[str]:
    members = _format_details(message) | more if detailed else more
    if starts:
        start = message.body[: MAX_CHARACTER_BYTES * answers.START].decode("utf-8", "ignore")[: answers.START]
        members = members | {"body_start": start, "body_bytes": len(message.body)}
    return answers.FinishedMessage(
        message.id,
        message.ttl,
        age(message.created, now),
        f"{prefix}{message.id}?claim_id={message.claim}" if message.claim else prefix + message.id,
        UNSET if starts else Raw(message.body),
        message.checksum,
        **members,
    )


def _format_entry(
    queue: str, entry: HistoryEntry, now: Seconds, detailed: bool, starts: bool
) -> answers.FinishedMessage[str]:
    end = {} if entry.outcome is None else {"finished": timestamp(entry.finished), "outcome": entry.outcome}
    return _format_message(f"/v2/queues/{queue}/messages/", entry.message, now, detailed, starts, **end)


def _format_details(message: Message) -> dict[str, Any]:
    details: dict[str, Any] = {
        "sequence": message.sequence,
        "created": timestamp(message.created),
        "expires": timestamp(message.expires),
        "available_at": timestamp(message.available),
        "claim_count": message.claim_count,
        "reason": message.reason,
        "group": message.group,
    }
    if message.origin:
        details |= {"origin": message.origin, "origin_claim_count": message.origin_claim_count}
    if message.attributes:
        details |= format_attributes(decode_attributes(message.attributes))
    return details
