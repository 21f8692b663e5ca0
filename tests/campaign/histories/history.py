# SPDX-License-Identifier: Apache-2.0
"""The calls of many workers on one store and their times, as input of the history checker.

Every call has its start and end on CLOCK_MONOTONIC, which all processes of a machine share, and its outcome. A call
took effect, if at all, at one instant between start and end; ``checker`` draws only conclusions that hold for every
such instant. ``load`` makes the calls, ``targets`` executes them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from zq.model import QueueRef

T = TypeVar("T")

OK = "ok"
# The call certainly had no effect.
FAILED = "failed"
# The response was lost or was a 503: the call may take effect, also a little later.
UNKNOWN = "unknown"


class Refused(Exception):
    """The store rejected the call, which had no effect."""


class Away(Exception):
    """The connection was refused: the call never reached the store."""


class Unsure(Exception):
    """The call may have taken effect."""


class New(NamedTuple):
    """A message to post. Its body is its unique name: ``project/queue/producer/serial``."""

    name: str
    ttl: float
    delay: float = 0


class Seen(NamedTuple):
    """A message in a response; ``claim`` may be "", and ``count`` is -1 if the target does not report it."""

    name: str
    id: str
    claim: str = ""
    count: int = -1


def home(name: str) -> QueueRef:
    """Return the queue to which a message was posted."""
    project, queue, _ = name.split("/", 2)
    return QueueRef(project, queue)


class Target(Protocol):
    """The operations of workers. Each may raise ``Refused``, ``Away`` and ``Unsure``."""

    def prepare(self, queue: QueueRef, *, delayed: bool) -> None:
        """Create the queue; if ``delayed``, its messages may have delays."""
        ...

    def remove(self, queue: QueueRef) -> None:
        """Delete the queue and its messages."""
        ...

    def post(self, queue: QueueRef, messages: Sequence[New]) -> None: ...

    def claim(self, queue: QueueRef, ttl: float, grace: float, limit: int) -> tuple[str, list[Seen]]:
        """Return the claim's id and its messages; ("", []) if no message was ready."""
        ...

    def renew(self, queue: QueueRef, claim: str, ttl: float, grace: float) -> None: ...

    def release(self, queue: QueueRef, claim: str) -> None: ...

    def delete(self, queue: QueueRef, message: str, claim: str) -> None: ...

    def pop(self, queue: QueueRef, limit: int) -> list[Seen]: ...

    def page(self, queue: QueueRef, marker: str, limit: int, *, free: bool) -> tuple[list[Seen], str]:
        """Return a page after ``marker`` ("" is the start) and the next marker; if ``free``, only ready messages."""
        ...


@dataclass(slots=True)
class Call:
    """A call; ``posted`` and ``seen`` are its input and output messages, ``name`` is the deleted message."""

    verb: str
    queue: QueueRef
    worker: str
    start: float = 0
    end: float = 0
    outcome: str = UNKNOWN
    posted: tuple[New, ...] = ()
    seen: tuple[Seen, ...] = ()
    name: str = ""
    claim: str = ""
    ttl: float = 0
    grace: float = 0
    limit: int = 0
    reader: str = ""
    """The walk by markers to which a page belongs; "" for a page of only ready messages."""
    why: str = ""

    def __str__(self) -> str:
        names = [message.name for message in self.posted or self.seen] or [self.name] * bool(self.name)
        listed = " ".join(names[:6]) + (" …" if len(names) > 6 else "")
        claim = f" [claim {self.claim}]" if self.claim else ""
        ttl = f" ttl {self.ttl:g}" if self.ttl else ""
        moments = f"{self.start:.3f} to {self.end:.3f}"
        why = f" ({self.why})" if self.why else ""
        return f"{moments} {self.worker}: {self.verb} {'/'.join(self.queue)} {self.outcome}{why}{claim}{ttl}: {listed}"


class Client:
    """A worker's client of a target that appends every call to ``calls``, which clients may share.

    A method returns None if there was no response.
    """

    def __init__(self, target: Target, worker: str, calls: list[Call]) -> None:
        self.worker = worker
        self._target = target
        self._calls = calls

    def post(self, queue: QueueRef, messages: Sequence[New]) -> bool:
        call = Call("post", queue, self.worker, posted=tuple(messages))
        self._carry_out(call, lambda: self._target.post(queue, messages))
        return call.outcome == OK

    def claim(self, queue: QueueRef, ttl: float, grace: float, limit: int) -> tuple[str, list[Seen]] | None:
        call = Call("claim", queue, self.worker, ttl=ttl, grace=grace, limit=limit)

        def claim() -> tuple[str, list[Seen]]:
            call.claim, seen = self._target.claim(queue, ttl, grace, limit)
            call.seen = tuple(seen)
            return call.claim, seen

        return self._carry_out(call, claim)

    def renew(self, queue: QueueRef, claim: str, ttl: float, grace: float) -> bool:
        call = Call("renew", queue, self.worker, claim=claim, ttl=ttl, grace=grace)
        self._carry_out(call, lambda: self._target.renew(queue, claim, ttl, grace))
        return call.outcome == OK

    def release(self, queue: QueueRef, claim: str) -> bool:
        call = Call("release", queue, self.worker, claim=claim)
        self._carry_out(call, lambda: self._target.release(queue, claim))
        return call.outcome == OK

    def delete(self, queue: QueueRef, message: Seen, claim: str = "") -> bool:
        call = Call("delete", queue, self.worker, name=message.name, claim=claim)
        self._carry_out(call, lambda: self._target.delete(queue, message.id, claim))
        return call.outcome == OK

    def pop(self, queue: QueueRef, limit: int) -> list[Seen] | None:
        call = Call("pop", queue, self.worker, limit=limit)

        def pop() -> list[Seen]:
            seen = self._target.pop(queue, limit)
            call.seen = tuple(seen)
            return seen

        return self._carry_out(call, pop)

    def page(self, queue: QueueRef, marker: str, limit: int, reader: str = "") -> tuple[list[Seen], str] | None:
        """Read a page of the walk ``reader``, which shows all messages; without it, only ready ones."""
        call = Call("page", queue, self.worker, limit=limit, reader=reader)

        def page() -> tuple[list[Seen], str]:
            seen, following = self._target.page(queue, marker, limit, free=not reader)
            call.seen = tuple(seen)
            return seen, following

        return self._carry_out(call, page)

    def _carry_out(self, call: Call, action: Callable[[], T]) -> T | None:
        """Execute and record a call; omit a call that never arrived, unless it is a post, which counts as failed."""
        call.start = time.monotonic()
        try:
            answer = action()
            call.outcome = OK
            return answer
        except (Refused, Away) as error:
            call.outcome, call.why = FAILED, repr(error)
            if isinstance(error, Away) and call.verb != "post":
                call.verb = ""
            return None
        except Unsure as error:
            call.why = repr(error)
            return None
        finally:
            call.end = time.monotonic()
            if call.verb:
                self._calls.append(call)
