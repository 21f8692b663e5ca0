# SPDX-License-Identifier: Apache-2.0
"""One run of a pipeline, round by round.

The claims of a round are named ``<name>.<batch>.<number>``, where batch is one more than the name's last commit, or two
more if they were prefetched. So a runner that is started after another one died finds that one's claims, or finds that
they were committed.
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

# The rule that names the dead letter queue.
DEAD_LETTERS: Final = "_dead_letter_queue"
# The rule that says how often a message is claimed.
MOST_CLAIMED: Final = "_max_claim_count"
# Bytes of a round's messages that the driver inlines, so that Spark need not ask the server for them.
INLINED_BYTES: Final = 32 * 2**20
# Ids of messages, by the claim that holds them.
Held = Mapping[str, Sequence[str]]


class RoundFailed(ZqError):
    """A round cannot be finished, and not because of single messages. They have been released."""


class Totals(Struct):
    """What a run has done: messages claimed, published, and buried."""

    rounds: int = 0
    taken: int = 0
    published: int = 0
    buried: int = 0


class Runner:
    """Works on one round at a time, and prefetches the next one if there is a backlog."""

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
        """Bytes of dead letters in a request."""
        self._burials = 0
        self._last = 0
        """The batch that was committed last."""
        self._adopted = False
        """Whether claims of an earlier run have been looked for."""
        self._forbidden = set[str]()
        """Messages whose results the token does not allow, of one search."""
        self._allowed = False
        """Whether it allowed those of another one."""

    def begin(self, dead_letters: str | None) -> None:
        """From now on no other run of this name can work. Raises ``Invalid``."""
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
        if self._buries and known.get(MOST_CLAIMED):
            warnings.warn(
                f"Queue {self._queue.name} has {MOST_CLAIMED}: rounds that fail count, and messages that are taken so "
                "often become dead letters, good ones too.",
                stacklevel=3,
            )
        with suppress(ProducerNotFound):
            self._last = self._client.committed(self.name).batch

    def end(self) -> None:
        """Nothing is held or kept alive any more."""
        if (left := self._prefetch.stop()) is not None:
            self._claimer.release(left)
        self._heartbeat.stop()

    def claim(self) -> ClaimedBatch:
        """What the next round is to work on; no claims if there is nothing to do."""
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
        """A round. False if it was released, since the run is to stop."""
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
        """If there is a backlog. Not under names that are in use: after a run that died, or a round without commit."""
        following, most = self._batch(2), self._taking.most
        if batch.messages < most or any(name.startswith(following.prefix + ".") for name in batch.claims):
            return
        self._prefetch.start(following, lambda: self._claimer.fill(following, most, 0))

    def _batch(self, number: int) -> ClaimedBatch:
        """An empty batch, so many behind the one that was committed last."""
        return ClaimedBatch(self._prefix(number), room=INLINED_BYTES)

    def _prefix(self, number: int) -> str:
        return f"{self.name}.{self._last + number}"

    def _check_stopped(self) -> None:
        if self.stopped.is_set():
            raise RunStopped("The run was asked to stop.")

    def _finish(self, batch: ClaimedBatch) -> None:
        """Try until the round is done, or raise."""
        again = True
        while batch.claims:
            try:
                self._work.do(self._round(batch.claims), batch.inlined, lambda found: self._bury(batch, found))
            except FAILURES as error:
                if self._committed():  # and the answer was lost
                    return
                again = self._bury_poison(batch, error, again)
            else:
                if batch.claims and not self._committed():
                    raise self._failed("its commit is unknown to the server")
                return

    def _committed(self) -> bool:
        """Whether this round is. Raises ``Fenced`` if it was by another run."""
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
        """Bury what fails by itself. Whether the round may be tried once more without that: it failed and nothing does.

        Raises ``RoundFailed``.
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
            raise self._failed(f"{why(error)} (its messages go well in a second look)") from error
        if self._forbidden & found.keys() and not self._allowed:
            raise self._failed(why(error)) from error
        self._bury(batch, found)
        return bool(found)

    def _is_of_the_token(self, error: Exception) -> bool:
        """Whether this is refused of any message: only a row that names its queue may name one that is forbidden."""
        cause = reason(error)
        if isinstance(cause, NotAuthenticated | QuotaExceeded):
            return True
        return isinstance(cause, NotAuthorized) and not self._work.names_queues

    def _fails(self, batch: ClaimedBatch, ids: Sequence[str], keep: bool) -> str | None:
        """Why work on these messages fails; None if it goes well. Nothing comes of it.

        ``keep``: results are staged, too, and dropped; which takes longer. Raises ``RunStopped``, ``RoundFailed``.
        """
        self._check_stopped()
        wanted = frozenset(ids)
        some = {name: found for name, held in batch.claims.items() if (found := [one for one in held if one in wanted])}
        this = self._round(some, dry=True)
        try:
            self._work.do(this, batch.inlined, lambda _: this, keep)
        except FAILURES as error:
            self._renew(some)  # so that it is not for want of a claim or a server
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
        """Takes messages out of their claims, and claims that hold nothing any more out of the round."""
        if not self._buries:
            raise Invalid(f"Queue {self._queue.name} has no dead letter queue for messages that a stage rejects.")
        known = {one for held in batch.claims.values() for one in held}
        if not known.issuperset(rejected):
            raise Invalid("A stage rejects rows whose column id is that of no message.")
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
        """Raises ``RoundFailed``, ``Fenced``, ``Unavailable``: then it is no message's fault."""
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
        return RoundFailed(f"Round {self._last + 1} of pipeline {self.name} has failed and was given back: {reason}")
