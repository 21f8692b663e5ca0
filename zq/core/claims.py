# SPDX-License-Identifier: Apache-2.0
"""Operations on claims (contract section 8)."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress

from msgspec import UNSET, Struct, structs

from zq import wire
from zq.clock import Clock
from zq.core import redelivery
from zq.core.encryption import UNREADABLE_DELAY, Sealing
from zq.core.rules import Rules, RulesCache
from zq.core.values import ReadResult
from zq.errors import ClaimNotFound, InvalidParameter
from zq.events import Events
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimSummary,
    Fence,
    Holder,
    Lease,
    Messages,
    Page,
    QueueRef,
    Release,
    Seconds,
    Settlement,
    new_ids,
)
from zq.model.hidden import HIDDEN
from zq.model.limits import DEFAULT_PAGE, MAX_CLAIMS, MIN_DELAY, MIN_TTL, Limits, check_claim_name, check_range
from zq.storage.api import Storage

# Default number of messages in a claim.
DEFAULT_CLAIM = 10
# Claim limit for a paused queue: the store claims no message. The store is still queried for a live claim with the
# requested name, for the fence check, and for newer metadata, which may end the pause.
NO_CLAIMS = 0
# Maximum number of store pages that are read for one page of claims.
MAX_STORE_PAGES = 4


class ClaimReply(Struct, frozen=True):
    """The result of a claim request. ``claim`` is ``None`` if no message was ready."""

    claim: Claim | None
    now: Seconds
    existed: bool = False

    @property
    def found(self) -> bool:
        return self.claim is not None


class Claims:
    """Operations on claims: create, get, list, renew and release."""

    def __init__(
        self, storage: Storage, clock: Clock, limits: Limits, rules_cache: RulesCache, events: Events, sealing: Sealing
    ) -> None:
        self._sealing = sealing
        self._storage = storage
        self._claims = storage.claims
        self._clock = clock
        self._limits = limits
        self._rules_cache = rules_cache
        self._events = events

    def create(self, queue: QueueRef, terms: wire.ClaimTerms, limit: int | None, holder: Holder) -> ClaimReply:
        """Claim up to ``limit`` messages. Claim fewer if their bodies would exceed the size limit of a response."""
        (claim,) = new_ids(1, self._clock.now())
        request = ClaimRequest(self._lease(claim, terms), self._size(limit), holder=holder)
        return self.claim(queue, lambda _rules: request)

    def create_named(
        self, queue: QueueRef, name: str, terms: wire.ClaimTerms, limit: int | None, fence: Fence | None, holder: Holder
    ) -> ClaimReply:
        """Return the live claim with this name. Create the claim if it does not exist."""
        lease = self._lease(check_claim_name(name), terms)
        request = ClaimRequest(lease, self._size(limit), named=True, fence=fence, holder=holder)
        return self.claim(queue, lambda _rules: request)

    def claim(self, queue: QueueRef, build_request: Callable[[Rules], ClaimRequest]) -> ClaimReply:
        """Claim messages, unless claims on the queue are paused.

        ``build_request`` builds the claim request from the queue's rules (the parsed settings in its metadata). If the
        cached rules were outdated, ``build_request`` is called again.
        """
        rules = self._rules_cache.remembered(queue) or self._rules_cache.recent(queue)
        while True:
            now = self._clock.now()
            letters = None if rules.claims_paused else self._rules_cache.dead_letters(queue, rules)
            request = structs.replace(
                build_request(rules),
                redelivery_delays=rules.redelivery_delays,
                max_claims=letters and letters.max_claims,
                max_bytes=self._limits.max_answer_bytes,
                expected=rules.metadata,
            )
            if rules.claims_paused:
                request = structs.replace(request, limit=1, max_claims=NO_CLAIMS, max_bytes=0)
            made = redelivery.claim(self._storage, queue, request, letters, now, self._rules_cache.admit_moves)
            if made.metadata is None:
                break
            rules = self._rules_cache.remember(queue, made.metadata)
        if made.claim is not None and not made.existing:
            self._events.claimed(queue, made.claim, now)
        claim = made.claim
        if claim is not None and (shown := self._sealing.decrypt_all(queue, claim.messages)) is not claim.messages:
            claim = self._release_undecryptable(queue, claim, shown, now)
        return ClaimReply(claim, now, made.existing)

    def _release_undecryptable(self, queue: QueueRef, claim: Claim, shown: Messages, now: Seconds) -> Claim | None:
        """Release all messages of the claim that are not in ``shown``, because they cannot be decrypted.

        Return the claim with the messages in ``shown``, or ``None`` if there are none. Without the release, a consumer
        that settles the whole claim would settle messages that it never received.
        """
        read = {message.id for message in shown}
        away = [Release(message.id, UNREADABLE_DELAY) for message in claim.messages if message.id not in read]
        if away:
            with suppress(ClaimNotFound):
                self._claims.settle(queue, claim.id, Settlement(release=away), now)
        return structs.replace(claim, messages=shown) if shown else None

    def get(self, queue: QueueRef, claim: str) -> ReadResult[Claim]:
        """Return a live claim with its messages. Raises ``MessageUnreadable`` if a message cannot be decrypted."""
        now = self._clock.now()
        found = self._claims.get(queue, claim, now)
        shown = [self._sealing.decrypt(queue, message) for message in found.messages]
        return ReadResult(structs.replace(found, messages=shown), now)

    def list(self, project: str, queue: str, marker: str, limit: int | None) -> ReadResult[Page[ClaimSummary]]:
        """Return a page of the live claims of a queue.

        If ``queue`` is "", the page lists the claims of all queues except internal queues. A page may be short or empty
        although more claims follow.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, MAX_CLAIMS)
        after, now = _decode_marker(marker), self._clock.now()
        found: list[ClaimSummary] = []
        for _ in range(MAX_STORE_PAGES):
            page = self._claims.list(project, after, size - len(found), now, queue)
            found += [claim for claim in page.items if not claim.queue.startswith(HIDDEN)]
            after = page.next or ""
            if not after or len(found) == size:
                break
        return ReadResult(Page(found, _encode_marker(after) if after else None), now)

    def renew(self, queue: QueueRef, claim: str, terms: wire.ClaimTerms, fence: Fence | None) -> None:
        """Renew a live claim (contract section 8.3). An unset ttl or grace gets the server's default."""
        self._claims.renew(queue, self._lease(claim, terms, caps_grace=True), self._clock.now(), fence)

    def release(self, queue: QueueRef, claim: str, delay: int | None) -> None:
        """Release the messages of a claim. Ignore an unknown claim.

        The messages become ready again after ``delay`` seconds; ``None`` = the queue's redelivery delay.
        """
        if delay is not None:
            check_range("delay", delay, MIN_DELAY, self._limits.max_message_delay, unit="seconds")
        self._claims.release(queue, claim, self._clock.now(), delay)

    def _lease(self, claim: str, terms: wire.ClaimTerms, *, caps_grace: bool = False) -> Lease:
        """Validate the terms of a claim and return them as a lease.

        If ``caps_grace`` is true, a grace outside the limits is capped instead of rejected (contract section 8.3).
        """
        limits, ttl = self._limits, terms.ttl
        if ttl is UNSET:
            ttl = limits.default_claim_ttl
        else:
            check_range("ttl", ttl, MIN_TTL, limits.max_claim_ttl, unit="seconds")
        grace = limits.default_claim_grace if terms.grace is UNSET else terms.grace
        if caps_grace:
            grace = min(max(0, grace), limits.max_claim_grace)
        else:
            check_range("grace", grace, MIN_TTL, limits.max_claim_grace, unit="seconds")
        return Lease(claim, ttl, grace)

    def _size(self, limit: int | None) -> int:
        if limit is None:
            return DEFAULT_CLAIM
        return check_range("limit", limit, 1, self._limits.max_messages_per_claim_or_pop)


def _encode_marker(after: str) -> str:
    return urlsafe_b64encode(after.encode()).decode().rstrip("=")


def _decode_marker(marker: str) -> str:
    try:
        padded = marker.encode("ascii") + b"=" * (-len(marker) % 4)
        return b64decode(padded, b"-_", validate=True).decode("utf-8", "replace")
    except ValueError as error:
        raise InvalidParameter(
            "marker is not valid for a list of claims; use the marker in the link to the next page."
        ) from error
