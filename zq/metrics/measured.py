# SPDX-License-Identifier: Apache-2.0
"""A store whose verbs are timed."""

import time
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import get_annotations
from types import SimpleNamespace
from typing import Final, ParamSpec, Protocol, TypeVar, cast

from zq.expiry import Expiry, Pace
from zq.measures import Depth, Measure
from zq.model import QueueRef, Seconds
from zq.storage import api, extensions
from zq.storage.api import Storage

P = ParamSpec("P")
T = TypeVar("T")

CONTROLLERS: Final[dict[str, type]] = {
    "queues": api.QueueController,
    "messages": api.MessageController,
    "claims": api.ClaimController,
    "history": extensions.HistoryController,
    "transactions": extensions.TransactionController,
    "topics": extensions.TopicController,
    "records": extensions.RecordController,
}


class Observe(Protocol):
    """Told how long a verb of the store took, whether it answered or raised; must return at once and raise nothing."""

    def __call__(self, verb: str, seconds: float, /) -> None: ...


def measured(storage: Storage, *observers: Observe) -> Storage:
    """The same store; each observer is told of each call of its controllers' verbs, as ``messages.post``."""
    return _Measured(storage, observers[0] if len(observers) == 1 else _to_all(observers))


class _Measured:
    """Everything but the controllers is the store's own."""

    def __init__(self, storage: Storage, observe: Observe) -> None:
        self._storage = storage
        self.queues = cast(api.QueueController, _timed(storage.queues, "queues", observe))
        self.messages = cast(api.MessageController, _timed(storage.messages, "messages", observe))
        self.claims = cast(api.ClaimController, _timed(storage.claims, "claims", observe))
        self.history = cast(extensions.HistoryController, _timed(storage.history, "history", observe))
        self.transactions = cast(
            extensions.TransactionController, _timed(storage.transactions, "transactions", observe)
        )
        self.topics = cast(extensions.TopicController, _timed(storage.topics, "topics", observe))
        self.records = cast(extensions.RecordController, _timed(storage.records, "records", observe))

    def now(self) -> Seconds:
        return self._storage.now()

    def doubted(self) -> Seconds:
        return self._storage.doubted()

    def ping(self) -> None:
        self._storage.ping()

    def configure(self, expiry: Expiry) -> None:
        self._storage.configure(expiry)

    def maintain(self, now: Seconds, pace: Pace | None = None) -> int:
        return self._storage.maintain(now, pace)

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._storage.depths(now, queues, most)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._storage.measures(now)

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._storage.listen(listener)

    def close(self) -> None:
        self._storage.close()


def _timed(controller: object, name: str, observe: Observe) -> SimpleNamespace:
    """The controller's verbs, each bound once, and what else it has."""
    promised = CONTROLLERS[name]
    return SimpleNamespace(
        **{verb: _watched(getattr(controller, verb), f"{name}.{verb}", observe) for verb in _verbs(promised)},
        **{fact: getattr(controller, fact) for fact in get_annotations(promised)},
    )


def _verbs(promised: type) -> list[str]:
    return [name for name, member in vars(promised).items() if callable(member) and not name.startswith("_")]


def _watched(method: Callable[P, T], verb: str, observe: Observe) -> Callable[P, T]:
    @wraps(method)
    def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        began = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            observe(verb, time.perf_counter() - began)

    return timed


def _to_all(observers: Sequence[Observe]) -> Observe:
    def observe(verb: str, seconds: float, /) -> None:
        for observer in observers:
            observer(verb, seconds)

    return observe
