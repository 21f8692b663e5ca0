# SPDX-License-Identifier: Apache-2.0
"""Consuming a queue with a blocking client: a loop over messages, or handlers in threads.

A second thread keeps the claims: it renews them while the work runs, and settles what was decided.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from zq.client.calls import Runs
from zq.client.desk import LIMITS, Desk, Habits
from zq.client.loops import Loop, Lost
from zq.client.stopping import told_to_stop
from zq.client.values import Decision, Delivery
from zq.errors import ZqError


class Consumer(Loop):
    """Messages of a queue, one after the other. As a context manager it ends exactly where its block ends."""

    def __init__(self, transport: Runs, habits: Habits, on_lost: Lost | None) -> None:
        super().__init__(habits, on_lost)
        self._transport = transport
        self._changed = threading.Condition()
        self._keeper = threading.Thread()
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

    def work(self, handler: Callable[[Delivery], object], concurrency: int) -> None:
        """Hand each message to the handler, so many at a time; one that raises gives its message back."""
        slots = threading.Semaphore(concurrency)
        with self._open(), ThreadPoolExecutor(concurrency, "zq-work") as pool:
            while slots.acquire() and (delivery := self._take()) is not None:
                pool.submit(handler, delivery).add_done_callback(partial(self._ended, slots, delivery))

    @contextmanager
    def _open(self) -> Generator[None, None, None]:
        self._desk = Desk(self._habits.within(self._transport.run(LIMITS)))
        self._stopping = completed = False
        self._keeper = threading.Thread(target=self._keep, name="zq-claims", daemon=True)
        self._keeper.start()
        self._transport.before_close.append(self._leave)
        try:
            with told_to_stop(self.stop):
                yield
            completed = True
        finally:
            self._transport.before_close.remove(self._leave)
            self._leave()
            self._tell(raises=completed)

    def _leave(self) -> None:
        """Give back what is not done, and see to it that it is."""
        self._stopping = True
        with self._changed:
            self._desk.leave(time.monotonic())
            self._changed.notify_all()
        self._keeper.join()

    def _take(self) -> Delivery | None:
        while True:
            with self._changed:
                self._tell()
                if self._stopping or self._desk.empty:
                    return None
                if delivery := self._desk.take(time.monotonic()):
                    return delivery
                if self._desk.crowded:
                    self._changed.wait(1)
                    continue
                call = self._desk.ask()
            asked = time.monotonic()
            taken = self._transport.run(call)
            with self._changed:
                pause = self._desk.received(taken, asked, time.monotonic())
                self._changed.notify_all()
            if pause:
                time.sleep(pause)

    def _finish(self, delivery: Delivery, decision: Decision) -> None:
        with self._changed:
            if self._desk.finish(delivery, decision, time.monotonic()):
                self._changed.notify_all()

    def _ended(self, slots: threading.Semaphore, delivery: Delivery, work: "Future[object]") -> None:
        self._finish(delivery, self._after(delivery, work.exception()))
        slots.release()

    def _keep(self) -> None:
        """Carry out errands, until the desk is left and nothing is due any more."""
        while True:
            with self._changed:
                asked = time.monotonic()
                errand = self._desk.errand(asked)
                if errand is None:
                    if self._desk.closing:
                        return
                    self._changed.wait(min(self._desk.next_errand() - asked, threading.TIMEOUT_MAX))
                    continue
            try:
                answer = self._transport.run(errand.call)
            except ZqError as error:
                with self._changed:
                    self._desk.failed(errand, error)
                    self._changed.notify_all()
            else:
                with self._changed:
                    self._desk.went(errand, answer, asked)
                    self._changed.notify_all()
