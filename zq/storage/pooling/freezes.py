# SPDX-License-Identifier: Apache-2.0
"""Freezes of queues that move to another pool, as each process with an open pooled store applies them.

The mover of the queues stores a ``Freeze`` in the catalogue. Each process reads the freezes every second. From then on,
it refuses changes of the frozen queues, and it reads their bindings without its cache. When all changes that began
earlier have ended, the process acknowledges the freeze in its ``PoolProcess`` record. Once all processes have
acknowledged the freeze, the frozen queues no longer change.

The record of a process that is killed or paused expires, and the mover no longer waits for the process. If the process
continues, it reports that the outcome of its unfinished changes is unknown.
"""

import logging
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final
from uuid import uuid4

import msgspec

from zq.errors import QueueMoving, Unavailable
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.model.hidden import owner_of
from zq.model.pools import FREEZE, PROCESS, Freeze, PoolProcess, each, freeze_ref, read_freeze, read_process
from zq.model.uptime import since_boot
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Seconds between two reads of the freezes, and while unfinished changes delay an acknowledgement.
POLL_INTERVAL: Final = 1.0
BUSY_INTERVAL: Final = 0.05
# Seconds between two publications of the record, and seconds after which the record expires.
PUBLISH_INTERVAL: Final = 5.0
TTL: Final = 15.0
# Maximum age of the record in seconds at which the process still answers changes. Must be less than ``TTL``.
MAX_AGE: Final = 12.0
# Maximum seconds to wait for the end of the thread.
STOP_TIMEOUT: Final = 1.0
PAUSED: Final = "This server was paused or lost the catalogue, so it is unknown whether the change has taken effect."


class _Generation:
    """The changes that began between two freezes."""

    __slots__ = ("unfinished",)

    def __init__(self) -> None:
        self.unfinished = 0


