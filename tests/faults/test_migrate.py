# SPDX-License-Identifier: Apache-2.0
"""``zq-server migrate``: all visible data moves to a store of any kind, even if the command is killed."""

import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, TypeVar

import msgspec
import pytest
import redis

from tests.blocks import ROOT, blocks
from tests.commands import run, run_apart
from tests.data import make_released
from tests.faults.disks import post_two_mebibytes, run_on_small_disk
from tests.faults.job import At, Dead, Job, die
from tests.features import core_with_subscriptions
from tests.reader import PYTHON, SHELL, succeed
from tests.rotation import SEED, rotated
from tests.servers import ZqServer, ask, free_port, wait_for
from tests.stores import RedisServer, Stores
from zq.auth.tokens import Grant, Tokens, TokenVerifier
from zq.client import Client
from zq.clock import ManualClock
from zq.conformance.builders import Scene, make_key
from zq.conformance.test_groups import send
from zq.conformance.topic_builders import Log
from zq.errors import StartRefused, Unavailable
from zq.model import ClaimRef, Grouping, ListFilter, QueueRef
from zq.model.documents import DocumentRef, Guard
from zq.model.identity import SignedUrlOptions
from zq.model.parcels import Parcel, StoredItem, facts
from zq.model.pools import pool_ref
from zq.model.quotas import Work
from zq.model.topics import Retention
from zq.serving import application, delivering
from zq.serving.application import Application
from zq.serving.commands import SignalFlags
from zq.serving.level_watch import INTERVAL, LevelWatch
from zq.serving.migration.command import migrate
from zq.serving.migration.procedure import Migration, Options
from zq.serving.migration.record import (
    SOURCE,
    TARGET,
    Records,
    SourceRecord,
    TargetRecord,
    check_served,
    fence_ref,
    release,
)
from zq.serving.migration.stores import OTHER_RUN, Store
from zq.serving.settings import Configuration
from zq.storage import check, connect
from zq.storage.api import DocumentController, Storage
from zq.storage.capabilities import ParcelController
from zq.storage.mongodb import MongoStorage, commits
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.documents import check_guard
from zq.storage.mongodb.parcels import ParcelReader
from zq.storage.redis import transactions
from zq.storage.rocksdb import connect as connect_embedded
from zq.subscriptions.model import Source
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.sealing import SecretSealer
from zq.subscriptions.subscriptions import Terms

pytestmark = pytest.mark.one_store

T = TypeVar("T")
KINDS = ("rocksdb", "redis", "mongodb")
# Each store is a source and a target once a day.
PAIRS = [pair for at in rotated((0, 1, 2), 1) for pair in zip(KINDS, KINDS[at:] + KINDS[:at], strict=True)]
QUEUE = QueueRef("acme", "jobs")
PROJECTS = ("acme", "\u00e4.b", "c")
EVERYTHING = ListFilter(claimed=True, delayed=True)


class Killed(Exception):
    """The end of a migration in a test."""


class Mortal:
    """A target whose ``adopt`` fails at one call, before or after the parcels are stored."""

    def __init__(self, storage: Storage, last: int, stored: bool) -> None:
        self._storage = storage
        self._left = last
        self._stored = stored

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    @property
    def parcels(self) -> "Mortal":
        return self

    def projects(self) -> list[str]:
        return self._storage.parcels.projects()

    def export(self, *arguments: object) -> object:
        return self._storage.parcels.export(*arguments)

    def last_clock(self) -> float | None:
        return self._storage.parcels.last_clock()

    def adopt(self, *arguments: object) -> None:
        self._left -= 1
        if self._left == 0 and not self._stored:
            raise Killed
        self._storage.parcels.adopt(*arguments)
        if self._left == 0:
            raise Killed


class Pair(NamedTuple):
    source: Storage
    target: Storage


def opened(closing_later: ExitStack, stores: Stores, folder: Path, kind: str, name: str) -> Storage:
    (folder / name).mkdir(exist_ok=True)
    return closing_later.enter_context(closing(connect(stores.empty(kind, folder / name, name))))


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as closing_later:
        kinds = zip(request.param, "ab", strict=True)
        yield Pair(*(opened(closing_later, stores, tmp_path, kind, name) for kind, name in kinds))


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Pair]:
    """Return a pair of stores of one kind, for tests of the command itself."""
    with ExitStack() as closing_later:
        stores = [connect(f"rocksdb://{tmp_path}/{name}") for name in "ab"]
        yield Pair(*(closing_later.enter_context(closing(store)) for store in stores))


def scribble(storage: Storage, seed: int, steps: int = 150) -> ManualClock:
    """Use the store's verbs at random. Return the clock, which has the store's time at the end."""
    chance, clock = random.Random(seed), ManualClock(storage.now() - steps)
    scenes = [Scene(storage, clock, QueueRef(project, name)) for project in PROJECTS for name in ("jobs", "b", "c")]
    for scene, grouping in zip(scenes, list(Grouping) * 3, strict=True):
        storage.queues.create(scene.queue, b'{"a": %d}' % chance.randrange(9), grouping)
    for step in range(steps):
        scene = chance.choice(scenes)
        use_once(scene, chance, step)
        clock.advance(1)
    return clock


def use_once(scene: Scene, chance: random.Random, step: int) -> None:
    once = make_key(f"post:{step}") if chance.random() < 0.2 else None
    log = Log(scene.storage, scene.clock, scene.queue.project)
    claim = scene.claim(2, ttl=chance.choice((5, 60, 600))) if chance.random() < 0.3 else None
    history = chance.choice((0, 900))
    match chance.randrange(10):
        case 0 | 1:
            scene.post(chance.randrange(1, 5), delay=chance.choice((0, 0, 100)), ttl=chance.choice((60, 3600)))
        case 2:
            scene.post(2, once=once)
        case 3:
            send(scene, *(chance.choice("abc") for _ in range(4)))
        case 4 if claim:
            scene.release(claim.id, chance.choice((None, 0, 200)))
        case 4 | 5:
            scene.pop(1, history=history)
        case 6 if claim:
            scene.settle(claim.id, rest=True, history=history, once=once)
        case 6:
            ids = [message.id for message in scene.walk()[:2]]
            scene.move(ids, "dead", history=history, reason=chance.choice(("", "spent")))
        case 7:
            keep = Retention(10_000, chance.choice((5, 1000)))
            log.publish(chance.choice(("news", "n.x")), 2, size=chance.choice((1, 900)), keep=keep, once=once)
        case 8:
            value, ref = b"%d" % step, DocumentRef(scene.queue.project, chance.choice("ab"), chance.choice("ab"))
            scene.storage.documents.put(ref, value, scene.now, expires=chance.choice((None, scene.now + 3600)))
        case _:
            scene.fence(chance.choice("ab"))
            scene.stage("s", 2)
            settled = [ClaimRef(scene.queue, claim.id, history)] if claim else []
            scene.commit(step + 1, ["s"], settled, producer=chance.choice("ab"))


def moved(pair: Pair, *, target: object = None, **options: object) -> tuple[int, list[str]]:
    """Migrate, and return the exit code and the printed lines."""
    lines: list[str] = []
    stores = Store(pair.source, "rocksdb:source"), Store(target or pair.target, "redis:target")
    code = migrate(*stores, Options(**{"watch": 0.0, **options}), lines.append)
    return code, lines


def contents(parcels: ParcelController, project: str, now: float) -> list[StoredItem]:
    found: list[Parcel] = []
    after = ""
    while (page := parcels.export(project, after, 100, now)).next is not None:
        found, after = found + page.items, page.next
    return sorted((fact for one in found for fact in facts(one, now)), key=repr)


