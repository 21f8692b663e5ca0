# SPDX-License-Identifier: Apache-2.0
"""What many workers asked of one store, and when: what the history checker reads.

Every call is kept with its start and its end on CLOCK_MONOTONIC, which all processes of a machine share, and with its
outcome. A call took effect, if it did, at one instant between the two; nothing more is known, and ``checker`` draws
only conclusions that hold for every choice of those instants. ``load`` makes the calls, ``targets`` carries them out.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from zq.model import QueueRef

T = TypeVar("T")

OK = "ok"
# It surely had no effect.
FAILED = "failed"
# The answer was lost or was a 503: the effect came, or did not, or comes a little later.
UNKNOWN = "unknown"


class Refused(Exception):
    """The store said no: the call changed nothing."""


class Away(Exception):
    """Nobody listened: the call never reached the store."""


class Unsure(Exception):
    """The call may have happened."""


class New(NamedTuple):
    """A message to post. Its body is its name, which is unique: ``project/queue/producer/serial``."""

    name: str
    ttl: float
    delay: float = 0


class Seen(NamedTuple):
    """A message in an answer; ``claim`` if the answer showed one, ``count`` -1 where the target does not tell."""

    name: str
    id: str
    claim: str = ""
    count: int = -1


def home(name: str) -> QueueRef:
    """The queue that a message was posted to."""
    project, queue, _ = name.split("/", 2)
    return QueueRef(project, queue)


class Target(Protocol):
    """The verbs that workers use. Each may raise ``Refused``, ``Away`` and ``Unsure``."""

    def prepare(self, queue: QueueRef, *, delayed: bool) -> None:
        """Create the queue, so that its messages may have delays."""
        ...

    def remove(self, queue: QueueRef) -> None:
        """Delete the queue with all that is left in it."""
        ...

    def post(self, queue: QueueRef, messages: Sequence[New]) -> None: ...

    def claim(self, queue: QueueRef, ttl: float, grace: float, limit: int) -> tuple[str, list[Seen]]:
        """The claim's id and its messages; ("", []) if there was nothing."""
        ...

    def renew(self, queue: QueueRef, claim: str, ttl: float, grace: float) -> None: ...

    def release(self, queue: QueueRef, claim: str) -> None: ...

    def delete(self, queue: QueueRef, message: str, claim: str) -> None: ...

    def pop(self, queue: QueueRef, limit: int) -> list[Seen]: ...

    def page(self, queue: QueueRef, marker: str, limit: int, *, free: bool) -> tuple[list[Seen], str]:
        """A page after ``marker`` ("" = from the start) and the next marker. ``free``: only what nobody holds back."""
        ...


@dataclass(slots=True)
class Call:
    """One call. ``posted`` and ``seen`` are the messages that went in and came out; ``name`` is what was deleted."""

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
    """Of a page: the walk by markers that it is part of; "" for a page that shows only what is free."""
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
    """One worker's hand on a target; every call goes into ``calls``, which clients may share. None = no answer."""

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
        """One step of the walk ``reader``, which shows everything; without it, what is free."""
        call = Call("page", queue, self.worker, limit=limit, reader=reader)

        def page() -> tuple[list[Seen], str]:
            seen, following = self._target.page(queue, marker, limit, free=not reader)
            call.seen = tuple(seen)
            return seen, following

        return self._carry_out(call, page)

    def _carry_out(self, call: Call, action: Callable[[], T]) -> T | None:
        """Do it and write it down, except for a call that never arrived; a post that never arrived is a failed one."""
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
