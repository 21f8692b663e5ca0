# SPDX-License-Identifier: Apache-2.0
"""Claims with a caller-supplied name or a fence. Each claim has its own transaction.

If several callers request a claim with the same name at the same time, only one claim is created. The transaction that
claims the messages also writes the document of the name, so a later request finds the first claim.
"""

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.errors import Unavailable
from zq.model import ClaimRequest, ClaimResult
from zq.storage.mongodb import layout
from zq.storage.mongodb.changes import check_fence
from zq.storage.mongodb.claim_attempt import Choice, ClaimAttempt, ClaimOutcome
from zq.storage.mongodb.client import LONGEST_PAUSE, Aborted, Session, StoreClient
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import MAX_ATTEMPTS, QueueClaimer
from zq.storage.mongodb.reservations import find_visible_held

# Milliseconds for which the document of a name is kept after its last use. Correctness does not depend on the value.
NAME_TTL: Final = 3_600_000


class CreationResult(NamedTuple):
    """The result of one attempt to create the claim.

    - ``existing``: the messages of an existing claim with the requested name; empty if there is none.
    - ``outcome``: the outcome of the attempt; meaningful only if ``existing`` is empty.
    - ``expired``: the message groups in which the attempt has found expired messages.
    """

    existing: Sequence[BsonDocument]
    outcome: ClaimOutcome
    expired: Sequence[str] = ()


class ExclusiveClaim:
    """A request for a claim with a caller-supplied name or a fence."""

    def __init__(
        self, client: StoreClient, claimer: QueueClaimer, key: QueueKey, request: ClaimRequest, attempt: ClaimAttempt
    ) -> None:
        self._client = client
        self._claimer = claimer
        self._key = key
        self._request = request
        self._attempt = attempt

    def create(self) -> ClaimResult:
        """Create the claim, or return the existing claim with the requested name.

        If the queue's metadata differs from the expected metadata, create no claim and return the metadata.

        Raises ``Fenced`` if the epoch of the fence is not the last issued epoch, and ``Unavailable`` if all attempts
        conflict with other processes.
        """
        attempt = self._attempt
        for _ in range(MAX_ATTEMPTS):
            found = self._claimer.search(attempt.limit, attempt.now, attempt.most_bytes)
            if not found.is_empty and not attempt.accepts(found.metadata):
                return ClaimResult(metadata=found.metadata)
            choice = attempt.choose(found.ready)
            try:
                if choice.eligible or found.lines or self._request.fence:
                    work = partial(self._make, choice, found.lines)
                    made = self._client.transaction(work, retry_conflicts=False)
                else:  # waiting callers repeat the request often, which must not cost a transaction
                    made = CreationResult(self._existing_claim(), attempt.outcome(choice, ()))
            except Aborted:  # another process has written one of the messages or the document of the name
                self._claimer.record_collision(found)
                time.sleep(random.uniform(0, LONGEST_PAUSE))
                continue
            if made.existing:
                return ClaimResult(layout.to_claim(self._key, made.existing, attempt.now), existing=True)
            self._claimer.lines.remove_expired(made.expired, attempt.now)
            if not found.lines or made.outcome.is_answered:
                return made.outcome.claimed(self._key, self._request)
        raise Unavailable

    def _make(self, choice: Choice, names: Sequence[str], session: Session) -> CreationResult:
        """Create the claim in the session's transaction, or return the existing claim with the requested name.

        In a queue with message groups, ``names`` are the groups from which the claim takes messages. Otherwise,
        ``names`` is empty, and the claim takes the messages of ``choice``.
        """
        request, attempt = self._request, self._attempt
        if request.fence:
            check_fence(self._client, session, self._key.ref.project, request.fence)
        if request.named:
            self._write_name(session)
        existing = self._existing_claim(session)
        if existing:
            return CreationResult(existing, ClaimOutcome(attempt.now))
        if names:
            taken = self._claimer.lines.take([attempt], names, session)
            return CreationResult([], taken.outcomes[0], taken.expired)
        eligible = choice.eligible
        if eligible and self._client.update(
            [self._claimer.claim_statement(request, eligible, attempt.now)], session
        ) != len(eligible):
            raise Aborted
        return CreationResult([], attempt.outcome(choice, choice.doc_ids))

    def _existing_claim(self, session: Session | None = None) -> Sequence[BsonDocument]:
        if not self._request.named:
            return []
        return find_visible_held(self._client, self._key, self._request.lease.claim, self._attempt.now, session)

    def _write_name(self, session: Session) -> None:
        """Write the document of the claim's name, so that concurrent transactions for this name conflict."""
        name = {"_id": self._key.named("n", self._request.lease.claim), "s": self._key.shard}
        expiry = {"$set": {"e": DatetimeMS(self._attempt.now + NAME_TTL)}, "$inc": {"v": 1}}
        self._client.update([{"q": name, "u": expiry, "upsert": True}], session)
