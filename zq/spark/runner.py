# SPDX-License-Identifier: Apache-2.0
"""The runner of a pipeline, which processes messages in rounds.

The claims of a round are named ``<name>.<batch>.<number>``. If ``n`` is the last committed batch, the current batch is
``n + 1`` and the prefetched batch is ``n + 2``. After a crash, the next runner finds the claims by these names.
"""

import threading
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from zq.errors import (
    ClaimNotFound,
    Invalid,
    NotAuthenticated,
    NotAuthorized,
    ProducerNotFound,
    QuotaExceeded,
    StageNotFound,
    ZqError,
)
from zq.spark.claims import BatchClaimer, ClaimedBatch, Heartbeat, Prefetch
from zq.spark.failures import explain, extract_error
from zq.spark.options import ClaimingOptions
from zq.spark.poison import InconclusiveSearch, RunStopped, batch_burials, find_poison
from zq.spark.rounds import FAILURES, Round, RoundExecutor

# Metadata key of the dead-letter queue.
DEAD_LETTERS: Final = "_dead_letter_queue"
# Metadata key of the maximum claim count.
MAX_CLAIM_COUNT: Final = "_max_claim_count"
# Maximum bytes of a round's messages that the driver keeps, so that Spark's tasks need not request them.
INLINED_BYTES: Final = 32 * 2**20
# Message ids by claim.
MessageIds = Mapping[str, Sequence[str]]


class RoundFailed(ZqError):
    """An error that the runner raises if a round fails for a reason other than poison messages.

    The runner has then released the messages of the round.
    """


class Totals(Struct):
    """The message and round counts of a run. ``taken`` is the number of claimed messages."""

    rounds: int = 0
    taken: int = 0
    published: int = 0
    buried: int = 0