def assert_moved(pair: Pair) -> None:
    now = pair.source.now() + 100
    for project in PROJECTS:
        there = contents(pair.source.parcels, project, now)
        assert contents(pair.target.parcels, project, now) == there
        assert len({fact.kind for fact in there}) >= 5


def test_a_store_moves_to_another_store(pair: Pair) -> None:
    """All items are equal, and a marker of the source misses no later message of the target (L6).

    Tokens and subscriptions of the source are valid on the target. ``tests/model/test_migrating.py`` compares stores
    that move with the models of the state machines.
    """
    clock = scribble(pair.source, SEED)
    token = Tokens(pair.source.documents, clock).create(Grant(project="acme", roles=["reader"]))
    policy = SubscriptionPolicy(sealer=SecretSealer(lambda: SignedUrlOptions(secret_key="k" * 32)))
    use_cases = [core_with_subscriptions(storage, clock, policy)[1].subscriptions for storage in pair]
    owners = [Source("acme", kind, name) for kind, name in (("queue", "jobs"), ("queue", "b"), ("topic", "news"))]
    for at, owner in enumerate(owners * 2):
        use_cases[0].create(owner, Terms(f"http://127.0.0.1/{at}"))
    code, lines = moved(pair)
    assert code == 0, lines
    identity, _ = TokenVerifier(pair.target.documents, clock).verify(token.text)
    assert (identity.project, identity.roles) == ("acme", {"reader"})
    for owner in owners:
        listed = use_cases[1].list(owner, "", None)
        assert listed == use_cases[0].list(owner, "", None)
        assert len(listed.value.items) == 2
    old, new = (Scene(storage, clock, QueueRef("acme", "jobs")) for storage in pair)
    assert new.ready() == old.ready()
    assert_moved(pair)
    last = old.post(1)[0]
    marker = max(message.sequence for message in old.walk() if message.id != last)
    posted = new.post(2)
    assert new.page(EVERYTHING, marker=marker) == posted
    logs = [Log(storage, clock, "acme") for storage in pair]
    end = logs[0].read().last
    assert logs[1].publish("later", 2) == logs[1].sequences(after=end)


def test_a_killed_migration_is_resumed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is killed three times, each time at a random page, before or after the target has stored it."""
    monkeypatch.setattr("zq.serving.migration.stores.PAGE", 5)
    monkeypatch.setattr("zq.serving.migration.procedure.RECORD_INTERVAL", 0)
    scribble(pair.source, SEED)
    chance = random.Random(SEED)
    for _ in range(3):
        with pytest.raises(Killed):
            moved(pair, target=Mortal(pair.target, chance.randint(1, 9), chance.random() < 0.5), resume=True)
    with pytest.raises(StartRefused, match="add --resume"):
        moved(pair)
    assert moved(pair, resume=True)[0] == 0
    assert_moved(pair)
    code, [line] = moved(pair, resume=True)
    assert (code, line.startswith("This migration was completed at 2")) == (0, True), line


class Stopped:
    """A store whose clock stands at a time."""

    def __init__(self, storage: Storage, now: float) -> None:
        self._storage = storage
        self._now = now

    def __getattr__(self, name: str) -> object:
        return getattr(self._storage, name)

    def now(self) -> float:
        return self._now


def test_the_store_of_the_released_version_moves_to_redis(store: RedisServer, tmp_path: Path) -> None:
    """All items except live claims are as the released version read them, at the time when it wrote the store."""
    described = make_released.read_descriptions()["rocksdb"]
    (tmp_path / "store").mkdir()
    for name, content in make_released.read_files("released.tar.xz").items():
        (tmp_path / "store" / name).write_bytes(content)
    with (
        closing(connect_embedded(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)) as source,
        closing(connect(store.uri)) as target,
    ):
        pair = Pair(*(Stopped(storage, described["now"]) for storage in (source, target)))
        code, lines = moved(pair)
        assert code == 0, lines
        scene = Scene(target, ManualClock(described["now"]), make_released.JOBS)
        found = make_released.describe(scene)
        for part in ("items", "subscriptions", "tokens"):
            assert list(make_released.find_differences(described[part], found[part])) == []


def test_a_killed_migration_of_an_embedded_store_is_resumed(embedded: Pair, tmp_path: Path) -> None:
    """Each start of the source skips sequences of its queues and topics, which the target does not."""
    uri = f"rocksdb://{tmp_path}/again"
    with closing(connect(uri)) as source:
        scribble(source, SEED)
        with pytest.raises(Killed):
            moved(Pair(source, embedded.target), target=Mortal(embedded.target, 3, True))
    with closing(connect(uri)) as source:
        code, lines = moved(Pair(source, embedded.target), resume=True)
        assert code == 0, lines
        assert_moved(Pair(source, embedded.target))


def test_an_adopted_store_has_no_contradictions(tmp_path: Path) -> None:
    with closing(connect(f"rocksdb://{tmp_path}/a")) as source, closing(connect(f"rocksdb://{tmp_path}/b")) as target:
        scribble(source, SEED)
        assert moved(Pair(source, target))[0] == 0
    report = check(f"rocksdb://{tmp_path}/b")
    assert report is not None
    assert (report.contradictions, report.examples) == (0, [])


def lose_a_message(storage: Storage) -> str:
    Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs")).pop(1)
    return "'acme': 2 messages in the source and 1 in the target differ"


def add_a_record(storage: Storage) -> str:
    storage.documents.put(DocumentRef("acme", "topic", "a"), b"{}", storage.now())
    return "'acme': 0 records in the source and 1 in the target differ"


@pytest.mark.parametrize("spoil", [lose_a_message, add_a_record])
def test_a_difference_is_reported(embedded: Pair, monkeypatch: pytest.MonkeyPatch, spoil: Callable) -> None:
    """The exit code is 1, and the migration stays incomplete."""
    scene = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs"))
    scene.post(2)
    with monkeypatch.context() as patched:
        sentences = after_the_copy(patched, lambda: spoil(embedded.target))
        code, lines = moved(embedded)
    assert (code, sentences[0] in lines[-2]) == (1, True), lines
    assert lines[-1].startswith("Do not serve the target. Repeat the command with --resume.")
    with pytest.raises(StartRefused, match="add --resume"):
        moved(embedded)
    assert moved(embedded, resume=True)[0] == (0 if spoil is lose_a_message else 1)


def after_the_copy(patched: pytest.MonkeyPatch, act: Callable[[], T]) -> list[T]:
    """Act once between the copy and the comparison; return a list that gets the result."""
    copy, results = Migration.copy, list[T]()

    def copy_and_act(migration: Migration, record: TargetRecord) -> None:
        copy(migration, record)
        results.append(act())

    patched.setattr(Migration, "copy", copy_and_act)
    return results


def test_changes_of_the_source_during_the_copy_are_noticed(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first list does not have the new project. The next run copies it."""
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("c", "jobs")).post()
    new = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("b", "jobs"))
    with monkeypatch.context() as patched:
        after_the_copy(patched, new.post)
        code, lines = moved(embedded)
    assert (code, "Project 'b' is new in the source" in lines[-2]) == (1, True), lines
    assert moved(embedded, resume=True)[0] == 0
    assert len(new.at("jobs").walk()) == len(contents(embedded.target.parcels, "b", new.now)) - 1


