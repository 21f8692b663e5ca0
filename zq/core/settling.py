# SPDX-License-Identifier: Apache-2.0
"""Use case: settle the messages of a claim (extensions 3)."""

from contextlib import suppress
from typing import Final

from msgspec import UNSET

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.quotas import AnyQuotas
from zq.core.rules import Rules, RulesCache
from zq.core.values import Applied
from zq.errors import ClaimNotFound, Invalid, Repeated
from zq.events import Events
from zq.limits import (
    MAX_REASON,
    MIN_DELAY,
    MIN_TTL,
    Limits,
    check_target,
    count_within,
    each_once,
    queue_name,
    within,
)
from zq.model import Fence, IdempotencyKey, Move, Outcome, QueueRef, Release, Seconds, Settled, Settlement
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.scopes import Kind, Verb
from zq.storage.api import Storage
from zq.wire import extensions

# Policy rule that authorizes a move to a target, like a post to it.
MOVE_RULE = "messages:create"
# The id of a claim that does not exist, because the names of claims contain no tilde. A settlement of it changes
# nothing; the store only looks up the idempotency key and checks the fence.
NO_CLAIM: Final = "~none"


class Settling:
    """The use case that deletes, releases, moves or buries the messages of a claim."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        rules_cache: RulesCache,
        checksum: bool,
        events: Events,
        sealing: Sealing,
        quotas: AnyQuotas,
    ) -> None:
        self._sealing = sealing
        self._storage = storage
        self._clock = clock
        self._limits = limits
        self._rules_cache = rules_cache
        self._checksum = checksum
        self._events = events
        self._quotas = quotas

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        terms: extensions.SettleTerms,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
        allowance: Allowance = EVERYTHING,
    ) -> Applied[Settled]:
        """Delete, release, move or bury messages of the claim atomically.

        After an error, nothing has changed. Raises ``Invalid``, ``NotAuthorized``, ``ClaimNotFound``, ``KeyReused``,
        ``Fenced``, ``QuotaExceeded``.
        """
        self._check(terms)
        targets = {move.queue for move in terms.move}
        for target in targets:
            allowance.judge(MOVE_RULE, Verb.PRODUCE, Kind.QUEUE, target)
            check_target("queue", QueueRef(queue.project, target), self._storage.queues.get)
        rules = self._rules_cache.recent(queue)
        if terms.bury:
            if rules.dead_letter_queue in ("", queue.name):
                raise Invalid("bury: the queue has no _dead_letter_queue other than itself.")
            allowance.judge(MOVE_RULE, Verb.PRODUCE, Kind.QUEUE, rules.dead_letter_queue)
            targets.add(rules.dead_letter_queue)
        settlement = self._settlement(queue.project, terms, rules)
        refs = [QueueRef(queue.project, target) for target in targets]
        try:
            with self._quotas.admit_targets(refs):
                now = self._clock.now()
                self._admit_plain(queue, claim, settlement, now, idempotency_key, fence)
                settled = self._storage.claims.settle(queue, claim, settlement, now, idempotency_key, fence)
        except Repeated as first:
            return Applied(first.answer, replayed=True)
        self._events.finished(queue, Outcome.DELETED, settled.deleted)
        self._events.finished(queue, Outcome.MOVED, settled.moved)
        self._events.finished(queue, Outcome.DEAD_LETTERED, settled.buried)
        return Applied(settled)

    def _admit_plain(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None,
        fence: Fence | None,
    ) -> None:
        """Make the targets accept the unencrypted bodies that the claim's messages bring.

        Raises ``Repeated``, ``KeyReused`` or ``Fenced`` if the settlement will change nothing; then no target changes.
        """
        targets = self._rules_cache.plain_targets(queue, claim, settlement.move, now)
        if targets and (idempotency_key is not None or fence is not None):
            with suppress(ClaimNotFound):
                self._storage.claims.settle(queue, NO_CLAIM, Settlement(), now, idempotency_key, fence)
        self._rules_cache.admit_plain(targets)

    def _settlement(self, project: str, terms: extensions.SettleTerms, rules: Rules) -> Settlement:
        """Convert the request's terms to a settlement of the store."""
        buried = (rules.dead_letter_queue, rules.dead_letter_queue_messages_ttl)
        return Settlement(
            delete=() if isinstance(terms.delete, str) else terms.delete,
            rest=terms.delete == "*",
            release=[Release(given.id, None if given.delay is UNSET else given.delay) for given in terms.release],
            move=[self._move(project, move, rules.enable_encrypt_messages) for move in terms.move]
            + [Move(given.id, *buried, reason=given.reason) for given in terms.bury],
            history=rules.history_ttl,
        )

    def _check(self, terms: extensions.SettleTerms) -> None:
        """Check all terms that do not depend on the rules of queues. Raises ``Invalid``."""
        limits, fields = self._limits, "delete, release, move and bury"
        ids = [] if isinstance(terms.delete, str) else list(terms.delete)
        ids += [released.id for released in terms.release]
        ids += [moved.id for moved in terms.move]
        ids += [buried.id for buried in terms.bury]
        if terms.delete != "*" or ids:
            count_within(fields, len(ids), limits.max_messages_per_claim_or_pop)
        each_once(fields, ids)
        for delay in [*(released.delay for released in terms.release), *(moved.delay for moved in terms.move)]:
            if delay is not UNSET:
                within("delay", delay, MIN_DELAY, limits.max_message_delay)
        for move in terms.move:
            queue_name("queue", move.queue)
            if move.ttl is not UNSET:
                within("ttl", move.ttl, MIN_TTL, limits.max_message_ttl)
        for buried in terms.bury:
            if not 1 <= len(buried.reason) <= MAX_REASON:
                raise Invalid(f"reason must be 1 to {MAX_REASON} characters; it has {len(buried.reason)}.")

    def _move(self, project: str, given: extensions.Moved, encrypts: bool) -> Move:
        """Convert one move of the request. A new body is encrypted if the source or target queue encrypts."""
        rules = self._rules_cache.recent(QueueRef(project, given.queue))
        body = None if given.body is UNSET else bytes(given.body)
        if body is not None and len(body) > rules.max_messages_post_size:
            raise Invalid(
                f"body must be at most {rules.max_messages_post_size} bytes in {given.queue}; it is {len(body)}."
            )
        checksum = ""
        if body is not None:
            seals = encrypts or rules.enable_encrypt_messages
            body, checksum = self._sealing.stored(project, given.id, body, seals=seals, checksum=self._checksum)
        return Move(
            id=given.id,
            to=given.queue,
            ttl=None if given.ttl is UNSET else given.ttl,
            delay=rules.default_message_delay if given.delay is UNSET else given.delay,
            body=body,
            checksum=checksum,
        )
