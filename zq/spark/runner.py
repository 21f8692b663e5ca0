# SPDX-License-Identifier: Apache-2.0
"""One run of a pipeline, round by round.

The claims of a round are named ``<name>.<batch>.<number>``, where batch is one more than the name's last commit. So a
runner that is started after another one died finds that one's claims, or finds that they were committed.
"""

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from zq.errors import ClaimNotFound, Invalid, ProducerNotFound, ZqError
from zq.model import Fence
from zq.spark.heartbeat import Heartbeat
from zq.spark.options import ClaimingOptions
from zq.spark.poison import Search, why
from zq.spark.rounds import Round
from zq.spark.taking import MOST_CLAIMS
from zq.spark.working import FAILURES, Work
from zq.wire.settling import Buried, Released

DEAD_LETTERS: Final = "_dead_letter_queue"
Held = dict[str, list[str]]
"""Ids of messages, by the claim that holds them."""


class RoundFailed(ZqError):
    """A round cannot be finished, and not because of single messages. They have been given back."""


class Totals(Struct):
    """What a run has done: messages taken, published, and buried."""

    rounds: int = 0
    taken: int = 0
    published: int = 0
    buried: int = 0


class Runner:
    """Has one round at a time."""

    def __init__(self, taking: ClaimingOptions, work: Work, most_poison: int) -> None:
        self.name = taking.consumer
        self.stopped = threading.Event()
        self.totals = Totals()
        self._taking = taking
        self._work = work
        self._most_poison = most_poison
        self._client = taking.connection.client()
        self._queue = self._client.queue(taking.queue)
        self._heart = Heartbeat(taking.connection, taking.queue, taking.ttl, taking.ttl / 3)
        self._buries = False
        self._size = 0
        self._fence = Fence(self.name, 0)
        self._last = 0
        """The batch that was committed last."""
        self._found = False
        """Whether claims of an earlier run have been looked for."""

    def begin(self, dead_letters: str | None) -> None:
        """From now on no other run of this name can work. Raises ``Invalid``."""
        own = self._queue.metadata().get(DEAD_LETTERS)
        if own and dead_letters and own != dead_letters:
            raise Invalid(f"Queue {self._queue.name} has {own} as {DEAD_LETTERS}, and the pipeline {dead_letters}.")
        if dead_letters and not own:
            self._queue.create()
            self._queue.update({DEAD_LETTERS: dead_letters})
        self._buries = bool(own or dead_letters)
        self._size = self._taking.claim_size or self._client.limits()["max_messages_per_claim_or_pop"]
        self._fence = self._client.fence(self.name)
        try:
            self._last = self._client.committed(self.name).batch
        except ProducerNotFound:
            self._last = 0

    def end(self) -> None:
        """Nothing is kept alive any more."""
        self._heart.stop()

    def reserve(self) -> Held:
        """The claims of the next round; none if there is nothing to do."""
        found = {} if self._found else self._take(wait=0, again=True)
        self._found = True
        return found or self._take(self._taking.wait)

    def work(self, claims: Held) -> bool:
        """A round. False if it was given back, since the run is to stop."""
        try:
            if self.stopped.is_set():
                self._give_back(claims)
                return False
            taken = sum(map(len, claims.values()))
            self._finish(claims)
        except BaseException:
            self._give_back(claims)
            raise
        finally:
            self._heart.let_go(list(claims))
        self.totals.rounds += 1
        self.totals.taken += taken
        return True

    def _take(self, wait: int, again: bool = False) -> Held:
        """``again``: also what an earlier run has left of this batch."""
        claims: Held = {}
        left, ends = self._taking.most, time.monotonic() + min(wait, 1)
        for number in range(min(MOST_CLAIMS, -(-left // self._size))):
            name = f"{self.name}.{self._last + 1}.{number}"
            claim = self._queue.claim(
                min(self._size, left), ttl=self._taking.ttl, wait=0 if claims else wait, name=name, fence=self._fence
            )
            if claim.messages:
                claims[name] = [message.id for message in claim.messages]
                self._heart.hold([name])
                left -= len(claim.messages)
            if left <= 0 or not (claim.messages or again):
                break
        if again:
            self._renew(claims)
        if not claims:
            self.stopped.wait(ends - time.monotonic())  # a server on which too many wait already answers at once
        return claims

    def _finish(self, claims: Held) -> None:
        """Try until the round is done, or raise."""
        again = True
        while claims:
            try:
                self._work.do(self._round(claims), lambda rejected: self._bury(claims, rejected))
            except FAILURES as error:
                if self._committed():  # and the answer was lost
                    return
                again = self._mend(claims, error, again)
            else:
                if claims and not self._committed():
                    raise self._failed("its commit is unknown to the server")
                return

    def _committed(self) -> bool:
        """Whether this round is."""
        try:
            last = self._client.committed(self.name)
        except ProducerNotFound:
            return False
        if last.batch <= self._last:
            return False
        self._last = last.batch
        self.totals.published += last.published
        return True

    def _mend(self, claims: Held, error: Exception, again: bool) -> bool:
        """Bury what fails by itself. Whether the round may be tried once more without that: it failed and nothing does.

        Raises ``RoundFailed``.
        """
        self._renew(claims)
        ids = [one for held in claims.values() for one in held]
        if not self._buries or self._fails(claims, [], keep=True):
            raise self._failed(why(error)) from error
        keep = self._fails(claims, ids, keep=False) is None
        if keep and self._fails(claims, ids, keep) is None:
            if not again:
                raise self._failed(why(error)) from error
            return False
        search = Search(lambda some: self._fails(claims, some, keep), self._most_poison)
        search.look(ids, known=True)
        if not search.found:
            raise self._failed(why(error)) from error
        if len(search.found) > self._most_poison:
            raise self._failed(f"more than {self._most_poison} messages fail, one by {why(error)}") from error
        self._bury(claims, search.found)
        return True

    def _fails(self, claims: Held, ids: Sequence[str], keep: bool) -> str | None:
        """Why work on these messages fails; None if it goes well. Nothing comes of it.

        ``keep``: results are staged, too, for the sake of what the sink refuses, and dropped; which takes longer.
        """
        wanted = frozenset(ids)
        some = {name: found for name, held in claims.items() if (found := [one for one in held if one in wanted])}
        this = self._round(some, dry=True)
        try:
            self._work.do(this, lambda _: this, keep)
        except FAILURES as error:
            self._renew(some)  # so that it is not for want of a claim or a server
            return why(error)
        return None

    def _round(self, claims: Mapping[str, list[str]], dry: bool = False) -> Round:
        told = {name: held if dry else None for name, held in claims.items()}
        return Round(self.name, self._fence.epoch, self._last + 1, self._queue.name, told, dry)

    def _bury(self, claims: Held, rejected: Mapping[str, str]) -> Round:
        """Takes messages out of their claims, and claims that hold nothing any more out of the round."""
        if not self._buries:
            raise Invalid(f"Queue {self._queue.name} has no dead letter queue for messages that a stage rejects.")
        known = {one for held in claims.values() for one in held}
        if not known.issuperset(rejected):
            raise Invalid("A stage rejects rows whose column id is that of no message.")
        for name, held in list(claims.items()):
            some = [Buried(one, rejected[one]) for one in held if one in rejected]
            if some:
                with self._holding(name):
                    self.totals.buried += self._queue.settle(name, bury=some, fence=self._fence).buried
            claims[name] = [one for one in held if one not in rejected]
            if not claims[name]:
                del claims[name]
                self._heart.let_go([name])
        return self._round(claims)

    def _renew(self, claims: Mapping[str, list[str]]) -> None:
        """Raises ``RoundFailed``, ``Fenced``, ``Unavailable``: then it is no message's fault."""
        for name in claims:
            with self._holding(name):
                self._queue.renew(name, ttl=self._taking.ttl, fence=self._fence)
        if not claims:
            self._client.ping()

    def _give_back(self, claims: Held) -> None:
        """Under the fence: another run may have claims of the same names."""
        for name, held in claims.items():
            try:
                self._queue.settle(name, release=map(Released, held), fence=self._fence)
            except ClaimNotFound:
                continue
            except ZqError:
                return  # they lapse

    @contextmanager
    def _holding(self, name: str) -> Generator[None, None, None]:
        try:
            yield
        except ClaimNotFound as error:
            raise self._failed(f"claim {name} has lapsed") from error

    def _failed(self, reason: str) -> RoundFailed:
        return RoundFailed(f"Round {self._last + 1} of pipeline {self.name} has failed and was given back: {reason}")
