# SPDX-License-Identifier: Apache-2.0
"""A storage wrapper that measures the duration of each operation."""

import time
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import get_annotations
from types import SimpleNamespace
from typing import Final, ParamSpec, TypeVar, cast

from zq.events import Events
from zq.model import LocatedMessage, QueueRef, Seconds
from zq.model.expiry import Expiry, Pace
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import api, capabilities
from zq.storage.api import Storage

P = ParamSpec("P")
T = TypeVar("T")

# Types of the measured controllers, by attribute name.
CONTROLLERS: Final[dict[str, type]] = {
    "queues": api.QueueController,
    "messages": api.MessageController,
    "claims": api.ClaimController,
    "history": capabilities.HistoryController,
    "transactions": capabilities.TransactionController,
    "topics": capabilities.TopicController,
    "documents": api.DocumentController,
}


Notify = Callable[[str, float], None]


def measure_verbs(storage: Storage, *listeners: Events) -> Storage:
    """Wrap ``storage``. The wrapper reports the duration of each operation to ``store_called`` of the listeners."""
    calls = [listener.store_called for listener in listeners]
    return _TimedStorage(storage, calls[0] if len(calls) == 1 else _to_all(calls))


class _TimedStorage:
    """A storage wrapper that measures all controller operations, and the storage methods ``depth`` and ``locate``.

    All other methods only call the wrapped storage.
    """

    def __init__(self, storage: Storage, notify: Notify) -> None:
        self._storage = storage
        self.queues = cast(api.QueueController, _time_controller(storage.queues, "queues", notify))
        self.messages = cast(api.MessageController, _time_controller(storage.messages, "messages", notify))
        self.claims = cast(api.ClaimController, _time_controller(storage.claims, "claims", notify))
        self.history = cast(capabilities.HistoryController, _time_controller(storage.history, "history", notify))
        self.transactions = cast(
            capabilities.TransactionController, _time_controller(storage.transactions, "transactions", notify)
        )
        self.topics = cast(capabilities.TopicController, _time_controller(storage.topics, "topics", notify))
        self.documents = cast(api.DocumentController, _time_controller(storage.documents, "documents", notify))
        self._depth = _time_method(storage.depth, "depth", notify)
        self._locate = _time_method(storage.locate, "locate", notify)

    @property
    def is_prompt(self) -> bool:
        return self._storage.is_prompt

    def now(self) -> Seconds:
        return self._storage.now()

    def clock_lead(self) -> Seconds:
        return self._storage.clock_lead()

    def ping(self) -> None:
        self._storage.ping()

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        return self._storage.maintain(now, expiry, pace)

    def usage(self, project: str, now: Seconds) -> Usage | None:
        return self._storage.usage(project, now)

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._storage.depths(now, queues, max_count)

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        return self._depth(queue, now, max_count)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        return self._locate(project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._storage.measures(now)

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._storage.listen(listener)

    def close(self) -> None:
        self._storage.close()


def _time_controller(controller: object, name: str, notify: Notify) -> SimpleNamespace | capabilities.MissingCapability:
    if isinstance(controller, capabilities.MissingCapability):
        return controller
    promised = CONTROLLERS[name]
    return SimpleNamespace(
        **{verb: _time_method(getattr(controller, verb), f"{name}.{verb}", notify) for verb in _verbs(promised)},
        **{fact: getattr(controller, fact) for fact in get_annotations(promised)},
    )


def _verbs(promised: type) -> list[str]:
    return [name for name, member in vars(promised).items() if callable(member) and not name.startswith("_")]


def _time_method(method: Callable[P, T], verb: str, notify: Notify) -> Callable[P, T]:
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        began = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            notify(verb, time.perf_counter() - began)

    return call


def _to_all(listeners: Sequence[Notify]) -> Notify:
    def notify(verb: str, seconds: float) -> None:
        for listener in listeners:
            listener(verb, seconds)

    return notify
