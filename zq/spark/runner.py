# SPDX-License-Identifier: Apache-2.0
"""One run of a pipeline, round by round.

The claims of a round are named ``<name>.<batch>.<number>``. The batch is one more than that of the last commit, or two
more for prefetched claims. A runner that replaces a dead one therefore finds the claims of its predecessor, or finds
that they were committed.
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
from zq.spark.failures import reason, why
from zq.spark.options import ClaimingOptions
from zq.spark.poison import Inconclusive, RunStopped, burials, poison
from zq.spark.rounds import FAILURES, Round, Work

# Metadata key of the dead-letter queue.
DEAD_LETTERS: Final = "_dead_letter_queue"
# Metadata key of the maximum claim count.
MAX_CLAIM_COUNT: Final = "_max_claim_count"
# Maximum bytes of a round's messages that the driver inlines, so that Spark need not request them.
INLINED_BYTES: Final = 32 * 2**20
# Message ids by claim.
Held = Mapping[str, Sequence[str]]


class RoundFailed(ZqError):
    """A round that failed for a reason other than single messages. Its messages were released."""


class Totals(Struct):
    """The totals of a run: messages claimed, published and buried."""

    rounds: int = 0
    taken: int = 0
    published: int = 0
    buried: int = 0


class Runner:
    """A runner that processes one round at a time, and prefetches the next one if there is a backlog."""

    def __init__(self, taking: ClaimingOptions, work: Work, most_poison: int) -> None:
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
        """The last committed batch."""
        self._adopted = False
        """Whether claims of an earlier run have been searched for."""
        self._forbidden = set[str]()
        """Messages of one search whose results the token does not allow."""
        self._allowed = False
        """Whether the token allowed results of another message."""

    def begin(self, dead_letters: str | None) -> None:
        """Start the run and fence off all other runs of this name. Raises ``Invalid``."""
        if not self._queue.exists():
            warnings.warn(f"There is no queue {self._queue.name} yet.", stacklevel=3)
        self._fence = self._client.fence(self.name)
        self._claimer = BatchClaimer(self._taking, self._fence, self._heartbeat)
        self._room = self._client.limits()["max_messages_post_size"]
        known = self._queue.metadata()
        own = known.get(DEAD_LETTERS)
        if own and dead_letters and own != dead_letters:
            raise Invalid(f"Queue {self._queue.name} has {own} as {DEAD_LETTERS}, and the pipeline {dead_letters}.")
        if dead_letters and not own:
            self._queue.create()
            self._queue.update({DEAD_LETTERS: dead_letters})
        self._buries = bool(own or dead_letters)
        if self._buries and known.get(MAX_CLAIM_COUNT):
            warnings.warn(
                f"Queue {self._queue.name} has {MAX_CLAIM_COUNT}: failed rounds count as claims, so valid messages may "
                "become dead letters, too.",
                stacklevel=3,
            )
        with suppress(ProducerNotFound):
            self._last = self._client.committed(self.name).batch

    def end(self) -> None:
        """Release all claims and stop renewals."""
        if (left := self._prefetch.stop()) is not None:
            self._claimer.release(left)
        self._heartbeat.stop()

    def claim(self) -> ClaimedBatch:
        """Return the batch of the next round; without claims if there is nothing to do."""
        if not self._adopted:
            self._adopted = True
            found = self._batch(1)
            self._claimer.adopt(found, [self._prefix(1), self._prefix(2)])
            if found.claims:
                return found
        batch = self._prefetch.take() or self._batch(1)
        self._claimer.fill(batch, self._taking.most, self._taking.wait)
        return batch

    def work(self, batch: ClaimedBatch) -> bool:
        """Run a round. Return ``False`` if it was released because the run must stop."""
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
        """Prefetch if there is a backlog, but not under names in use after a dead run or a round without commit."""
        following, most = self._batch(2), self._taking.most
        if batch.messages < most or any(name.startswith(following.prefix + ".") for name in batch.claims):
            return
        self._prefetch.start(following, lambda: self._claimer.fill(following, most, 0))

    def _batch(self, number: int) -> ClaimedBatch:
        """Return an empty batch, ``number`` batches after the last committed one."""
        return ClaimedBatch(self._prefix(number), room=INLINED_BYTES)

    def _prefix(self, number: int) -> str:
        return f"{self.name}.{self._last + number}"

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise RunStopped("The run is stopping.")

    def _finish(self, batch: ClaimedBatch) -> None:
        """Repeat the round until it is complete, or raise."""
        again = True
        while batch.claims:
            try:
                self._work.do(self._round(batch.claims), batch.inlined, lambda found: self._bury(batch, found))
            except FAILURES as error:
                if self._committed():  # committed, but the answer was lost
                    return
                again = self._bury_poison(batch, error, again)
            else:
                if batch.claims and not self._committed():
                    raise self._failed("the server does not know its commit")
                return

    def _committed(self) -> bool:
        """Return whether this round is committed. Raises ``Fenced`` if another run committed it."""
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
        """Bury the messages that fail by themselves. Raises ``RoundFailed``.

        Return whether the round may be repeated without burial, because nothing fails any more.
        """
        if isinstance(reason(error), StageNotFound):
            raise self._failed(
                "the server has dropped its results, which it keeps for stage_ttl seconds: make rounds smaller "
                "(max_messages)"
            ) from error
        self._renew(batch.claims)
        if not self._buries or self._is_of_the_token(error):
            raise self._failed(why(error)) from error
        self._forbidden, self._allowed = set(), False
        ids = [one for held in batch.claims.values() for one in held]
        try:
            found = poison(
                ids,
                lambda some, keep: self._fails(batch, some, keep),
                self._most_poison,
                self.stopped.wait,
                batch.claim_count,
            )
        except Inconclusive as inconclusive:
            raise self._failed(f"{why(error)} ({inconclusive})") from error
        if not found and not again:
            raise self._failed(f"{why(error)} (its messages succeed in a second attempt)") from error
        if self._forbidden & found.keys() and not self._allowed:
            raise self._failed(why(error)) from error
        self._bury(batch, found)
        return bool(found)

    def _is_of_the_token(self, error: Exception) -> bool:
        """Return whether the token refuses every message; only a row that names its queue may name a forbidden one."""
        cause = reason(error)
        if isinstance(cause, NotAuthenticated | QuotaExceeded):
            return True
        return isinstance(cause, NotAuthorized) and not self._work.names_queues

    def _fails(self, batch: ClaimedBatch, ids: Sequence[str], keep: bool) -> str | None:
        """Return why a dry run with these messages fails, or ``None``.

        Args:
            keep: Whether results are also staged and dropped, which takes longer.

        Raises ``RunStopped``, ``RoundFailed``.
        """
        self._check_stopped()
        wanted = frozenset(ids)
        some = {name: found for name, held in batch.claims.items() if (found := [one for one in held if one in wanted])}
        this = self._round(some, dry=True)
        try:
            self._work.do(this, batch.inlined, lambda _: this, keep)
        except FAILURES as error:
            self._renew(some)  # rules out a missing claim or server as the cause
            if self._is_of_the_token(error):
                raise self._failed(why(error)) from error
            if isinstance(reason(error), NotAuthorized):
                self._forbidden.update(ids)
            return why(error)
        self._allowed |= keep and self._work.wrote
        return None

    def _round(self, claims: Held, dry: bool = False) -> Round:
        ids: dict[str, list[str] | None] = {name: [*held] for name, held in claims.items()}
        return Round(self.name, self._fence.epoch, self._last + 1, self._queue.name, ids, dry, self._work.tasks)

    def _bury(self, batch: ClaimedBatch, rejected: Mapping[str, str]) -> Round:
        """Remove messages from their claims, and empty claims from the round."""
        if not self._buries:
            raise Invalid(f"Queue {self._queue.name} has no dead-letter queue for messages that a stage rejects.")
        known = {one for held in batch.claims.values() for one in held}
        if not known.issuperset(rejected):
            raise Invalid("A stage rejects rows whose column id is not the id of a message.")
        for name, held in list(batch.claims.items()):
            some = {one: rejected[one] for one in held if one in rejected}
            for part in burials(some, self._room):
                self._burials += 1
                key = f"{self.name}.{self._fence.epoch}.{self._burials}"
                with self._holding(name):
                    done = self._queue.settle(name, bury=part, key=key, fence=self._fence)
                self.totals.buried += done.buried
            batch.claims[name] = [one for one in held if one not in rejected]
            if not batch.claims[name]:
                del batch.claims[name]
                self._heartbeat.drop([name])
        return self._round(batch.claims)

    def _renew(self, claims: Iterable[str]) -> None:
        """Renew claims. Raises ``RoundFailed``, ``Fenced`` or ``Unavailable``, which are not the fault of a message."""
        asked = False
        for name in claims:
            asked = True
            with self._holding(name):
                self._queue.renew(name, ttl=self._taking.ttl, fence=self._fence)
        if not asked:
            self._client.ping()

    @contextmanager
    def _holding(self, name: str) -> Generator[None, None, None]:
        try:
            yield
        except ClaimNotFound as error:
            raise self._failed(f"claim {name} has lapsed") from error

    def _failed(self, reason: str) -> RoundFailed:
        return RoundFailed(f"Round {self._last + 1} of pipeline {self.name} has failed and was released: {reason}")