class Runner:
    """The main loop of a pipeline, which claims batches of messages and processes each batch in a round.

    If the queue has a backlog, the runner claims the next batch while Spark processes the current batch.
    """

    def __init__(self, taking: ClaimingOptions, work: RoundExecutor, most_poison: int) -> None:
        self.name = taking.consumer
        self.stopped = threading.Event()
        self.totals = Totals()
        self._taking = taking
        self._work = work
        self._most_poison = most_poison
        self._client = taking.connection.client()
        self._queue = self._client.queue(taking.queue)
        self._heartbeat = Heartbeat(taking.connection, taking.queue, taking.ttl, taking.ttl / 3)
        self._prefetch = Prefetch()
        self._buries = False
        self._room = 0
        """Maximum bytes of dead letters per request."""
        self._burials = 0
        self._last = 0
        self._adopted = False
        """Whether the runner has looked for claims of a crashed run."""
        self._forbidden = set[str]()
        """Ids of messages for whose target queues the token lacks permission."""
        self._allowed = False
        """Whether the token has permission for the target queue of another message."""

    def begin(self, dead_letters: str | None) -> None:
        """Advance the fencing token, which stops other runs.

        Raises ``Invalid`` if the queue has a dead-letter queue other than ``dead_letters``.
        """
        if not self._queue.exists():
            warnings.warn(f"There is no queue {self._queue.name} yet.", stacklevel=3)
        self._fence = self._client.fence(self.name)
        self._claimer = BatchClaimer(self._taking, self._fence, self._heartbeat)
        self._room = self._client.limits()["max_messages_post_size"]
        known = self._queue.metadata()
        own = known.get(DEAD_LETTERS)
        if own and dead_letters and own != dead_letters:
            raise Invalid(f"Queue {self._queue.name} has {own} as {DEAD_LETTERS}, but the pipeline has {dead_letters}.")
        if dead_letters and not own:
            self._queue.create()
            self._queue.update({DEAD_LETTERS: dead_letters})
        self._buries = bool(own or dead_letters)
        if self._buries and known.get(MAX_CLAIM_COUNT):
            warnings.warn(
                f"Queue {self._queue.name} has {MAX_CLAIM_COUNT}: failed rounds count as claims, so valid messages may "
                "become dead letters.",
                stacklevel=3,
            )
        with suppress(ProducerNotFound):
            self._last = self._client.committed(self.name).batch

    def end(self) -> None:
        """Release the prefetched claims and stop renewals."""
        if (left := self._prefetch.stop()) is not None:
            self._claimer.release(left)
        self._heartbeat.stop()

    def claim(self) -> ClaimedBatch:
        """Claim the batch of the next round. The batch has no claims if the queue is empty."""
        if not self._adopted:
            self._adopted = True
            found = self._batch(1)
            self._claimer.adopt(found, [self._prefix(1), self._prefix(2)])
            if found.claims:
                return found
        batch = self._prefetch.take() or self._batch(1)
        self._claimer.fill(batch, self._taking.max_messages, self._taking.wait)
        return batch

    def work(self, batch: ClaimedBatch) -> bool:
        """Process a batch in a round. Return ``False`` if the messages were released because the run must stop."""
        count, names = batch.messages, list(batch.claims)
        try:
            self._check_stopped()
            self._start_prefetch(batch)
            self._finish(batch)
        except BaseException as error:
            self._claimer.release(batch)
            if isinstance(error, RunStopped):
                return False
            raise
        finally:
            self._heartbeat.drop(names)
        self.totals.rounds += 1
        self.totals.taken += count
        return True

    def _start_prefetch(self, batch: ClaimedBatch) -> None:
        """Start claiming the next batch in the background if the current batch is full, which indicates a backlog.

        After a crash, the current batch may contain claims that an earlier run prefetched. Their names would collide
        with the names in the next batch. In this case, do not prefetch.
        """
        following, max_messages = self._batch(2), self._taking.max_messages
        if batch.messages < max_messages or any(name.startswith(following.prefix + ".") for name in batch.claims):
            return
        self._prefetch.start(following, lambda: self._claimer.fill(following, max_messages, 0))

    def _batch(self, number: int) -> ClaimedBatch:
        """Return a batch without claims.

        ``number`` is the distance from the last committed batch: 1 for the current batch, 2 for the prefetched batch.
        """
        return ClaimedBatch(self._prefix(number), room=INLINED_BYTES)

    def _prefix(self, number: int) -> str:
        return f"{self.name}.{self._last + number}"

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise RunStopped("The run is stopping.")

    def _finish(self, batch: ClaimedBatch) -> None:
        """Process a batch until its results are committed. After a failure, bury the poison messages and try again.

        If no poison message is found, the batch is processed only once more. Raises ``RoundFailed`` if this attempt
        fails too, or if poison messages are not the cause.
        """
        again = True
        while batch.claims:
            try:
                self._work.run(self._round(batch.claims), batch.inlined, lambda found: self._bury(batch, found))
            except FAILURES as error:
                if self._committed():  # only the response was lost
                    return
                again = self._bury_poison(batch, error, again)
            else:
                if batch.claims and not self._committed():
                    raise self._failure("the server has no record of the round's commit")
                return

    def _committed(self) -> bool:
        """Return whether the server has committed the current batch, and record the commit.

        Raises ``Fenced`` if the batch is committed and another run has started since then.
        """
        try:
            last = self._client.committed(self.name)
        except ProducerNotFound:
            return False
        if last.batch <= self._last:
            return False
        with suppress(ClaimNotFound):
            self._queue.renew(f"{self._prefix(1)}.0", ttl=self._taking.ttl, fence=self._fence)
        self._last = last.batch
        self.totals.published += last.published
        return True

    def _bury_poison(self, batch: ClaimedBatch, error: Exception, again: bool) -> bool:
        """Find poison messages after a failed round, and move them to the dead-letter queue.

        Return whether messages were moved. Raises ``RoundFailed`` if poison messages are not the cause of the failure.

        If no poison message is found and ``again`` is true, return ``False``, so that the caller repeats the round. If
        ``again`` is false, the round was already repeated, and the method raises ``RoundFailed``.
        """
        if isinstance(extract_error(error), StageNotFound):
            raise self._failure(
                "the server keeps the results of a round only for stage_ttl seconds, and has dropped the results of "
                "this round. Make the rounds smaller (max_messages)"
            ) from error
        self._renew(batch.claims)
        if not self._buries or self._is_permission_error(error):
            raise self._failure(explain(error)) from error
        self._forbidden, self._allowed = set(), False
        ids = [one for held in batch.claims.values() for one in held]
        try:
            found = find_poison(
                ids,
                lambda some, keep: self._dry_run(batch, some, keep),
                self._most_poison,
                self.stopped.wait,
                batch.claim_count,
            )
        except InconclusiveSearch as inconclusive:
            raise self._failure(f"{explain(error)} ({inconclusive})") from error
        if not found and not again:
            raise self._failure(
                f"{explain(error)} (the round failed again, but each of its messages succeeds alone)"
            ) from error
        if self._forbidden & found.keys() and not self._allowed:
            raise self._failure(explain(error)) from error
        self._bury(batch, found)
        return bool(found)

    def _is_permission_error(self, error: Exception) -> bool:
        """Return ``True`` if a bad credential, a quota or a missing permission caused the error.

        A pipeline can choose a target queue for each message. In this case, return ``False`` for a missing permission,
        because it may concern the target queue of only one message.
        """
        cause = extract_error(error)
        if isinstance(cause, NotAuthenticated | QuotaExceeded):
            return True
        return isinstance(cause, NotAuthorized) and not self._work.names_queues

    def _dry_run(self, batch: ClaimedBatch, ids: Sequence[str], keep: bool) -> str | None:
        """Process some messages in a dry run. Return the reason of a failure, or ``None`` if the dry run succeeds.

        If ``keep`` is true, the dry run also sends the results to the server as uncommitted messages, to test whether
        the server accepts them. Raises ``RunStopped`` if the run must stop, and ``RoundFailed`` if a claim has expired
        or a permission is missing.
        """
        self._check_stopped()
        wanted = frozenset(ids)
        some = {name: found for name, held in batch.claims.items() if (found := [one for one in held if one in wanted])}
        this = self._round(some, dry=True)
        try:
            self._work.run(this, batch.inlined, lambda _: this, keep)
        except FAILURES as error:
            self._renew(some)  # raises an error if an expired claim or an outage is the cause
            if self._is_permission_error(error):
                raise self._failure(explain(error)) from error
            if isinstance(extract_error(error), NotAuthorized):
                self._forbidden.update(ids)
            return explain(error)
        self._allowed |= keep and self._work.staged_to_named_queues
        return None

    def _round(self, claims: MessageIds, dry: bool = False) -> Round:
        ids: dict[str, list[str] | None] = {name: [*held] for name, held in claims.items()}
        return Round(self.name, self._fence.epoch, self._last + 1, self._queue.name, ids, dry, self._work.tasks)

    def _bury(self, batch: ClaimedBatch, rejected: Mapping[str, str]) -> Round:
        """Move rejected messages to the dead-letter queue. Return the round without these messages.

        Raises ``Invalid`` if the queue has no dead-letter queue, or if a rejected message is not in the batch.
        """
        if not self._buries:
            raise Invalid(f"Queue {self._queue.name} has no dead-letter queue for messages that a stage rejects.")
        known = {one for held in batch.claims.values() for one in held}
        if not known.issuperset(rejected):
            raise Invalid("A stage rejects rows whose column id is not the id of a message.")
        for name, held in list(batch.claims.items()):
            some = {one: rejected[one] for one in held if one in rejected}
            for part in batch_burials(some, self._room):
                self._burials += 1
                key = f"{self.name}.{self._fence.epoch}.{self._burials}"
                with self._translate_lapse(name):
                    done = self._queue.settle(name, bury=part, key=key, fence=self._fence)
                self.totals.buried += done.buried
            batch.claims[name] = [one for one in held if one not in rejected]
            if not batch.claims[name]:
                del batch.claims[name]
                self._heartbeat.drop([name])
        return self._round(batch.claims)

    def _renew(self, claims: Iterable[str]) -> None:
        """Renew claims. If there are no claims, check that the server is available.

        Raises ``RoundFailed`` if a claim has expired, ``Fenced`` if another run has started, and ``Unavailable`` if the
        server is not available.
        """
        has_claims = False
        for name in claims:
            has_claims = True
            with self._translate_lapse(name):
                self._queue.renew(name, ttl=self._taking.ttl, fence=self._fence)
        if not has_claims:
            self._client.ping()

    @contextmanager
    def _translate_lapse(self, name: str) -> Generator[None, None, None]:
        try:
            yield
        except ClaimNotFound as error:
            raise self._failure(f"claim {name} has expired") from error

    def _failure(self, reason: str) -> RoundFailed:
        return RoundFailed(f"Round {self._last + 1} of pipeline {self.name} has failed and was released: {reason}")
