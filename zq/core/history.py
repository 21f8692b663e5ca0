# SPDX-License-Identifier: Apache-2.0
"""Operations on the message history: list finished messages, and replay them (extensions contract, section 5)."""

from collections.abc import Iterator, Sequence
from operator import attrgetter

from msgspec import UNSET, UnsetType

from zq import turns
from zq.clock import Clock
from zq.core.encryption import Sealing, is_sealed
from zq.core.modes import Modes
from zq.core.paging import read_page
from zq.core.quotas import AnyQuotas
from zq.core.rules import RulesCache
from zq.core.values import ReadResult
from zq.errors import Invalid, InvalidParameter, MessageNotFound
from zq.events import Events
from zq.model import Draft, HistoryEntry, Page, QueueRef, Seconds, Span, new_ids
from zq.model.limits import (
    DEFAULT_BATCH,
    DEFAULT_PAGE,
    MAX_BATCH,
    MAX_IDS,
    Limits,
    check_count,
    check_range,
    check_unique,
)
from zq.storage.api import Storage
from zq.wire.answers import ReplayDryRun
from zq.wire.extensions import ReplayTerms, parse_time

# Maximum number of messages that a replay posts at a time.
CHUNK = 100
# Maximum bytes of bodies and attributes that a replay posts at a time. A single message may exceed it.
CHUNK_BYTES = 4_000_000
# The start of the year 10000: later than every ISO 8601 time.
MAX_TIME: Seconds = 253_402_300_800.0


