# SPDX-License-Identifier: Apache-2.0
"""Settlement of a claim's messages (extensions contract, section 3)."""

from contextlib import suppress
from typing import Final

from msgspec import UNSET

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.quotas import AnyQuotas
from zq.core.rules import Rules, RulesCache
from zq.core.values import WriteResult
from zq.errors import ClaimNotFound, Invalid, Repeated
from zq.events import Events
from zq.model import Fence, IdempotencyKey, Move, Outcome, QueueRef, Release, Seconds, Settlement, SettleResult
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.limits import (
    MAX_NAME,
    MAX_REASON,
    MIN_DELAY,
    MIN_TTL,
    Limits,
    check_count,
    check_queue_name,
    check_range,
    check_target,
    check_unique,
)
from zq.model.scopes import Kind, Verb
from zq.storage.api import Storage
from zq.wire import extensions

# Policy rule for moving messages to a queue: the rule for posting to it.
MOVE_RULE = "messages:create"
# Id of a claim that cannot exist, because claim names contain no tilde. A settlement of this claim changes nothing: the
# store only looks up the idempotency key and checks the fence.
NO_CLAIM: Final = "~none"


class Settling:
    """Settlement of claims: delete, release, move or bury their messages."""

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
    ) -> WriteResult[SettleResult]:
        """Delete, release, move or bury messages of the claim atomically.

        A buried message is moved to the queue's dead-letter queue.

        Raises ``Invalid``, ``ClaimNotFound``, ``KeyReused`` or ``Fenced``. Raises ``NotAuthorized`` if the caller may
        not post to a target queue. Raises ``QuotaExceeded`` if a target queue is missing and the project has reached
        its queue limit.
        """
        self._check(terms)
        targets = {move.queue for move in terms.move}
        for target in targets:
            allowance.authorize(MOVE_RULE, Verb.PRODUCE, Kind.QUEUE, target)
            if len(target) > MAX_NAME:
                check_target("queue", QueueRef(queue.project, target), self._storage.queues.get)
        rules = self._rules_cache.recent(queue)
        if terms.bury:
            if rules.dead_letter_queue in ("", queue.name):
                raise Invalid(
                    "bury is not possible: the queue has no _dead_letter_queue, or is its own dead-letter queue."
                )
            allowance.authorize(MOVE_RULE, Verb.PRODUCE, Kind.QUEUE, rules.dead_letter_queue)
            targets.add(rules.dead_letter_queue)
        settlement = self._settlement(queue.project, terms, rules)
        refs = [QueueRef(queue.project, target) for target in targets]
        try:
            with self._quotas.admit_targets(refs):
                now = self._clock.now()
                self._admit_plain(queue, claim, settlement, now, idempotency_key, fence)
                settled = self._storage.claims.settle(queue, claim, settlement, now, idempotency_key, fence)
        except Repeated as first:
            return WriteResult(first.answer, replayed=True)
        self._events.finished(queue, Outcome.DELETED, settled.deleted)
        self._events.finished(queue, Outcome.MOVED, settled.moved)
        self._events.finished(queue, Outcome.DEAD_LETTERED, settled.buried)
        return WriteResult(settled)

    def _admit_plain(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None,
        fence: Fence | None,
    ) -> None:
        """Let the target queues accept unencrypted bodies if the settlement moves unencrypted messages to them.

        The idempotency key and the fence are checked first, so that a repeated or fenced request changes no target.
        """
        targets = self._rules_cache.plain_targets(queue, claim, settlement.move, now) if settlement.move else ()
        if not targets:
            return
        if idempotency_key is not None or fence is not None:
            with suppress(ClaimNotFound):
                self._storage.claims.settle(queue, NO_CLAIM, Settlement(), now, idempotency_key, fence)
        self._rules_cache.admit_plain(targets)

    def _settlement(self, project: str, terms: extensions.SettleTerms, rules: Rules) -> Settlement:
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
        limits, fields = self._limits, "delete, release, move and bury"
        ids = [] if isinstance(terms.delete, str) else list(terms.delete)
        ids += [released.id for released in terms.release]
        ids += [moved.id for moved in terms.move]
        ids += [buried.id for buried in terms.bury]
        if terms.delete != "*" or ids:
            check_count(fields, len(ids), limits.max_messages_per_claim_or_pop)
        check_unique(fields, ids)
        for delay in [*(released.delay for released in terms.release), *(moved.delay for moved in terms.move)]:
            if delay is not UNSET:
                check_range("delay", delay, MIN_DELAY, limits.max_message_delay, unit="seconds")
        for move in terms.move:
            check_queue_name("queue", move.queue)
            if move.ttl is not UNSET:
                check_range("ttl", move.ttl, MIN_TTL, limits.max_message_ttl, unit="seconds")
        for buried in terms.bury:
            if not 1 <= len(buried.reason) <= MAX_REASON:
                raise Invalid(f"reason must be 1 to {MAX_REASON} characters; it has {len(buried.reason)}.")

    def _move(self, project: str, given: extensions.MoveTerms, encrypts: bool) -> Move:
        rules = self._rules_cache.recent(QueueRef(project, given.queue))
        body = None if given.body is UNSET else bytes(given.body)
        if body is not None and len(body) > rules.max_messages_post_size:
            raise Invalid(
                f"body must be at most {rules.max_messages_post_size} bytes for queue {given.queue}; it is {len(body)}."
            )
        checksum = ""
        if body is not None:
            seals = encrypts or rules.enable_encrypt_messages
            body, checksum = self._sealing.encode_body(project, given.id, body, seals=seals, checksum=self._checksum)
        return Move(
            id=given.id,
            to=given.queue,
            ttl=None if given.ttl is UNSET else given.ttl,
            delay=rules.default_message_delay if given.delay is UNSET else given.delay,
            body=body,
            checksum=checksum,
        )
