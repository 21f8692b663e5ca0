# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for the same thing goes together: one thread asks the store for all of them.

A request that finds nobody at work goes at once, alone. Those that come meanwhile wait, and go together when it is
back, the first of them in the lead. Who comes alone never waits for company. But where the group before was larger, its
members are about to come again, all but together: then ``linger`` saves the first of them from going without the rest.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from zq.errors import Unavailable

Request = TypeVar("Request")
Answer = TypeVar("Answer")
LINGER: Final = 0.003
"""Seconds at most, where a group costs a wait for the journal: see decision 0016."""


class _Turn(Generic[Request, Answer]):
    """One waiting thread: woken once, either served or to lead."""

    __slots__ = ("answer", "failure", "gate", "leads", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False
        self.answer: Answer
        self.failure: BaseException | None = None


class Combiner(Generic[Request, Answer]):
    """Serves requests in groups, one group at a time, in the order in which they came.

    ``serve`` gets the requests of a group and returns their answers in order; an answer that is an exception is raised
    to its request only, one that ``serve`` raises to all. The weights of a group sum up to ``capacity`` at most, unless
    it is a single request. A request waits ``patience`` seconds at most.
    """

    def __init__(
        self,
        serve: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        weigh: Callable[[Request], int],
        capacity: int,
        patience: float,
        linger: float = 0.0,
    ) -> None:
        self._serve = serve
        self._weigh = weigh
        self._capacity = capacity
        self._patience = patience
        self._lock = threading.Lock()
        self._waiting: list[_Turn[Request, Answer]] = []
        self._linger = linger
        self._last = 1
        self._missed = 0
        """How many the leader lingers for; 0 = it does not."""
        self._gathered = threading.Event()
        self.busy = False

    def ask(self, request: Request) -> Answer:
        """The answer, or what was raised for it. Raises ``Unavailable`` when the turn does not come in time."""
        turn = _Turn[Request, Answer](request)
        with self._lock:
            if self.busy:
                self._waiting.append(turn)
                if 0 < self._missed <= len(self._waiting):
                    self._gathered.set()
            else:
                self.busy = turn.leads = True
        if not turn.leads:
            self._wait(turn)
        if turn.leads:
            self._lead(turn)
        if turn.failure is not None:
            raise turn.failure
        return turn.answer

    def _wait(self, turn: _Turn[Request, Answer]) -> None:
        if turn.gate.acquire(timeout=self._patience):
            return
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                raise Unavailable("The store is too slow to serve now. Try again later.")
        turn.gate.acquire()  # its group is under way; who leads it came earlier and keeps to a deadline of its own

    def _lead(self, leader: _Turn[Request, Answer]) -> None:
        if self._linger:
            self._gather()
        group = [leader, *self._company(self._weigh(leader.request))]
        self._last = len(group)
        try:
            answers = self._serve([turn.request for turn in group])
            for turn, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    turn.failure = answer
                else:
                    turn.answer = answer
        except BaseException as failure:  # noqa: BLE001 (each of them raises it)
            for turn in group:
                turn.failure = failure
        finally:
            with self._lock:
                successor = self._waiting.pop(0) if self._waiting else None
                self.busy = successor is not None
            if successor is not None:
                successor.leads = True
                successor.gate.release()
            for turn in group[1:]:
                turn.gate.release()

    def _gather(self) -> None:
        """Wait, not for long, until as many are here as went together the last time."""
        with self._lock:
            if self._last <= 1 + len(self._waiting):
                return
            self._missed = self._last - 1
            self._gathered.clear()
        self._gathered.wait(self._linger)
        self._missed = 0

    def _company(self, weight: int) -> list[_Turn[Request, Answer]]:
        """Take those from the front of the line that still fit."""
        with self._lock:
            count = 0
            for turn in self._waiting:
                weight += self._weigh(turn.request)
                if weight > self._capacity:
                    break
                count += 1
            company, self._waiting = self._waiting[:count], self._waiting[count:]
        return company