class History:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        rules_cache: RulesCache,
        events: Events,
        sealing: Sealing,
        quotas: AnyQuotas,
        modes: Modes,
    ) -> None:
        self._modes = modes
        self._sealing = sealing
        self._history = storage.history
        self._messages = storage.messages
        self._clock = clock
        self._limits = limits
        self._rules_cache = rules_cache
        self._events = events
        self._quotas = quotas

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int | None,
        since: str,
        until: str,
        newest_first: bool = False,
    ) -> ReadResult[Page[HistoryEntry]]:
        """Return a page of history entries, ordered by finish time: oldest first unless ``newest_first`` is set.

        ``since`` and ``until`` are finish times in ISO 8601; "" = no bound.
        """
        size, span = self._page_size(limit), _span(since or None, until or None)
        return self._page(queue, marker, size, span, newest_first)

    def list_all(self, queue: QueueRef, marker: int, limit: int | None) -> ReadResult[Page[HistoryEntry]]:
        """Return a page of live and finished messages, ordered by sequence number."""
        return self._page(queue, marker, self._page_size(limit), None)

    def _page(
        self, queue: QueueRef, marker: int, size: int, span: Span | None, newest_first: bool = False
    ) -> ReadResult[Page[HistoryEntry]]:
        now = self._clock.now()

        def read(marker: int, limit: int, max_bytes: int) -> tuple[Sequence[HistoryEntry], int | None]:
            page = self._history.list(queue, marker, limit, span, now, max_bytes, newest_first)
            return page.items, None if page.next is None else int(page.next)

        items, position = read_page(read, marker, size, self._limits.max_answer_bytes, attrgetter("message.size"))
        shown = self._sealing.decrypt_entries(queue, items)
        return ReadResult(Page(list(shown), None if position is None else str(position)), now)

    def replay(self, queue: QueueRef, client: str, terms: ReplayTerms) -> int:
        """Post copies of finished messages, with ``client`` as the sender. Return the number of copies.

        Copies are posted in batches of up to ``CHUNK`` messages. Each batch is atomic. Raises ``Invalid``,
        ``QueuePaused``, ``QuotaExceeded`` or ``NoPosts``. Raises ``MessageNotFound`` if the history has no message with
        any of the requested ids.
        """
        self._modes.check_post()
        self._check(terms)
        if terms.ids is not UNSET:
            self._rules_cache.check_posts(queue)
            return self._replay_ids(queue, client, terms.ids)
        return self._replay_span(queue, client, terms)

    def dry_run(self, queue: QueueRef, terms: ReplayTerms) -> ReplayDryRun:
        """Return the expected result of ``replay``. Without ids, at most ``MAX_BATCH`` entries are inspected."""
        self._check(terms)
        if terms.ids is not UNSET:
            self._rules_cache.check_posts(queue)
            kept = [record for page in self._pages_of_ids(queue, terms.ids) for record in page]
            found = {record.message.id for record in kept}
            return ReplayDryRun(
                self._count_decryptable(queue, kept), len(kept), [id for id in terms.ids if id not in found]
            )
        limit, span = _limit(terms, MAX_BATCH), _span(_given(terms.since), _given(terms.until))
        self._rules_cache.check_posts(queue)
        counted = would_replay = 0
        for page in self._pages_of_span(queue, span):
            records = page[: min(limit - would_replay, MAX_BATCH - counted)]
            counted += len(records)
            would_replay += self._count_decryptable(queue, records)
            if would_replay >= limit or counted >= MAX_BATCH:
                break
        return ReplayDryRun(would_replay, counted)

    def _count_decryptable(self, queue: QueueRef, records: Sequence[HistoryEntry]) -> int:
        return sum(self._sealing.decrypt_or_none(queue, record.message) is not None for record in records)

    def _pages_of_ids(self, queue: QueueRef, ids: Sequence[str]) -> Iterator[Sequence[HistoryEntry]]:
        for start in range(0, len(ids), MAX_IDS):
            if start:
                turns.give_way()
            yield self._history.get(queue, ids[start : start + MAX_IDS], self._clock.now())

    def _pages_of_span(self, queue: QueueRef, span: Span) -> Iterator[Sequence[HistoryEntry]]:
        marker = 0
        while True:
            page = self._history.list(queue, marker, CHUNK, span, self._clock.now(), CHUNK_BYTES)
            yield page.items
            if page.next is None:
                return
            marker = int(page.next)
            turns.give_way()

    def _check(self, terms: ReplayTerms) -> None:
        spanned = [given for given in (terms.since, terms.until, terms.limit) if given is not UNSET]
        if (terms.ids is UNSET) == (not spanned):
            raise Invalid("Send either ids, or at least one of since, until and limit.")
        if terms.ids is not UNSET:
            check_count("ids", len(terms.ids), self._limits.max_messages_per_page)
            check_unique("ids", terms.ids)

    def _replay_ids(self, queue: QueueRef, client: str, ids: Sequence[str]) -> int:
        found = (chunk for page in self._pages_of_ids(queue, ids) for chunk in _chunks(page))
        count = sum(len(self._post(queue, client, chunk)) for chunk in found)
        if not count:
            raise MessageNotFound("The queue's history has no message with any of these ids.")
        return count

    def _replay_span(self, queue: QueueRef, client: str, terms: ReplayTerms) -> int:
        limit, span = _limit(terms, DEFAULT_BATCH), _span(_given(terms.since), _given(terms.until))
        self._rules_cache.check_posts(queue)
        copies: set[str] = set()
        for page in self._pages_of_span(queue, span):
            # Skip copies that this replay posted and that have finished since.
            found = [record for record in page if record.message.id not in copies][: limit - len(copies)]
            for chunk in _chunks(found):
                copies.update(self._post(queue, client, chunk))
            if len(copies) >= limit:
                break
        return len(copies)

    def _post(self, queue: QueueRef, client: str, records: Sequence[HistoryEntry]) -> Sequence[str]:
        """Post copies of the entries that can be decrypted. Return the ids of the copies.

        An encrypted body is bound to its message id, so each body is encrypted again for the id of its copy.
        """
        rules, now = self._rules_cache.recent(queue), self._clock.now()
        ids, ttl = new_ids(len(records), now), self._rules_cache.ttl(queue, rules)
        drafts = []
        for id, old in zip(ids, (record.message for record in records), strict=True):
            clear = self._sealing.decrypt_or_none(queue, old)
            if clear is None:
                continue
            body, checksum, attributes = old.body, old.checksum, old.attributes
            if rules.enable_encrypt_messages or is_sealed(old):
                summed = bool(checksum)
                body, checksum = self._sealing.encode_body(queue.project, id, clear.body, seals=True, checksum=summed)
                attributes = self._sealing.encode_attributes(queue.project, id, clear.attributes, seals=True)
            drafts.append(Draft(id, body, ttl, rules.default_message_delay, client, checksum, attributes, old.group))
        if not drafts:
            return []
        refusal = self._quotas.reserve_storage(queue.project, drafts)
        if refusal is not None:
            raise refusal
        self._messages.post(queue, drafts, now)
        self._events.posted(queue, drafts)
        return [draft.id for draft in drafts]

    def _page_size(self, limit: int | None) -> int:
        return DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)


def _limit(terms: ReplayTerms, default: int) -> int:
    return default if terms.limit is UNSET else check_range("limit", terms.limit, 1, MAX_BATCH)


def _given(text: str | UnsetType) -> str | None:
    return None if text is UNSET else text


def _span(since: str | None, until: str | None) -> Span:
    return Span(_parse_time("since", since, 0.0), _parse_time("until", until, MAX_TIME))


def _parse_time(name: str, text: str | None, default: Seconds) -> Seconds:
    if text is None:
        return default
    parsed = parse_time(text)
    if parsed is None:
        raise InvalidParameter(
            f"{name} must be an ISO 8601 date and time such as 2026-01-31T12:00:00Z (write + as %2B in a URL)."
        )
    return min(parsed, MAX_TIME)


def _chunks(records: Sequence[HistoryEntry]) -> Iterator[list[HistoryEntry]]:
    chunk: list[HistoryEntry] = []
    size = 0
    for record in records:
        length = record.message.size
        if chunk and (len(chunk) == CHUNK or size + length > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += length
    if chunk:
        yield chunk