def test_a_lower_counter_is_a_difference(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message was posted and popped during the copy: its sequence must not be assigned again."""
    scene = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs"))
    scene.post()
    scene.pop(1)
    with monkeypatch.context() as patched:
        after_the_copy(patched, lambda: (scene.post(), scene.pop(1)))
        code, lines = moved(embedded)
    assert (code, lines[-2]) == (1, "Project 'acme': the target has lower counters of queue 'jobs'.")
    assert moved(embedded, resume=True)[0] == 0


@contextmanager
def running(storage: Storage) -> Iterator[None]:
    """Read the store's time as a server without console does."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            storage.now()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("kind", ["redis", "mongodb"])
def test_a_server_without_a_console_is_noticed(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The server is detected before the copy, and between the copy and the end."""
    with ExitStack() as closing_later:
        uri = stores.empty(kind, tmp_path, "a")
        target = opened(closing_later, stores, tmp_path, "rocksdb", "b")
        source, other = (closing_later.enter_context(closing(connect(uri))) for _ in range(2))
        pair = Pair(source, target)
        Scene(source, ManualClock(source.now()), QueueRef("acme", "jobs")).post()
        with running(other), pytest.raises(StartRefused, match="A server is using the source"):
            moved(pair, watch=0.3)
        with monkeypatch.context() as patched, ExitStack() as server:
            after_the_copy(patched, lambda: server.enter_context(running(other)))
            code, lines = moved(pair, watch=0.3)
        assert (code, lines[-2]) == (1, "A server is using the source. Stop all its servers, and wait 60 seconds.")
        assert moved(pair, resume=True, watch=0.3)[0] == 0


def test_a_server_that_hangs_is_noticed(stores: Stores, tmp_path: Path) -> None:
    """The server's last report, which is kept for a minute, reveals the server."""
    with ExitStack() as closing_later:
        kinds = ("redis", "a"), ("rocksdb", "b")
        pair = Pair(*(opened(closing_later, stores, tmp_path, *one) for one in kinds))
        now = pair.source.now()
        pair.source.documents.put(DocumentRef("", "server", "a"), b"{}", now, expires=now + 60)
        with pytest.raises(StartRefused, match="A server is using the source"):
            moved(pair)


def test_an_embedded_store_is_moved_directly_after_its_server_has_ended(embedded: Pair) -> None:
    """The server's last report is still in the store."""
    now = embedded.source.now()
    Scene(embedded.source, ManualClock(now), QueueRef("acme", "jobs")).post()
    embedded.source.documents.put(DocumentRef("", "server", "a"), b"{}", now, expires=now + 60)
    assert moved(embedded)[0] == 0


def test_a_stopped_clock_is_refused(stores: Stores, tmp_path: Path) -> None:
    """If the machine's clock is behind the stored time, servers do not change the stored time."""
    uri = stores.empty("redis", tmp_path, "a")
    with closing(connect(uri)) as source, closing(connect(f"rocksdb://{tmp_path}/b")) as target:
        with redis.Redis.from_url(uri) as client:
            client.set("zq:clock", int((source.now() + 30) * 1e6))
        with pytest.raises(StartRefused, match="The clock of the source is behind its stored time"):
            moved(Pair(source, target), watch=0.1)


def test_a_completed_migration_does_not_hide_later_data(embedded: Pair) -> None:
    scene = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs"))
    scene.post()
    assert moved(embedded)[0] == 0
    scene.post()
    release(embedded.source.documents, embedded.source.now())
    with pytest.raises(StartRefused, match="The target is not empty: project 'acme'"):
        moved(embedded, resume=True)


@pytest.mark.parametrize(
    ("projects", "is_released", "refusal"),
    [
        (None, False, "The data of the source was moved to redis:target"),
        (None, True, "The data of the source was moved to redis:target"),
        (["acme"], False, "A migration of these projects was completed"),
    ],
)
def test_a_repetition_does_not_move_messages_that_the_target_has_deleted(
    embedded: Pair, projects: list[str] | None, is_released: bool, refusal: str
) -> None:
    """Consumers of the target have emptied it, and its record may have been released."""
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)
    assert moved(embedded, projects=projects)[0] == 0
    empty(embedded.target, QueueRef("acme", "jobs"))
    if is_released:
        release(embedded.target.documents, embedded.target.now())
    with pytest.raises(StartRefused, match=refusal):
        moved(embedded, projects=projects, resume=is_released)
    assert embedded.target.parcels.export("acme", "", 10, embedded.target.now()).items == []


class Watched:
    """The documents of a store whose operations call ``watch`` first, with a description of the operation."""

    def __init__(self, documents: DocumentController, which: str, watch: Callable[[object], None]) -> None:
        self._documents = documents
        self._which = which
        self._watch = watch

    def __getattr__(self, name: str) -> object:
        return getattr(self._documents, name)

    def get(self, ref: DocumentRef, now: float) -> object:
        self._watch((self._which, "get", ref))
        return self._documents.get(ref, now)

    def put(self, ref: DocumentRef, value: bytes, *arguments: object, **options: object) -> object:
        record = msgspec.json.decode(value) if ref in (SOURCE, TARGET) else {}
        state = record.get("project"), record.get("is_source_marked"), record.get("finished") is not None
        self._watch((self._which, "put", ref, state))
        return self._documents.put(ref, value, *arguments, **options)

    def delete(self, ref: DocumentRef, *arguments: object, **options: object) -> object:
        self._watch((self._which, "delete", ref))
        return self._documents.delete(ref, *arguments, **options)


def watch_records(patched: pytest.MonkeyPatch, pair: Pair, watch: Callable[[object], None]) -> None:
    patched.setattr("zq.serving.migration.procedure.RECORD_INTERVAL", math.inf)
    for which, storage in zip(Pair._fields, pair, strict=True):
        patched.setattr(storage, "documents", Watched(storage.documents, which, watch))


def move_in_steps(pair: Pair, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    """Migrate, killed before each different operation on a document. Servers refuse the source of a copy.

    After the last kill of a migration of named projects, only the source's record is left to delete.
    """
    seen = set[object]()

    def die_before_new(operation: object) -> None:
        if operation not in seen:
            seen.add(operation)
            raise Killed

    while True:
        with monkeypatch.context() as patched:
            watch_records(patched, pair, die_before_new)
            try:
                code, lines = moved(pair, resume=True, **options)
                break
            except Killed:
                pass
        has_copy = bool(pair.target.parcels.export("acme", "", 1, pair.target.now()).items)
        assert not (has_copy and is_served(pair.source))
    is_completed = lines[-1].startswith("This migration was completed at 2")
    assert (code, is_completed) == (0, options.get("projects") is not None), lines
    assert len(seen) >= 10


class Suspension:
    """The watch of a run, which is suspended before one of its operations until ``meanwhile`` has returned.

    ``meanwhile`` returns whether it has used the target.
    """

    def __init__(self, place: int, pair: Pair, meanwhile: Callable[[Pair], object]) -> None:
        self._left = place
        self._pair = pair
        self._meanwhile = meanwhile
        self.observed: tuple[list[object], list[object]] | None = None

    @property
    def has_occurred(self) -> bool:
        return self._left < 0

    def __call__(self, _operation: object) -> None:
        self._left -= 1
        if self._left == -1 and self._meanwhile(self._pair):
            self.observed = observe(self._pair)


def complete_and_use(pair: Pair, projects: list[str] | None = None) -> bool:
    assert moved(pair, resume=True, drop_stages=True, projects=projects)[0] == 0
    use(pair.target)
    return True


def release_and_use(pair: Pair, projects: list[str] | None = None) -> bool:
    is_released = release(pair.target.documents, pair.target.now())
    if is_released:
        use(pair.target)
    return is_released


def complete_and_use_both(pair: Pair, projects: list[str] | None = None) -> bool:
    complete_and_use(pair, projects)
    for storage in pair:
        release(storage.documents, storage.now())
        use(storage)
    return True


def release_source_and_use(pair: Pair) -> None:
    """Release the source, and use it, unless its record states that it was moved."""
    record = Records(pair.source.documents, pair.source.now).read_source()
    if record is not None and record.finished is None:
        release(pair.source.documents, pair.source.now())
        use(pair.source)


def use(storage: Storage) -> None:
    """Delete all messages and documents of the project, as consumers and servers do, and stage a message."""
    check_served(storage.documents, storage.now())
    queue = QueueRef("acme", "jobs")
    storage.queues.purge(queue)
    storage.documents.delete(DocumentRef("acme", "topic", "a"), storage.now())
    Scene(storage, ManualClock(storage.now()), queue).stage("night")


def observe(pair: Pair) -> tuple[list[object], list[object]]:
    """Return the records and contents of the source and of the target.

    Fences are omitted, because they have no effect on servers and later runs.
    """
    records = Records(pair.source.documents, pair.source.now).read_source() is None
    observed: tuple[list[object], list[object]] = [records], [pair.target.documents.get(TARGET, pair.target.now())]
    for storage, found in zip(pair, observed, strict=True):
        items = contents(storage.parcels, "acme", storage.now())
        found.append([item for item in items if getattr(item.content, "name", "") != "fence"])
        found.append(storage.transactions.list("acme", Work.STAGE, "", 9, storage.now()).items)
    return observed


def move_with_suspension(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, target: Storage, suspension: Suspension, **options: object
) -> tuple[int, list[str]]:
    """Migrate to ``target``, another connection to the pair's target. Return the exit code and the printed lines."""
    adopt = target.parcels.adopt

    def watched_adopt(*arguments: object) -> None:
        suspension(arguments)
        adopt(*arguments)

    with monkeypatch.context() as patched:
        watch_records(patched, Pair(pair.source, target), suspension)
        patched.setattr(target.parcels, "adopt", watched_adopt)
        try:
            return moved(Pair(pair.source, target), **options)
        except StartRefused as refusal:
            return 2, [str(refusal)]


# The number of operations on records before the first one that changes a record.
PAST_CHECK = 6
SUSPENSIONS = [
    (complete_and_use, None),
    (complete_and_use, ["acme"]),
    (release_and_use, None),
    (complete_and_use_both, None),
    (complete_and_use_both, ["acme"]),
]


@pytest.mark.parametrize("kind", rotated(KINDS[1:], 1))
@pytest.mark.parametrize(("meanwhile", "projects"), rotated(SUSPENSIONS, 1))
def test_a_run_that_was_suspended_does_not_change_a_store_in_use(
    stores: Stores,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    meanwhile: Callable[..., None],
    projects: list[str] | None,
) -> None:
    """Before each operation on a record, another run completes the migration, or the operator releases the stores."""
    for place in count():
        uri = stores.empty(kind, tmp_path, "b")
        with (
            closing(connect(f"rocksdb://{tmp_path}/{place}")) as source,
            closing(connect(uri)) as target,
            closing(connect(uri)) as other,
        ):
            pair = Pair(source, other)
            Scene(source, ManualClock(source.now()), QueueRef("acme", "jobs")).post(2)
            Scene(source, ManualClock(source.now()), QueueRef("acme", "jobs")).stage("night")
            source.documents.put(DocumentRef("acme", "topic", "a"), b"{}", source.now())
            options = {"projects": projects, "drop_stages": True}
            suspension = Suspension(place, pair, partial(meanwhile, projects=projects))
            code, lines = move_with_suspension(monkeypatch, pair, target, suspension, **options)
            if not suspension.has_occurred:
                break
            if suspension.observed is not None:
                source_before, target_before = suspension.observed
                source_after, target_after = observe(pair)
                assert (place, target_after) == (place, target_before), lines
                # If only the target is released, the source is not in use.
                assert meanwhile is release_and_use or (place, source_after) == (place, source_before), lines
    assert (code, place > 20) == (0, True), lines


@pytest.mark.parametrize("kind", rotated(KINDS[1:], 1))
@pytest.mark.parametrize("projects", rotated([None, ["acme"]], 1))
def test_a_migration_whose_source_was_released_is_never_complete(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, projects: list[str] | None
) -> None:
    """Before each operation on a record, the operator releases the source, unless its record says that it was moved."""
    used = list[int]()
    for place in count():
        uri = stores.empty(kind, tmp_path, "a")
        with (
            closing(connect(uri)) as source,
            closing(connect(uri)) as other,
            closing(connect(f"rocksdb://{tmp_path}/{place}")) as target,
        ):
            Scene(source, ManualClock(source.now()), QueueRef("acme", "jobs")).post(2)
            suspension = Suspension(place, Pair(other, target), release_source_and_use)
            code, lines = move_with_suspension(monkeypatch, Pair(source, target), target, suspension, projects=projects)
            if not suspension.has_occurred:
                break
            if source.transactions.list("acme", Work.STAGE, "", 1, source.now()).items:  # ``use`` has staged a message
                used.append(place)
                is_copied = bool(target.parcels.export("acme", "", 10, target.now()).items)
                assert (place, code, is_copied and is_served(target)) == (place, 1, False), lines
    assert (code, len(used) > 10) == (0, True), lines


@pytest.mark.parametrize("projects", [None, ["acme"]])
def test_a_migration_that_is_killed_between_its_records_is_resumed(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch, projects: list[str] | None
) -> None:
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)
    move_in_steps(embedded, monkeypatch, projects=projects)
    for _ in range(2):
        assert [is_served(storage) for storage in embedded] == [projects is not None, True]
        code, [line] = moved(embedded, projects=projects, resume=True)
        assert (code, line.startswith("This migration was completed at 2")) == (0, True), line
    advice = (
        "was moved to redis:target" if projects is None else r"was completed at .*\. Use another target\. To repeat"
    )
    with pytest.raises(StartRefused, match=advice):
        moved(embedded, projects=projects)


def test_a_complete_target_may_be_served_before_the_source_is_released(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed before its last write, which deletes the source's record because other projects stay there."""

    def die(operation: tuple[object, ...]) -> None:
        if operation == ("source", "delete", SOURCE):
            raise Killed

    with with_a_shared_store(stores, tmp_path, "redis", "target") as (_, pair):
        with monkeypatch.context() as patched:
            watch_records(patched, pair, die)
            with pytest.raises(Killed):
                moved(pair, projects=["acme"])
        assert [is_served(storage) for storage in pair] == [False, True]
        server = LevelWatch(pair.target, 8888, True)
        empty(pair.target, QueueRef("acme", "jobs"))
        with pytest.raises(StartRefused, match="A server is using the target"):
            moved(pair, projects=["acme"])
        code, [line] = moved(pair, projects=["acme"], resume=True)
        assert (code, line.startswith("This migration was completed at 2")) == (0, True), line
        assert is_served(pair.source)
        server.stop()


def test_an_incomplete_migration_of_other_projects_is_named(embedded: Pair) -> None:
    for project in "ab":
        Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef(project, "jobs")).post(2)
    with pytest.raises(Killed):
        moved(embedded, target=Mortal(embedded.target, 1, True), projects=["a"])
    with pytest.raises(StartRefused, match=r"a part of the projects 'a' of rocksdb:source, because"):
        moved(embedded, projects=["b"], resume=True)


def test_a_new_migration_does_not_end_like_an_earlier_one(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has the record of an earlier migration from the source, which was released and used again."""
    scene = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs"))
    scene.post(2)
    assert moved(embedded)[0] == 0
    release(embedded.source.documents, scene.now)
    empty(embedded.target, scene.queue)
    scene.post()
    move_in_steps(embedded, monkeypatch)
    assert len(Scene(embedded.target, scene.clock, scene.queue).walk()) == 3


def test_a_target_that_is_used_after_the_check_is_refused(embedded: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stores can be served afterwards."""
    scenes = [Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs")) for storage in embedded]
    scenes[0].post(2)
    suspension = Suspension(PAST_CHECK, embedded, lambda _: scenes[1].post(1))
    code, lines = move_with_suspension(monkeypatch, embedded, embedded.target, suspension)
    assert (code, lines[-1].startswith("The target is not empty: project 'acme'")) == (1, True), lines
    assert [is_served(storage) for storage in embedded] == [True, True]
    assert len(scenes[1].walk()) == 1


def test_an_abandoned_import_blocks_its_fence_only_briefly(stores: Stores, tmp_path: Path) -> None:
    """The transaction of a killed run has read the fence. Otherwise, MongoDB would end it after a minute."""
    uri, guard = stores.empty("mongodb", tmp_path, "b"), Guard(fence_ref("acme"), b"killed")
    with closing(connect(uri)) as storage, closing(connect(uri)) as killed:
        documents, client = storage.documents, killed._client
        documents.put(guard.ref, guard.value, storage.now())
        with client.pymongo.start_session() as session:
            session.start_transaction()
            with client.verb():
                check_guard(client, session, guard)
            documents.put(guard.ref, b"next", storage.now())
        stored = documents.get(guard.ref, storage.now())
        assert stored is not None
        assert stored.value == b"next"


def test_a_project_moves_again_after_it_has_moved_back(embedded: Pair) -> None:
    """The record of the first migration does not end the third one before its copy."""
    scenes = [Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs")) for storage in embedded]
    scenes[0].post(2)
    for at in (0, 1):
        names = "rocksdb:source", "redis:target"
        stores = [Store(storage, name) for storage, name in zip(embedded, names, strict=True)][:: 1 - 2 * at]
        assert migrate(*stores, Options(["acme"], watch=0.0), print) == 0
        empty(stores[0].storage, scenes[0].queue)
    scenes[0].post()
    code, lines = moved(embedded, projects=["acme"], resume=True)
    assert (code, len(scenes[1].walk())) == (0, 3), lines


@contextmanager
def with_a_shared_store(stores: Stores, folder: Path, kind: str, which: str) -> Iterator[tuple[str, Pair]]:
    """Yield the URI of a networked store, and a pair with the store as ``which`` and with an embedded store."""
    uri = stores.empty(kind, folder, "a")
    with closing(connect(uri)) as shared, closing(connect(f"rocksdb://{folder}/b")) as embedded:
        pair = Pair(shared, embedded) if which == "source" else Pair(embedded, shared)
        Scene(pair.source, ManualClock(pair.source.now()), QueueRef("acme", "jobs")).post(2)
        yield uri, pair


def serve() -> None:
    Application(Configuration())


def deliver() -> None:
    delivering.run([], SignalFlags(end=True))


@pytest.mark.parametrize("kind", rotated(KINDS[1:], 1))
@pytest.mark.parametrize("which", Pair._fields)
@pytest.mark.parametrize(("start", "pooling"), [(serve, "true"), (deliver, "false")])
def test_a_process_that_starts_while_a_migration_begins_is_refused(
    stores: Stores,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    which: str,
    start: Callable[[], None],
    pooling: str,
) -> None:
    """The migration begins after the process has checked the store, and before the process publishes its first record.

    The process deletes its records, so that the migration can be resumed at once. With pools, it has two records.
    """
    for name in ("DEFAULT__POOLING", "POOLING:CATALOG__ENABLE_VIRTUAL_POOL", "POOLING:CATALOG__QUEUE_MOVES"):
        monkeypatch.setenv(f"OS_{name}", pooling)
    monkeypatch.setenv("OS_SIGNED_URL__SECRET_KEY", "k" * 40)
    monkeypatch.setattr(application, "atexit", SimpleNamespace(register=lambda _: None))
    opens, begun = application.open_store, list[object]()
    with with_a_shared_store(stores, tmp_path, kind, which) as (uri, pair):

        def begin(operation: object) -> None:
            if "put" in operation and not begun:
                begun.append(operation)
                with pytest.raises(Killed):
                    moved(pair, target=Mortal(pair.target, 1, True))

        def open_watched(*arguments: object) -> Storage:
            storage = opens(*arguments)
            monkeypatch.setattr(storage, "documents", Watched(storage.documents, which, begin))
            return storage

        monkeypatch.setenv("OS_STORAGE__URI", uri)
        monkeypatch.setattr(application, "open_store", open_watched)
        with pytest.raises(StartRefused, match="with --resume"):
            start()
        assert moved(pair, resume=True)[0] == 0


@pytest.mark.parametrize("kind", rotated(KINDS[1:], 1))
@pytest.mark.parametrize("which", Pair._fields)
def test_a_server_that_starts_after_the_check_is_noticed(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, which: str
) -> None:
    """Both stores can be served afterwards."""
    with with_a_shared_store(stores, tmp_path, kind, which) as (uri, pair), closing(connect(uri)) as other:
        suspension = Suspension(PAST_CHECK, pair, lambda _: LevelWatch(other, 8888, True))
        code, lines = move_with_suspension(monkeypatch, pair, pair.target, suspension)
        assert (code, lines[-1].startswith(f"A server is using the {which}.")) == (1, True), lines
        assert [is_served(storage) for storage in pair] == [True, True]


@pytest.mark.parametrize("kind", rotated(KINDS[1:], 1))
@pytest.mark.parametrize("which", Pair._fields)
def test_a_server_that_was_suspended_when_a_migration_began_ends(
    stores: Stores, tmp_path: Path, kind: str, which: str
) -> None:
    """It was suspended before its thread started. Its record has expired, so the migration could not detect it."""
    ended = threading.Event()
    with with_a_shared_store(stores, tmp_path, kind, which) as (uri, pair), closing(connect(uri)) as other:
        watch = LevelWatch(other, 8888, True, give_up=ended.set)
        other.documents.delete(watch._ref, other.now())
        with pytest.raises(Killed):
            moved(pair, target=Mortal(pair.target, 1, True))
        watch.start()
        assert ended.wait(INTERVAL - 1)
        watch.stop()
        assert moved(pair, resume=True)[0] == 0, "the server has not published its record again"


@pytest.mark.parametrize("kind", rotated(KINDS[1:], 1))
def test_a_server_continues_if_a_migration_that_began_is_refused(stores: Stores, tmp_path: Path, kind: str) -> None:
    """A migration that finds a server after it has written its records removes them."""
    ended = list[str]()
    with with_a_shared_store(stores, tmp_path, kind, "source") as (uri, pair), closing(connect(uri)) as other:
        watch = LevelWatch(other, 8888, True, give_up=lambda: ended.append("end"))
        other.documents.put(SOURCE, msgspec.json.encode(SourceRecord("redis://b", run="1")), other.now())
        timer = threading.Timer(0.3, release, (pair.source.documents, pair.source.now()))
        timer.start()
        watch.refresh()
        timer.join()
        assert ended == []
        other.documents.put(SOURCE, b"?", other.now())
        watch.refresh()
        assert ended == ["end"], "a record that cannot be decoded"
        watch.stop()


def test_two_migrations_do_not_begin_with_one_target(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both runs find an empty target. The one that marks it second stops, and its source can be served."""
    with closing(connect(f"rocksdb://{tmp_path}/c")) as third:
        for storage, project in ((embedded.source, "acme"), (third, "b")):
            Scene(storage, ManualClock(storage.now()), QueueRef(project, "jobs")).post(2)

        def move_another(_pair: Pair) -> None:
            stores = Store(third, "rocksdb:third"), Store(embedded.target, "redis:target")
            assert migrate(*stores, Options(["b"], watch=0.0), print) == 0

        suspension = Suspension(PAST_CHECK, embedded, move_another)
        code, lines = move_with_suspension(monkeypatch, embedded, embedded.target, suspension)
        assert (code, lines) == (1, [OTHER_RUN])
        assert is_served(embedded.source)
        assert moved(embedded)[0] == 0


def is_served(storage: Storage) -> bool:
    try:
        check_served(storage.documents, storage.now())
    except StartRefused:
        return False
    return True


def test_a_source_that_was_released_during_the_migration_is_refused(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running command notices the release, and its repeat is refused, even if no server has used the source."""
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)
    with monkeypatch.context() as patched:
        after_the_copy(patched, lambda: release(embedded.source.documents, embedded.source.now()))
        code, lines = moved(embedded)
    assert (code, lines[-1].startswith("The source was released after this migration began")) == (1, True), lines
    check_served(embedded.source.documents, embedded.source.now())
    with pytest.raises(StartRefused, match="The source was released after this migration began"):
        moved(embedded, resume=True)
    empty(embedded.target, QueueRef("acme", "jobs"))
    release(embedded.target.documents, embedded.target.now())
    assert moved(embedded)[0] == 0


def empty(storage: Storage, queue: QueueRef) -> None:
    """Delete the queue, and its messages at once."""
    storage.queues.delete(queue)
    storage.maintain(storage.now())


def occupied(pair: Pair) -> str:
    pair.target.documents.put(DocumentRef("acme", "topic", "a"), b"{}", pair.target.now())
    return "The target is not empty: project 'acme'"


def staged(pair: Pair) -> str:
    Scene(pair.source, ManualClock(pair.source.now()), QueueRef("acme", "jobs")).stage("night")
    return "Stages of open transactions cannot be moved: night of project 'acme'"


def with_pools(pair: Pair) -> str:
    pair.source.documents.put(pool_ref("other"), b"{}", pair.source.now())
    return "The source has pools, whose queues are in other stores: other"


def of_another(pair: Pair) -> str:
    Records(pair.target.documents, pair.target.now).write(TargetRecord("redis:other", None))
    return "The target has a part of the data of redis:other, because another migration is not complete"


def incomplete(pair: Pair) -> str:
    Records(pair.source.documents, pair.source.now).write(TargetRecord("redis:other", None))
    return "The source has only a part of the data of redis:other"


def moved_before(pair: Pair) -> str:
    Records(pair.source.documents, pair.source.now).write(SourceRecord("redis:other", 1.0))
    return "The data of the source was moved to redis:other"


def moving_elsewhere(pair: Pair) -> str:
    Records(pair.source.documents, pair.source.now).write(SourceRecord("redis:other"))
    return "The data of the source is being moved to redis:other"


def moving_onward(pair: Pair) -> str:
    Records(pair.target.documents, pair.target.now).write(SourceRecord("redis:other"))
    return "The data of the target is being moved to redis:other"


def moved_onward(pair: Pair) -> str:
    """The target may still have the data of other projects, which servers must not serve."""
    Records(pair.target.documents, pair.target.now).write(SourceRecord("redis:other", 1.0))
    return "The data of the target was moved to redis:other"


def everything(pair: Pair) -> list[object]:
    """Return all contents of both stores, with the records of migrations and the stages."""
    return [
        (
            [contents(storage.parcels, project, storage.now()) for project in ("", "acme")],
            storage.transactions.list("acme", Work.STAGE, "", 9, storage.now()).items,
        )
        for storage in pair
    ]


RELEASABLE = (incomplete, moved_before, moving_elsewhere, of_another)
OTHERS = (occupied, staged, with_pools, moving_onward, moved_onward)


@pytest.mark.parametrize("obstacle", [*RELEASABLE, *OTHERS])
def test_a_store_that_cannot_be_moved_is_refused_unchanged(embedded: Pair, obstacle: Callable[[Pair], str]) -> None:
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)
    sentence = obstacle(embedded)
    before = everything(embedded)
    with pytest.raises(StartRefused, match=sentence) as refusal:
        moved(embedded, resume=obstacle is of_another)
    assert ("--release" in str(refusal.value)) == (obstacle in RELEASABLE)
    assert everything(embedded) == before


def test_open_commits_are_unchanged_until_nothing_can_be_refused(embedded: Pair) -> None:
    """The stage of another project causes a refusal. Only the commits of the projects to move are completed."""
    scenes = [Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef(one, "jobs")) for one in "ab"]
    for scene in scenes:
        scene.stage("done", 3)
        assert scene.decide(1, ["done"]).open
    scenes[1].stage("night")
    work, now = embedded.source.transactions, scenes[0].now
    before = work.find_unfinished_commits(now)
    assert len(before) == 2
    with pytest.raises(StartRefused, match="night of project 'b'"):
        moved(embedded)
    assert work.find_unfinished_commits(now) == before
    assert moved(embedded, projects=["a"])[0] == 0
    assert [one.project for one in work.find_unfinished_commits(now)] == ["b"]
    assert len(Scene(embedded.target, scenes[0].clock, scenes[0].queue).walk()) == 3


def test_stages_are_dropped_if_allowed(embedded: Pair) -> None:
    staged(embedded)
    with pytest.raises(StartRefused, match="no data of project 'typo'"):
        moved(embedded, drop_stages=True, projects=["acme", "typo"])
    assert moved(embedded, drop_stages=True)[0] == 0
    assert embedded.target.parcels.export("acme", "", 10, embedded.target.now()).items == []


def test_an_open_commit_is_completed_first(embedded: Pair) -> None:
    scene = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs"))
    scene.stage("night", 3)
    assert scene.decide(1, ["night"]).open
    assert moved(embedded)[0] == 0
    assert len(Scene(embedded.target, scene.clock, scene.queue).walk()) == 3


@pytest.fixture
def from_mongodb(stores: Stores, tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as closing_later:
        kinds = ("mongodb", "a"), ("rocksdb", "b")
        yield Pair(*(opened(closing_later, stores, tmp_path, *one) for one in kinds))


def test_an_undecided_commit_keeps_its_stages(from_mongodb: Pair) -> None:
    """The migration waits for the commit within its time limit; afterwards it is aborted to drop its stages."""
    client = from_mongodb.source._client
    job = Job(client)
    job.dies("begun")
    job.close()
    with pytest.raises(StartRefused, match=r"producer 'etl' of project 'acme' is under way\. Wait \d+ sec"):
        moved(from_mongodb, drop_stages=True)
    client.messages.update_many({"state": "preparing"}, {"$set": {"due": 0}})
    before = list(client.messages.find())
    with pytest.raises(StartRefused, match="a commit of producer 'etl' of project 'acme' was interrupted"):
        moved(from_mongodb)
    assert list(client.messages.find()) == before
    assert moved(from_mongodb, drop_stages=True)[0] == 0
    there = Scene(from_mongodb.target, job.input.clock, job.input.queue)
    assert sorted(message.id for message in there.walk()) == sorted(job.taken)


def test_each_of_many_undecided_commits_is_aborted(from_mongodb: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "FOUND_AT_ONCE", 1)
    client, parcels = from_mongodb.source._client, from_mongodb.source.parcels
    scene = Scene(from_mongodb.source, ManualClock(from_mongodb.source.now()), QUEUE)
    for producer in "abc":
        scene.stage(producer, 2)
        with pytest.raises(Dead):
            Scene(MongoStorage(client, At("begun", 1, die)), scene.clock, QUEUE).decide(
                1, [producer], producer=producer
            )
    client.messages.update_many({"state": "preparing"}, {"$set": {"due": 0}})
    assert len(parcels.find_undecided_commits("acme", scene.now)) == 3
    assert moved(from_mongodb, drop_stages=True)[0] == 0
    assert parcels.find_undecided_commits("acme", scene.now) == []


@pytest.mark.parametrize("kind", ["mongodb", "redis"])
def test_each_commit_of_a_project_is_completed_beside_many_of_other_projects(
    stores: Stores, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The projects of the older commits are not moved. An interrupted migration is resumed."""
    monkeypatch.setattr(commits, "FOUND_AT_ONCE", 1)
    monkeypatch.setattr(transactions, "MAX_READ_COMMITS", 1)
    with ExitStack() as closing_later:
        pair = Pair(*(opened(closing_later, stores, tmp_path, *one) for one in ((kind, "a"), ("rocksdb", "b"))))
        clock = ManualClock(pair.source.now())
        for project, producer in (("other", "etl"), ("acme", "etl"), ("acme", "etl2")):
            scene = Scene(pair.source, clock, QueueRef(project, "jobs"))
            scene.stage(producer, 2)
            assert scene.decide(1, [producer], producer=producer).open
            clock.advance(1)
        with pytest.raises(Killed):
            moved(pair, target=Mortal(pair.target, 1, False), projects=["acme"])
        assert moved(pair, projects=["acme"], resume=True)[0] == 0
        assert len(Scene(pair.target, clock, QUEUE).walk()) == 4
        assert [one.project for one in pair.source.transactions.find_unfinished_commits(clock.now())] == ["other"]


def test_a_search_on_mongodb_has_no_common_time_limit(from_mongodb: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of the search for projects and for missing queues has the whole time of an operation."""
    scene = Scene(from_mongodb.source, ManualClock(from_mongodb.source.now()), QueueRef("acme", "a"))
    for name in "abc":
        scene.at(name).post(1, once=make_key(name))
        scene.at(f"{name}{name}").stage("dropped", 1, once=make_key(name))
        scene.at(f"{name}{name}").drop_stage("dropped")
    requests: list[int] = []
    verb, find = StoreClient.verb, StoreClient.find

    def counted_verb(client: StoreClient, timeout: float | None = None) -> AbstractContextManager[None]:
        requests.append(0)
        return verb(client, timeout)

    def counted_find(client: StoreClient, *arguments: object, **options: object) -> object:
        requests[-1] += 1
        return find(client, *arguments, **options)

    reader = ParcelReader(from_mongodb.source._client)
    with monkeypatch.context() as patched:
        patched.setattr(StoreClient, "verb", counted_verb)
        patched.setattr(StoreClient, "find", counted_find)
        assert reader.missing("acme", "", 2) == ["aa", "bb"]
        assert reader.missing("acme", "bb", 2) == ["cc"]
        assert from_mongodb.source.parcels.projects() == ["acme"]
    assert set(requests) == {1}


def test_a_deleted_queue_of_a_mongodb_target_is_refused(from_mongodb: Pair) -> None:
    """The floor of the deleted queue would hide the messages."""
    former = Pair(from_mongodb.target, from_mongodb.source)
    scenes = [Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs")) for storage in former]
    scenes[0].post(2)
    scenes[1].post(2)
    former.target.queues.delete(scenes[1].queue)
    code, lines = moved(former)
    assert (code, "The queue 'jobs' was deleted in this store" in lines[-1]) == (1, True), lines


def test_only_the_named_projects_move(embedded: Pair) -> None:
    for project in ("a", "b"):
        Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef(project, "jobs")).post()
    with pytest.raises(StartRefused, match="The source has no data of project 'typo'"):
        moved(embedded, projects=["a", "typo"])
    assert moved(embedded, projects=["a"])[0] == 0
    assert embedded.target.parcels.projects() == ["", "a"]


def test_named_projects_need_the_records_of_the_deployment(embedded: Pair) -> None:
    """Without its data key, a project's encrypted messages would be unreadable."""
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("a", "jobs")).post()
    key = DocumentRef("", "data_keys", "a")
    embedded.source.documents.put(key, b"key", embedded.source.now())
    with pytest.raises(StartRefused, match="add --project ''"):
        moved(embedded, projects=["a"])
    assert moved(embedded, projects=["a", ""])[0] == 0
    assert embedded.target.documents.get(key, embedded.target.now()) is not None


def test_servers_refuse_both_stores_until_the_end(embedded: Pair) -> None:
    """Afterwards servers refuse only the source, unless only some of its projects were moved."""
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)
    with pytest.raises(Killed):
        moved(embedded, target=Mortal(embedded.target, 1, True))
    for storage, sentence in zip(
        embedded, ("is being moved to redis:target. Repeat", "a part of the data of rocksdb:source"), strict=True
    ):
        with pytest.raises(StartRefused, match=sentence):
            check_served(storage.documents, storage.now())
    assert moved(embedded, resume=True)[0] == 0
    check_served(embedded.target.documents, embedded.target.now())
    with pytest.raises(StartRefused, match=r"Use the target store\."):
        check_served(embedded.source.documents, embedded.source.now())


def test_a_source_with_other_projects_can_be_served(embedded: Pair) -> None:
    for project in ("a", "b"):
        Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef(project, "jobs")).post()
    assert moved(embedded, projects=["a"])[0] == 0
    for storage in embedded:
        check_served(storage.documents, storage.now())


def test_a_moved_store_is_served_after_its_release(tmp_path: Path) -> None:
    uri = f"rocksdb://{tmp_path}/store"
    with closing(connect(uri)) as storage:
        Records(storage.documents, storage.now).write(SourceRecord("redis:target", 1.0))
    server = run_apart("--store", uri, "--port", free_port())
    assert (server.code, "was moved to redis:target" in server.error) == (2, True), server
    assert run("migrate", "--release", uri).code == 0
    with closing(connect(uri)) as storage:
        check_served(storage.documents, storage.now())
    assert run("migrate", "--release", uri).code == 2


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_failing_store_is_named(embedded: Pair, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)

    def fail(*_args: object) -> None:
        raise Unavailable

    def copy(migration: Migration, record: TargetRecord) -> None:
        parcels = embedded.source.parcels if which == "source" else embedded.target.parcels
        with monkeypatch.context() as patched:
            patched.setattr(parcels, "export" if which == "source" else "adopt", fail)
            original(migration, record)

    original = Migration.copy
    with monkeypatch.context() as patched:
        patched.setattr(Migration, "copy", copy)
        code, lines = moved(embedded)
    assert (code, lines[-1].startswith(f"The {which} has failed: ")) == (1, True), lines
    assert "--resume" in lines[-1]


@pytest.mark.ability("unshare")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """The file system of the target has 1 MiB, and the source 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with closing(connect(f"rocksdb://{tmp_path}/a")) as source:
        post_two_mebibytes(source)
    done = run_on_small_disk(disk, "1m", "migrate", f"rocksdb://{tmp_path}/a", f"rocksdb://{disk}/b")
    assert (done.returncode, done.stdout.count("The target has failed: The store is full")) == (1, 1), done
    assert "--resume" in done.stdout


def test_a_full_redis_is_named_and_can_be_released(tmp_path: Path) -> None:
    """The migration continues once the server may use more memory."""
    with (
        RedisServer() as server,
        redis.Redis(port=server.port) as admin,
        closing(connect(server.uri)) as source,
        closing(connect(f"rocksdb://{tmp_path}/b")) as target,
    ):
        pair = Pair(source, target)
        Scene(source, ManualClock(source.now()), QueueRef("acme", "jobs")).post(2)
        admin.config_set("maxmemory", 1)
        code, lines = moved(pair)
        assert (code, "The source has failed: The store is full" in lines[-1]) == (1, True), lines
        assert "maxmemory" in lines[-1]
        admin.config_set("maxmemory", 0)
        assert moved(pair, resume=True)[0] == 0
        admin.config_set("maxmemory", 1)
        assert run("migrate", "--release", server.uri).code == 0
        check_served(source.documents, source.now())


def test_the_command_of_the_page_works(tmp_path: Path) -> None:
    """``api-ref/backup.md``: the output ends with the digest, although a server reported up to its stop just now."""
    source, target = f"rocksdb://{tmp_path}/store", f"rocksdb://{tmp_path}/new"
    with closing(connect(source)) as storage:
        scribble(storage, SEED, 30)
        storage.documents.put(DocumentRef("", "server", "a"), b"{}", storage.now(), expires=storage.now() + 60)
    (line,) = (block.text for block in blocks(ROOT / "api-ref/backup.md") if "zq-server migrate" in block.text)
    line = line.replace("rocksdb:///var/lib/zq", source).replace("redis://127.0.0.1:6379/0", target)
    assert "SHA-256 digest of both: " in succeed([*SHELL, line], tmp_path)


def test_a_move_without_downtime_delivers_each_message_once(tmp_path: Path) -> None:
    """``api-ref/backup.md``: messages of the old server that no consumer has finished are delivered by the new one.

    ``zq pipeline`` cannot forward them, because one commit, on one server, publishes and deletes messages. An earlier
    run of the program has stored a message, but has not deleted it.
    """
    page = [block.text for block in blocks(ROOT / "api-ref/backup.md")]
    (copy,) = (text for text in page if "zq export" in text)
    (forward,) = (text for text in page if "from zq.client" in text)
    with ZqServer("memory:") as before, ZqServer("memory:") as after:

        def on(text: str) -> str:
            return text.replace("http://old:8888", before.url).replace("http://new:8888", after.url)

        old, new = (Client(server.url, "acme").queue("orders") for server in (before, after))
        old.create({"owner": "shop"})
        parent = f"00-{'a' * 32}-{'b' * 16}-01"
        bodies = ["0", {"n": 1}, 2, None, [4]]
        old.post_many(bodies[:3])
        old.post(bodies[3], ttl=600, attributes={"traceparent": parent})
        old.post(bodies[4])
        succeed([*SHELL, on(f"export ZQ_PROJECT=acme\n{copy}")], tmp_path)
        assert new.metadata()["owner"] == "shop"
        new.post(5)
        (done,) = (each.body for each in old.consume(count=1, batch=1, wait=0))
        interrupted = next(each for each in old.list() if each.body != done)
        new.post(interrupted.raw, ttl=interrupted.ttl, key=interrupted.id, attributes=interrupted.attributes)
        succeed([*PYTHON, on(forward)], tmp_path)
        got = [*new.consume(until_empty=True, wait=0)]
        assert sorted([*map(repr, (each.body for each in got)), repr(done)]) == sorted(map(repr, [*bodies, 5]))
        assert [each.attributes["traceparent"] for each in got if each.attributes] == [parent]
        assert next(each.ttl for each in got if each.attributes) == 600
        assert [*old.list()] == []


def test_projects_without_a_known_name_must_be_named(stores: Stores, tmp_path: Path) -> None:
    """On Redis, keys do not contain the project's name, and earlier versions did not store it."""
    uri = stores.empty("redis", tmp_path, "a")
    with closing(connect(uri)) as source, closing(connect(f"rocksdb://{tmp_path}/b")) as target:
        source.documents.put(DocumentRef("acme", "topic", "news"), b"{}", source.now())
        with redis.Redis.from_url(uri) as client:
            client.delete(*client.keys("zq:*:due"))
        pair = Pair(source, target)
        with pytest.raises(StartRefused, match="data of 1 projects without queues"):
            moved(pair)
        assert moved(pair, projects=["acme"])[0] == 0
        assert target.documents.get(DocumentRef("acme", "topic", "news"), target.now()) is not None


def test_every_server_of_a_cluster_is_searched(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes a server without a part of the schedule: here, another database."""
    with ExitStack() as closing_later:
        first, second = (opened(closing_later, stores, tmp_path, "redis", name) for name in "ab")
        second.documents.put(DocumentRef("acme", "topic", "news"), b"{}", second.now())
        assert first.parcels.projects() == [""]
        networks = [storage._client.network for storage in (first, second)]
        monkeypatch.setattr(networks[0], "pools", lambda: [network.pool(b"") for network in networks])
        with pytest.raises(StartRefused, match="data of 1 projects without queues"):
            first.parcels.projects()


HEADERS = {"Client-ID": "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "X-Project-ID": "acme"}


def test_a_server_continues_on_the_new_store(stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encrypted messages are readable, a subscription exists, and a kill of the command loses nothing."""
    monkeypatch.setattr("zq.serving.migration.command.WATCH_SECONDS", 0.2)
    keys = tmp_path / "keys"
    keys.write_text(f"one {b64encode(bytes(32)).decode()}\n")
    keys.chmod(0o600)
    config = f"[transport]\nmessage_encryption_key_file = {keys}\n[signed_url]\nsecret_key = {'k' * 40}\n"
    source, target = f"rocksdb://{tmp_path}/store", stores.empty("redis", tmp_path, "a")
    messages = "/v2/queues/cards/messages"

    def call(server: ZqServer, method: str, path: str, document: object = None) -> object:
        answer = ask(server.url, method, path, document, headers=HEADERS)
        assert answer.status < 300, answer
        return answer.document

    with ZqServer(source, config=config) as server:
        call(server, "PUT", "/v2/queues/cards", {"_enable_encrypt_messages": True})
        for at in range(3):
            call(server, "POST", messages, {"messages": [{"body": f"secret-{at}"}] * 10})
        call(server, "POST", "/v2/queues/cards/subscriptions", {"subscriber": "http://example.org/"})
        busy = run_apart("migrate", source, target)
        assert (busy.code, "in use" in busy.error) == (2, True), busy.error
        page = call(server, "GET", f"{messages}?limit=12&echo=true")
        link = page["links"][0]["href"]
        server.terminate()
    kill_in_the_middle(source, target)
    done = run("migrate", source, target, "--resume")
    assert done.code == 0, done
    with ZqServer(target, config=config) as server:
        call(server, "POST", messages, {"messages": [{"body": "last"}]})
        rest, bodies = link, []
        while True:
            page = call(server, "GET", rest)
            if not page or not page["messages"]:
                break
            bodies += [message["body"] for message in page["messages"]]
            rest = page["links"][0]["href"]
        assert bodies == [f"secret-{at // 10}" for at in range(12, 30)] + ["last"]
        assert len(call(server, "GET", "/v2/queues/cards/subscriptions")["subscriptions"]) == 1


# The program, with a shorter interval between checks for servers.
QUICK = """
import sys
from zq.serving import server
from zq.serving.migration import command
command.WATCH_SECONDS = 0.2
sys.exit(server.main(sys.argv[1:]))
"""


def kill_in_the_middle(source: str, target: str) -> None:
    """Kill the command once the target has its record, without a change of the stored time."""
    command = [sys.executable, "-c", QUICK, "migrate", source, target]
    with closing(connect(target)) as storage:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            began = wait_for(
                lambda: storage.documents.get(TARGET, time.time()) or process.poll() is not None, 60, "it has begun"
            )
            assert began is not True, "the command was refused"
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rocksdb:a"], "Name the source and the target"),
        (["rocksdb:a", "rocksdb:a"], "must be different stores"),
        (["memory:", "rocksdb:a"], "A store in memory cannot be migrated"),
        (["s3://bucket/a", "rocksdb:a"], "A store in an object store cannot be migrated"),
        (["rocksdb:a", "redis://u:secret@127.0.0.1"], "must not contain a password"),
        (["@missing", "rocksdb:a"], "The file missing with the URI"),
        (["a", "b", "--keep", "3"], "--keep does not apply"),
        (["rocksdb:typo", "rocksdb:a"], "There is no store in typo"),
        (["--release"], "Name one store"),
        (["--release", "rocksdb:typo"], "There is no store in typo"),
    ],
)
def test_wrong_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = run("migrate", *arguments)
    assert (refused.code, sentence in refused.error) == (2, True), refused.error
    assert "secret" not in refused.error
    assert list(tmp_path.iterdir()) == []
