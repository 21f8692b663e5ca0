# SPDX-License-Identifier: Apache-2.0
"""Striped locks and group commit, for all drivers: threads of one process that want the same thing at the same time."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Generic, TypeVar

from zq.errors import Unavailable

Request = TypeVar("Request")
Answer = TypeVar("Answer")

# Locks for all names there are; two names that share one wait for each other without need.
STRIPES: Final = 256
UNLIMITED: Final = 1 << 62


class StripedLocks:
    """A bounded number of locks for any number of names. Safe for any number of threads."""

    def __init__(self, timeout: float | None = None) -> None:
        """``timeout``: seconds for which a thread waits for one lock; None = for ever."""
        self._locks = [threading.Lock() for _ in range(STRIPES)]
        self._timeout = -1 if timeout is None else timeout

    @contextmanager
    def locked(self, *names: Hashable) -> Iterator[None]:
        """Lock the names. A verb locks all its names in one call, which prevents deadlocks.

        Raises ``Unavailable`` without a lock if a lock is not free in time.
        """
        with ExitStack() as acquired:
            for stripe in sorted({hash(name) % STRIPES for name in names}):
                if not self._locks[stripe].acquire(timeout=self._timeout):
                    raise Unavailable
                acquired.callback(self._locks[stripe].release)
            yield


class _Member(Generic[Request, Answer]):
    """A submitted request and its thread, which is woken once: with an answer, or to lead the next group."""

    __slots__ = ("answer", "failure", "leads", "request", "woken")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.woken = threading.Lock()
        self.woken.acquire()
        self.leads = False
        self.answer: Answer
        self.failure: BaseException | None = None


class GroupCommit(Generic[Request, Answer]):
    """A group commit: one group of concurrent requests is executed at a time, by the thread of its leader.

    A request that finds no running group leads one at once, alone. Requests that arrive meanwhile become followers of
    the next group, in order of arrival. A single request never waits for others. After a larger group, its members are
    likely to return almost together; a leader that lingers for them prevents that the first one runs alone.
    """

    def __init__(
        self,
        execute: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        *,
        weigh: Callable[[Request], int] = lambda _: 1,
        capacity: int = UNLIMITED,
        timeout: float | None = None,
        linger: float = 0.0,
        keys: Callable[[Request], Sequence[Hashable]] = lambda _: (),
        one_by_one_after: tuple[type[Exception], ...] = (),
    ) -> None:
        """Create a group commit.

        ``execute`` returns a group's answers in order. An answer that is an exception is raised for its request only;
        an exception that ``execute`` raises is raised for all requests.

        Args:
            weigh: Returns the weight of a request.
            capacity: Maximum sum of weights in a group with several requests.
            timeout: Seconds for which a request waits to join a group.
            linger: Maximum seconds for which a leader waits for followers.
            keys: Returns a request's keys; requests of a group that share a key are executed one by one.
            one_by_one_after: After one of these errors a group is executed one by one, so that no request fails because
                of
                another one.
        """
        self._execute = execute
        self._weigh = weigh
        self._capacity = capacity
        self._timeout = -1 if timeout is None else timeout
        self._linger = linger
        self._keys = keys
        self._one_by_one_after = one_by_one_after
        self._lock = threading.Lock()
        self._waiting: list[_Member[Request, Answer]] = []
        self._last_size = 1
        self._awaited = 0  # how many followers the leader lingers for; 0 = it does not
        self._gathered = threading.Event()
        self.busy = False

    def submit(self, request: Request) -> Answer:
        """Execute a request and return its answer, or raise its error.

        Raises ``Unavailable`` if its group does not start in time; then the request is not executed.
        """
        member = _Member[Request, Answer](request)
        with self._lock:
            if self.busy:
                self._waiting.append(member)
                if 0 < self._awaited <= len(self._waiting):
                    self._gathered.set()
            else:
                self.busy = member.leads = True
        if not member.leads:
            self._follow(member)
        if member.leads:
            self._lead(member)
        if member.failure is not None:
            raise member.failure
        return member.answer

    def _follow(self, member: _Member[Request, Answer]) -> None:
        if member.woken.acquire(timeout=self._timeout):
            return
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
                raise Unavailable
        member.woken.acquire()  # its group is under way; the leader came earlier and has a deadline of its own

    def _lead(self, leader: _Member[Request, Answer]) -> None:
        if self._linger:
            self._wait_for_followers()
        group = [leader, *self._followers(self._weigh(leader.request))]
        self._last_size = len(group)
        try:
            answers = self._answers([member.request for member in group])
            for member, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    member.failure = answer
                else:
                    member.answer = answer
        except BaseException as failure:  # noqa: BLE001 (each of them raises it)
            for member in group:
                member.failure = failure
        finally:
            with self._lock:
                successor = self._waiting.pop(0) if self._waiting else None
                self.busy = successor is not None
            if successor is not None:
                successor.leads = True
                successor.woken.release()
            for member in group[1:]:
                member.woken.release()

    def _wait_for_followers(self) -> None:
        """Linger until there are as many members as the last group had."""
        with self._lock:
            if self._last_size <= 1 + len(self._waiting):
                return
            self._awaited = self._last_size - 1
            self._gathered.clear()
        self._gathered.wait(self._linger)
        self._awaited = 0

    def _followers(self, weight: int) -> list[_Member[Request, Answer]]:
        """Return the requests that have waited longest and fit next to the leader's weight."""
        with self._lock:
            count = 0
            for member in self._waiting:
                weight += self._weigh(member.request)
                if weight > self._capacity:
                    break
                count += 1
            followers, self._waiting = self._waiting[:count], self._waiting[count:]
        return followers

    def _answers(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        """Execute the group together if that is possible, else one by one."""
        if len(requests) == 1:
            return self._execute(requests)
        keys = [key for request in requests for key in self._keys(request)]
        if len(set(keys)) == len(keys):
            try:
                return self._execute(requests)
            except self._one_by_one_after:
                pass
        return [self._alone(request) for request in requests]

    def _alone(self, request: Request) -> Answer | Exception:
        try:
            return self._execute([request])[0]
        except Exception as failure:  # noqa: BLE001 (its own thread raises it)
            return failure
