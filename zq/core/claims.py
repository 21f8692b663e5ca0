# SPDX-License-Identifier: Apache-2.0
"""Use cases on claims (contract 8)."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress

from msgspec import UNSET, Struct, structs

from zq import wire
from zq.clock import Clock
from zq.core import redelivery
from zq.core.encryption import SET_ASIDE, Sealing
from zq.core.rules import Rules, RulesCache
from zq.core.values import Seen
from zq.errors import ClaimNotFound, InvalidParameter
from zq.events import Events
from zq.limits import DEFAULT_PAGE, MAX_CLAIMS, MIN_DELAY, MIN_TTL, Limits, claim_name, within
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimSummary,
    Fence,
    Holder,
    Lease,
    Page,
    QueueRef,
    Release,
    Seconds,
    Settlement,
    new_ids,
)
from zq.model.hidden import HIDDEN
from zq.storage.api import Storage

# Messages of a claim without ``limit``.
DEFAULT_CLAIM = 10
# Of a paused queue no message may be handed out once more: the store still answers with a claim that lives under the
# name, checks the fence, and tells of metadata by which the queue is paused no longer.
NEVER = 0
# How often one request asks the store for claims: a page of the store may be short.
LOOKS = 4


class ClaimAnswer(Struct, frozen=True):
    """A claim as of ``now``; None if there is nothing to claim. ``existed``: it lived already under its name."""

    claim: Claim | None
    now: Seconds
    existed: bool = False

    @property
    def found(self) -> bool:
        """Whether there was anything."""
        return self.claim is not None


class Claims:
    """What a caller can do with claims."""

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

    def create(self, queue: QueueRef, terms: wire.ClaimTerms, limit: int | None, holder: Holder) -> ClaimAnswer:
        """Claim up to ``limit`` messages, or as many as an answer carries."""
        (claim,) = new_ids(1, self._clock.now())
        request = ClaimRequest(self._lease(claim, terms), self._size(limit), holder=holder)
        return self.claim(queue, lambda _rules: request)

    def create_named(
        self, queue: QueueRef, name: str, terms: wire.ClaimTerms, limit: int | None, fence: Fence | None, holder: Holder
    ) -> ClaimAnswer:
        """The live claim of this name as it is; else a new one, if there is anything to claim."""
        lease = self._lease(claim_name(name), terms)
        request = ClaimRequest(lease, self._size(limit), named=True, fence=fence, holder=holder)
        return self.claim(queue, lambda _rules: request)

    def claim(self, queue: QueueRef, wanted: Callable[[Rules], ClaimRequest]) -> ClaimAnswer:
        """Claim by the rules that this server remembers, or by those that the store says have come in their place.

        ``wanted``: what to ask for by these rules; what they say of every claim is added. Where they pause claims,
        there is nothing to claim.
        """
        rules = self._rules_cache.remembered(queue) or self._rules_cache.recent(queue)
        while True:
            now = self._clock.now()
            letters = None if rules.claims_paused else self._rules_cache.dead_letters(queue, rules)
            asked = structs.replace(
                wanted(rules),
                waits=rules.waits,
                max_claims=letters and letters.max_claims,
                most_bytes=self._limits.max_answer_bytes,
                expected=rules.metadata,
            )
            if rules.claims_paused:
                asked = structs.replace(asked, limit=1, max_claims=NEVER, most_bytes=0)
            made = redelivery.claim(self._storage, queue, asked, letters, now, self._rules_cache.admit_moves)
            if made.metadata is None:
                break
            rules = self._rules_cache.remember(queue, made.metadata)
        if made.claim is not None and not made.existing:
            self._events.claimed(queue, made.claim, now)
        return ClaimAnswer(made.claim and self._opened(queue, made.claim, now), now, made.existing)

    def _opened(self, queue: QueueRef, claim: Claim, now: Seconds) -> Claim | None:
        """The claim with those of its messages that can be opened; None if there are none.

        The others leave it at once, so that whoever settles all of the claim settles what he has seen.
        """
        shown = self._sealing.opened(queue, claim.messages)
        if shown is claim.messages:
            return claim
        read = {message.id for message in shown}
        away = [Release(message.id, SET_ASIDE) for message in claim.messages if message.id not in read]
        if away:
            with suppress(ClaimNotFound):
                self._claims.settle(queue, claim.id, Settlement(release=away), now)
        return structs.replace(claim, messages=shown) if shown else None

    def get(self, queue: QueueRef, claim: str) -> Seen[Claim]:
        """A live claim. Raises ``ClaimNotFound``, and ``MessageUnreadable`` if one of its messages cannot be opened any
        more."""
        now = self._clock.now()
        found = self._claims.get(queue, claim, now)
        shown = [self._sealing.opened_one(queue, message) for message in found.messages]
        return Seen(structs.replace(found, messages=shown), now)

    def list(self, project: str, queue: str, marker: str, limit: int | None) -> Seen[Page[ClaimSummary]]:
        """A page of live claims of the project, or of its queue of that name; "" = of all queues but zq's own.

        It may be short, or empty, though there are more, where the store looked at much that is none.
        """
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, MAX_CLAIMS)
        after, now = _opened(marker), self._clock.now()
        found: list[ClaimSummary] = []
        for _ in range(LOOKS):
            page = self._claims.list(project, after, size - len(found), now, queue)
            found += [claim for claim in page.items if not claim.queue.startswith(HIDDEN)]
            after = page.next or ""
            if not after or len(found) == size:
                break
        return Seen(Page(found, _sealed(after) if after else None), now)

    def renew(self, queue: QueueRef, claim: str, terms: wire.ClaimTerms, fence: Fence | None) -> None:
        """Start a live claim anew; omitted terms are the server's defaults (contract 8.3).

        Raises ``ClaimNotFound``, ``Fenced``.
        """
        grace = min(max(0, self._grace(terms)), self._limits.max_claim_grace)  # no refusal here, just no overflow
        lease = Lease(claim, self._ttl(terms), grace)
        self._claims.renew(queue, lease, self._clock.now(), fence)

    def release(self, queue: QueueRef, claim: str, delay: int | None) -> None:
        """Give back what the claim holds after ``delay`` seconds, as ``Release`` has it; an unknown claim is fine."""
        if delay is not None:
            within("delay", delay, MIN_DELAY, self._limits.max_message_delay)
        self._claims.release(queue, claim, self._clock.now(), delay)

    def _lease(self, claim: str, terms: wire.ClaimTerms) -> Lease:
        ttl, grace = self._ttl(terms), self._grace(terms)
        return Lease(claim, ttl, within("grace", grace, MIN_TTL, self._limits.max_claim_grace))

    def _size(self, limit: int | None) -> int:
        if limit is None:
            return DEFAULT_CLAIM
        return within("limit", limit, 1, self._limits.max_messages_per_claim_or_pop)

    def _ttl(self, terms: wire.ClaimTerms) -> int:
        if terms.ttl is UNSET:
            return self._limits.default_claim_ttl
        return within("ttl", terms.ttl, MIN_TTL, self._limits.max_claim_ttl)

    def _grace(self, terms: wire.ClaimTerms) -> int:
        return self._limits.default_claim_grace if terms.grace is UNSET else terms.grace


def _sealed(after: str) -> str:
    """Where the store goes on, as a marker that means nothing to a caller."""
    return urlsafe_b64encode(after.encode()).decode().rstrip("=")


def _opened(marker: str) -> str:
    """The same back again. Raises ``InvalidParameter``."""
    try:
        padded = marker.encode("ascii") + b"=" * (-len(marker) % 4)
        return b64decode(padded, b"-_", validate=True).decode("utf-8", "replace")
    except ValueError as error:
        raise InvalidParameter("marker must be one of claims, as the link to the next page has it.") from error