class Freezes:
    """The freezes that this process applies, and its record in the catalogue.

    Args:
        forget: Removes all cached bindings.
    """

    def __init__(
        self, catalogue: Storage, forget: Callable[[], None], monotonic: Callable[[], float] = since_boot
    ) -> None:
        self._catalogue = catalogue
        self._documents = catalogue.documents
        self._forget = forget
        self._monotonic = monotonic
        self._ref = DocumentRef("", PROCESS, uuid4().hex)
        self._is_shared = False
        self._is_started = False
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._generation = _Generation()
        self._generations = [self._generation]
        self._frozen: dict[QueueRef, str] = {}
        self._earlier: dict[str, list[_Generation]] = {}
        """The generations with changes that may have begun before a freeze, by the id of the freeze."""
        self._acknowledged: frozenset[str] = frozenset()
        self._published: float | None = None
        """The time at which the last successful renewal of the record began, or None if there is no record."""
        self._lapses = 0
        """How often the record has been older than ``MAX_AGE``."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, is_shared: bool) -> None:
        """Start to follow the freezes. Call this method before the first change of a queue.

        The method publishes this process's record in the catalogue, reads the freezes, and starts a thread that repeats
        both. If ``is_shared`` is false, no other process can open the catalogue, and no record is published.
        """
        self._is_shared = is_shared
        if is_shared:
            began = self._monotonic()
            self._publish(frozenset())
            self._published = began
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="zq-freezes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread that follows the freezes, and delete this process's record in the catalogue.

        If a change is unfinished, the record is not deleted. It expires later.
        """
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT)
        if self._published is None:
            return
        self._published = -math.inf  # changes that begin from now on fail, because the record is deleted
        with self._lock:
            is_idle = not any(one.unfinished for one in self._generations)
        if is_idle:
            with suppress(Unavailable):
                self._documents.delete(self._ref, self._catalogue.now())

    @property
    def is_started(self) -> bool:
        """Whether queues may move while this process has the store open."""
        return self._is_started

    def is_frozen(self, queue: QueueRef) -> bool:
        """Return whether the queue is frozen.

        A hidden queue (an internal queue of a feature) is also frozen if the queue that it belongs to is frozen.
        """
        frozen = self._frozen
        if not frozen or queue in frozen:
            return bool(frozen)
        owner = owner_of(queue)
        return owner is not None and owner.kind == "queue" and QueueRef(owner.project, owner.name) in frozen

    def check(self, *queues: QueueRef) -> None:
        """Raise ``QueueMoving`` if one of the queues is frozen."""
        for queue in queues if self._frozen else ():
            if self.is_frozen(queue):
                raise QueueMoving.of(queue.name)

    @contextmanager
    def change(self, *queues: QueueRef) -> Iterator[None]:
        """Return a context manager for a change of these queues.

        Each change of any queue must use this context manager, so that a freeze can wait until the change has ended.

        Raises ``QueueMoving`` if one of the queues is frozen. Raises ``Unavailable`` if this process's record in the
        catalogue is too old, or was too old during the change.
        """
        if not self._is_started:
            yield
            return
        with self._lock:
            generation, lapses = self._generation, self._lapses
            generation.unfinished += 1
        try:
            self.check(*queues)
            self._check_record(lapses)
            yield
        finally:
            with self._lock:
                generation.unfinished -= 1
        self._check_record(lapses)

    def refresh(self) -> None:
        """Renew this process's record if this is due, read the freezes, and acknowledge freezes.

        A freeze is acknowledged when all changes that began before it have ended.
        """
        self._is_started = True
        with self._refreshing:
            began, published = self._monotonic(), self._published
            is_due = published is not None and began - published >= PUBLISH_INTERVAL
            # The record is renewed before the freezes are read. If a mover does not find the expired record, it stored
            # its freeze before this renewal, so this process reads the freeze before it answers changes again.
            if is_due:
                self._publish(self._acknowledged)
            freezes = each(self._documents, FREEZE, self._catalogue.now())
            self._apply({document.ref.name: read_freeze(document) for document in freezes})
            if published is not None and is_due and not self._stopping.is_set():
                if self._monotonic() - published > MAX_AGE:
                    self._lapses += 1
                    self._forget()  # a whole move may have passed unnoticed while the cache's clock stood still
                self._published = began
            acknowledged = frozenset(
                id for id, earlier in self._earlier.items() if not any(one.unfinished for one in earlier)
            )
            if published is not None and acknowledged != self._acknowledged:
                self._publish(acknowledged)
            self._acknowledged = acknowledged

    def freeze(self, move: str, freeze: Freeze) -> None:
        """Freeze the queues of a move to another pool. If the freeze already exists, it stays unchanged.

        ``move`` is the id of the move.
        """
        now = self._catalogue.now()
        self._documents.put(freeze_ref(move), msgspec.json.encode(freeze), now, expected="", is_vital=True)
        self.refresh()

    def version(self, move: str) -> str:
        """Return the version of a move's freeze, or "" if the freeze does not exist. ``move`` is the id of the move."""
        document = self._documents.get(freeze_ref(move), self._catalogue.now())
        return "" if document is None else document.version

    def unfreeze(self, move: str, version: str) -> None:
        """End the freeze of a move, if the freeze has this version. ``move`` is the id of the move."""
        self._documents.delete(freeze_ref(move), self._catalogue.now(), version)
        self.refresh()

    def find_processes(self) -> Sequence[PoolProcess]:
        """Return the records of all processes that have the pooled store open.

        If only this process can open the catalogue, records are not stored, and the result describes this process.
        """
        if self._is_shared:
            return [read_process(document) for document in each(self._documents, PROCESS, self._catalogue.now())]
        return [self._record(self._acknowledged)]

    def _record(self, acknowledged: frozenset[str]) -> PoolProcess:
        return PoolProcess(socket.gethostname(), os.getpid(), sorted(acknowledged))

    def _check_record(self, lapses: int) -> None:
        published = self._published
        if published is not None and (lapses != self._lapses or self._monotonic() - published > MAX_AGE):
            raise Unavailable(PAUSED)

    def _apply(self, freezes: dict[str, Freeze]) -> None:
        new, gone = freezes.keys() - self._earlier.keys(), self._earlier.keys() - freezes.keys()
        if not new and not gone:
            return
        self._forget()  # before the binding of a queue that is no longer frozen is cached again
        self._frozen = {QueueRef(one.project, name): id for id, one in freezes.items() for name in one.queues}
        with self._lock:
            earlier = [one for one in self._generations if one.unfinished]
            self._generation = _Generation()
            self._generations = [*earlier, self._generation]
        self._earlier = {id: self._earlier.get(id, earlier) for id in freezes}

    def _publish(self, acknowledged: frozenset[str]) -> None:
        now = self._catalogue.now()
        value = msgspec.json.encode(self._record(acknowledged))
        self._documents.put(self._ref, value, now, expires=now + TTL, is_vital=True)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval()):
            try:
                self.refresh()
            except Unavailable as error:
                LOG.warning("The freezes of queues cannot be read: %s", error)
            except Exception:  # the thread must survive every failure
                LOG.critical("Unexpected error while reading the freezes of queues.", exc_info=True)

    def _interval(self) -> float:
        return POLL_INTERVAL if len(self._acknowledged) == len(self._earlier) else BUSY_INTERVAL
