# SPDX-License-Identifier: Apache-2.0
"""Consuming a queue with a blocking client: a loop over messages, or handlers in threads.

Two more threads keep the claims while the work runs: one settles what was decided, the other one renews.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from zq.client.calls import Caught, Runs, at_once
from zq.client.desk import Find
from zq.client.habits import LIMITS, Habits
from zq.client.loops import Loop, Lost
from zq.client.retries import pieces
from zq.client.stopping import told_to_stop
from zq.client.values import Decision, Delivery, Worked


class Consumer(Loop):
    """Messages of a queue, one after the other. As a context manager it ends exactly where its block ends."""

    def __init__(self, transport: Runs, habits: Habits, on_lost: Lost | None) -> None:
        self._changed = threading.Condition()
        super().__init__(habits, on_lost, self._changed)
        self._transport = transport
        self._asking = threading.Lock()
        self._keepers: list[threading.Thread] = []
        self._messages: Generator[Delivery, None, None] | None = None

    def __iter__(self) -> Generator[Delivery, None, None]:
        with self._open():
            while (delivery := self._take()) is not None:
                yield delivery
                self._finish(delivery, delivery.id)

    def __enter__(self) -> Iterator[Delivery]:
        self._messages = iter(self)
        return self._messages

    def __exit__(self, *_: object) -> None:
        if self._messages is not None:
            self._messages.close()

    def work(self, handler: Callable[[Delivery], object], concurrency: int) -> Worked:
        """Hand each message to the handler, so many at a time; one that raises gives its message back."""
        slots = threading.Semaphore(at_once(concurrency))
        with self._open(), ThreadPoolExecutor(concurrency, "zq-work") as pool:
            while slots.acquire() and (delivery := self._take()) is not None:
                pool.submit(handler, delivery).add_done_callback(partial(self._ended, slots, delivery))
        return self._worked()

    @contextmanager
    def _open(self) -> Generator[None, None, None]:
        self._begin(self._transport.run(LIMITS))
        finds: tuple[Find, ...] = (self._desk.settlement, self._desk.renewal)
        self._keepers = [
            threading.Thread(target=self._keep, args=[find], name="zq-claims", daemon=True) for find in finds
        ]
        for keeper in self._keepers:
            keeper.start()
        self._transport.before_close.append(self._leave)
        completed = False
        try:
            with told_to_stop(self.stop):
                yield
            completed = True
        finally:
            self._transport.before_close.remove(self._leave)
            self._leave()
            self._running = False
            self._tell(raises=completed)

    def _leave(self) -> None:
        """Give back what is not done, and what the call under way brings, and see to it that it is."""
        self._left_at = min(self._left_at, time.monotonic())
        with self._asking, self._changed:
            self._desk.leave(time.monotonic())
            self._changed.notify_all()
        for keeper in self._keepers:
            keeper.join()

    def _take(self) -> Delivery | None:
        while not self._over():
            self._tell()
            with self._changed:
                if delivery := self._desk.take(time.monotonic()):
                    return delivery
                if self._desk.ended:
                    break
                if self._desk.crowded:
                    self._changed.wait(1)
                    continue
            for part in pieces(self._ask(), self._over):
                time.sleep(part)
        return None

    def _ask(self) -> float:
        """Make the next claim; seconds to rest after it."""
        with self._asking:
            if self._over():
                return 0.0
            asked = time.monotonic()
            taken = self._transport.run(self._claiming())
            with self._changed:
                self._changed.notify_all()
                return self._desk.received(taken, asked, time.monotonic())

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        with self._changed:
            if self._desk.finish(delivery, decision, time.monotonic()):
                self._changed.notify_all()

    def _ended(self, slots: threading.Semaphore, delivery: Delivery, work: "Future[object]") -> None:
        try:
            with self._changed:
                decision = self._after(delivery, work.exception())
            self._finish(delivery, decision)
        finally:
            slots.release()

    def _keep(self, find: Find) -> None:
        """Carry out errands of one kind, until the desk is left and none is due any more."""
        while True:
            with self._changed:
                asked = time.monotonic()
                errand = find(asked)
                if isinstance(errand, float):
                    if self._desk.closing:
                        return
                    self._changed.wait(min(errand - asked, threading.TIMEOUT_MAX))
                    continue
            answer = None
            with Caught() as caught:
                answer = self._transport.run(self._carrying(errand))
            with self._changed:
                self._carried(errand, answer, caught.error, asked)
                self._changed.notify_all()
