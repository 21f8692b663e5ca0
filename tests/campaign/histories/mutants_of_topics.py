# SPDX-License-Identifier: Apache-2.0
"""Mutants of the engine's topics with one fault each, which the checker of readers must find.

They are served over HTTP in this process. Sometimes a post is executed and never answered.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from msgspec import structs

import zq.testing
from tests.campaign.histories.mutants import RACE, EngineInMemory, NowAndThen
from zq.http.app import create_app
from zq.model import IdempotencyKey, Seconds
from zq.model.topics import Batch, Entry, LogSlice, Pattern, Retention, TopicRef
from zq.storage.ordered import layout
from zq.storage.ordered.idempotency import check_key, key_writes
from zq.storage.ordered.logs import Log
from zq.storage.ordered.store import Write
from zq.storage.ordered.topics import TopicController

Mutant = type[TopicController]


@contextmanager
def served(mutant: Mutant) -> Iterator[str]:
    """Start a server on the engine in memory with this topic controller, and yield its URL."""

    def connect(_: str) -> EngineInMemory:
        storage = EngineInMemory()
        storage.topics = mutant(storage._handle)
        return storage

    def application(broker: Any, **options: Any) -> "Forgetful":
        return Forgetful(create_app(broker, **options))

    with patch.multiple(zq.testing, connect=connect, create_app=application), zq.testing.server() as server:
        yield server.url


class Forgetful(NowAndThen):
    """An application that sometimes executes a post without answering it."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        answer = self._app(environ, start)
        if environ["REQUEST_METHOD"] == "POST" and self.now_and_then():
            environ["gunicorn.socket"].shutdown(socket.SHUT_RDWR)
        return answer


def set_last(log: Log, last: int) -> None:
    """Set the log's last sequence. The caller holds the log's lock."""
    log.view = log.view._replace(record=structs.replace(log.view.record, last=last))


class CounterRace(TopicController):
    """A publish that reserves sequences first and stores the batch later."""

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            log = registry.logs.ensure(topic.project)
            with log.lock:
                check_key(store, log, idempotency_key, int, moment)
                batch = Batch(topic.name, log.view.record.last + 1, moment / 1000, list(entries))
                set_last(log, batch.last)
            time.sleep(RACE)
            with log.lock:
                last = log.view.record.last
                keys: list[Write] = []
                if idempotency_key is not None:
                    keys, _ = key_writes(log, idempotency_key, batch.sequence, moment, counts=False)
                log.append(store, batch, retention, keys)
                set_last(log, last)
                self._feed.enqueue(log, batch.last, batch)
            self._announce(store, log, batch.last)
        return batch.sequence


class SharedCounter(NowAndThen, TopicController):
    """A publish that sometimes reads the same counter as another publish."""

    def publish(self, topic: TopicRef, *arguments: Any) -> int:
        with self._handle as (_, registry):
            log = registry.logs.ensure(topic.project)
            with log.lock:
                if self.now_and_then():
                    set_last(log, log.view.record.last - 1)
        return super().publish(topic, *arguments)


class ForgottenKey(TopicController):
    """A repeated publish, after a lost response, that is stored twice."""

    def publish(self, topic: TopicRef, entries: Sequence[Entry], now: Seconds, retention: Retention, *_: object) -> int:
        return super().publish(topic, entries, now, retention)


class PieceByPiece(TopicController):
    """A publish that is interrupted by others, although its response has consecutive ids."""

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        first = super().publish(topic, entries[:1], now, retention, idempotency_key)
        for entry in entries[1:]:
            time.sleep(RACE / 3)
            super().publish(topic, [entry], now, retention)
        return first


class Overlooks(TopicController):
    """A read at the end of the log that omits the last batch and continues after it."""

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        found = super().read(project, after, limit, pattern)
        return found if found.more else structs.replace(found, batches=found.batches[:-1])


class ReadsAgain(TopicController):
    """A read that returns its last batch twice."""

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        found = super().read(project, after, limit, pattern)
        return structs.replace(found, batches=[*found.batches, *found.batches[-1:]])


class LostPost(NowAndThen, TopicController):
    """A publish that reports success and drops the batch."""

    def publish(self, topic: TopicRef, entries: Sequence[Entry], *arguments: Any) -> int:
        with self._handle as (_, registry):
            log = registry.logs.ensure(topic.project)
            with log.lock:
                if len(entries) > 1 and self.now_and_then():
                    first = log.view.record.last + 1
                    set_last(log, log.view.record.last + len(entries))
                    return first
        return super().publish(topic, entries, *arguments)


class LeakyPattern(TopicController):
    """A pattern that matches too much."""

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        return super().read(project, after, limit, Pattern(pattern.text.replace(".us", ".**")))
