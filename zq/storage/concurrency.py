# SPDX-License-Identifier: Apache-2.0
"""Striped locks and group commit for concurrent threads of one process. All drivers use them."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, Generic, TypeVar

from zq.errors import Unavailable

Request = TypeVar("Request")
Answer = TypeVar("Answer")

# Number of locks in a ``StripedLocks``. Threads whose names share a lock wait for each other unnecessarily.
STRIPES: Final = 256
UNLIMITED: Final = 1 << 62


class StripedLocks:
    """A fixed number of locks for any number of names. A hash of a name selects the lock."""

    def __init__(self, timeout: float | None = None) -> None:
        """Create the locks.

        A thread waits for a lock at most ``timeout`` seconds. If ``timeout`` is None, it waits without a limit.
        """
        self._locks = [threading.Lock() for _ in range(STRIPES)]
        self._timeout = -1 if timeout is None else timeout

    @contextmanager
    def locked(self, *names: Hashable) -> Iterator[None]:
        """Return a context manager that holds the locks of the names. Raises ``Unavailable`` after a timeout.

        To prevent deadlocks, a thread must lock all its names in one call.
        """
        with ExitStack() as acquired:
            for stripe in sorted({hash(name) % STRIPES for name in names}):
                if not self._locks[stripe].acquire(timeout=self._timeout):
                    raise Unavailable
                acquired.callback(self._locks[stripe].release)
            yield


class _Member(Generic[Request, Answer]):
    """A request in a group commit, and its result.

    The request's thread waits for the lock ``woken``. It then returns the result or becomes the leader of a new group.
    """

    __slots__ = ("answer", "failure", "is_leader", "request", "woken")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.woken = threading.Lock()
        self.woken.acquire()
        self.is_leader = False
        self.answer: Answer
        self.failure: BaseException | None = None


class GroupCommit(Generic[Request, Answer]):
    """A group commit, which executes concurrent requests in groups.

    The thread of one request of the group, the leader, executes the group. The other requests are its followers.

    At most ``parallel`` groups run at a time. If fewer are running, a request immediately becomes the leader of a new
    group. Otherwise, requests wait for the next group, in order of arrival. The first of them becomes its leader.

    With ``linger``, the next leader waits briefly for followers: members of a large group tend to submit their next
    requests at almost the same time. A leader does not linger after a group of one request.
    """

    def __init__(
        self,
        execute: Callable[[Sequence[Request]], Sequence[Answer | Exception]],
        *,
        weigh: Callable[[Request], int] = lambda _: 1,
        capacity: int = UNLIMITED,
        timeout: float | None = None,
        linger: float = 0.0,
        parallel: int = 1,
        keys: Callable[[Request], Sequence[Hashable]] = lambda _: (),
        one_by_one_after: tuple[type[Exception], ...] = (),
    ) -> None:
        """Create a group commit.

        Args:
            execute: Returns the results of a group in order. An exception among the results is raised for its own
                request only. If ``execute`` raises an exception, it is raised for all requests of the group.
            capacity: Maximum total weight of a group with several requests, as computed by ``weigh``.
            timeout: The maximum time in seconds that a request waits for its group to start; None = no limit.
            linger: The maximum time in seconds that a leader waits for followers; 0 = no wait. If it is not 0,
                ``parallel`` must be 1.
            keys: Returns a request's keys. If two requests of a group share a key, the group's requests are executed
                one by one.
            one_by_one_after: Errors of ``execute`` after which the group's requests are executed again one by one, so
                that no request fails because of another one.
        """
        self._execute = execute
        self._weigh = weigh
        self._capacity = capacity
        self._timeout = -1 if timeout is None else timeout
        self._linger = linger
        self._parallel = parallel
        self._keys = keys
        self._one_by_one_after = one_by_one_after
        self._lock = threading.Lock()
        self._waiting: list[_Member[Request, Answer]] = []
        self._last_size = 1
        self._awaited = 0  # number of followers for which a leader lingers
        self._gathered = threading.Event()
        self._running = 0

    def submit(self, request: Request) -> Answer:
        """Execute a request in a group and return its result. Raises ``Unavailable`` if the group starts too late."""
        member = _Member[Request, Answer](request)
        with self._lock:
            if self._running == self._parallel:
                self._waiting.append(member)
                if 0 < self._awaited <= len(self._waiting):
                    self._gathered.set()
            else:
                self._running += 1
                member.is_leader = True
        if not member.is_leader:
            self._follow(member)
        if member.is_leader:
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
        member.woken.acquire()  # the group has started before the deadline, or this member leads the next group

    def _lead(self, leader: _Member[Request, Answer]) -> None:
        if self._linger:
            self._wait_for_followers()
        group = [leader, *self._take_followers(self._weigh(leader.request))]
        self._last_size = len(group)
        try:
            answers = self._execute_all([member.request for member in group])
            for member, answer in zip(group, answers, strict=True):
                if isinstance(answer, Exception):
                    member.failure = answer
                else:
                    member.answer = answer
        except BaseException as failure:  # noqa: BLE001 (each member's thread raises it)
            for member in group:
                member.failure = failure
        finally:
            with self._lock:
                successor = self._waiting.pop(0) if self._waiting else None
                self._running -= successor is None
            if successor is not None:
                successor.is_leader = True
                successor.woken.release()
            for member in group[1:]:
                member.woken.release()

    def _wait_for_followers(self) -> None:
        """Wait until the group is as large as the previous group, but for at most ``linger`` seconds."""
        with self._lock:
            if self._last_size <= 1 + len(self._waiting):
                return
            self._awaited = self._last_size - 1
            self._gathered.clear()
        self._gathered.wait(self._linger)
        self._awaited = 0

    def _take_followers(self, weight: int) -> list[_Member[Request, Answer]]:
        """Remove the oldest waiting requests from the waiting list, and return them as members of the leader's group.

        ``weight`` is the weight of the leader's request. The total weight of the group does not exceed the capacity.
        """
        with self._lock:
            count = 0
            for member in self._waiting:
                weight += self._weigh(member.request)
                if weight > self._capacity:
                    break
                count += 1
            followers, self._waiting = self._waiting[:count], self._waiting[count:]
        return followers

    def _execute_all(self, requests: Sequence[Request]) -> Sequence[Answer | Exception]:
        if len(requests) == 1:
            return self._execute(requests)
        keys = [key for request in requests for key in self._keys(request)]
        if len(set(keys)) == len(keys):
            try:
                return self._execute(requests)
            except self._one_by_one_after:
                pass
        return [self._execute_alone(request) for request in requests]

    def _execute_alone(self, request: Request) -> Answer | Exception:
        try:
            return self._execute([request])[0]
        except Exception as failure:  # noqa: BLE001 (the request's own thread raises it)
            return failure
