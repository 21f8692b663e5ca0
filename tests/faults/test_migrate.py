# SPDX-License-Identifier: Apache-2.0
"""``zq-server migrate``: a store moves to a store of another kind with all that clients can see, also through kills."""

import itertools
import os
import random
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from tests.blocks import ROOT, blocks
from tests.commands import MODULE, run, run_apart
from tests.reader import SHELL, succeed
from tests.rotation import SEED
from tests.servers import ZqServer, ask, wait_for
from tests.stores import Stores
from zq.clock import ManualClock
from zq.conformance.builders import Scene, make_key
from zq.conformance.test_groups import send
from zq.conformance.topic_builders import Log
from zq.errors import StartRefused
from zq.model import ClaimRef, Grouping, ListFilter, QueueRef
from zq.model.documents import DocumentRef
from zq.model.parcels import Fact, Parcel, facts
from zq.model.pools import pool_ref
from zq.model.topics import Retention
from zq.serving.migrate_command import RECORD, Migration, Options, Record, migrate
from zq.storage import check, connect
from zq.storage.api import Storage
from zq.storage.capabilities import ParcelController

pytestmark = pytest.mark.one_store

KINDS = ("rocksdb", "redis", "mongodb")
PAIRS = list(itertools.permutations(KINDS, 2))
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
    """Use the verbs of the store at random; return the clock, which is that of the store at the end."""
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
    code = migrate(pair.source, target or pair.target, "rocksdb:source", Options(**options), lines.append)
    return code, lines


def contents(parcels: ParcelController, project: str, now: float) -> list[Fact]:
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


def test_a_store_moves_to_a_store_of_another_kind(pair: Pair) -> None:
    """All items are equal, and a marker of the source misses no message that the target gets later (L6)."""
    clock = scribble(pair.source, SEED)
    code, lines = moved(pair)
    assert code == 0, lines
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


@pytest.mark.parametrize(("last", "stored"), [(1, False), (9, False), (15, True)])
def test_a_killed_migration_is_resumed(
    embedded: Pair, monkeypatch: pytest.MonkeyPatch, last: int, stored: bool
) -> None:
    monkeypatch.setattr("zq.serving.migrate_command.PAGE", 5)
    monkeypatch.setattr("zq.serving.migrate_command.RECORD_INTERVAL", 0)
    scribble(embedded.source, SEED + last)
    with pytest.raises(Killed):
        moved(embedded, target=Mortal(embedded.target, last, stored))
    with pytest.raises(StartRefused, match="add --resume"):
        moved(embedded)
    assert moved(embedded, resume=True)[0] == 0
    assert_moved(embedded)
    assert moved(embedded, resume=True) == (0, ["This migration is complete already."])


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
    copy, told = Migration.copy, list[str]()

    def copy_and_spoil(migration: Migration, record: Record) -> None:
        copy(migration, record)
        told.append(spoil(embedded.target))

    monkeypatch.setattr(Migration, "copy", copy_and_spoil)
    code, lines = moved(embedded)
    assert (code, told[0] in lines[-1]) == (1, True), lines
    with pytest.raises(StartRefused, match="add --resume"):
        moved(embedded)


def occupied(pair: Pair) -> str:
    pair.target.documents.put(DocumentRef("acme", "topic", "a"), b"{}", pair.target.now())
    return "The target is not empty: project 'acme'"


def staged(pair: Pair) -> str:
    Scene(pair.source, ManualClock(pair.source.now()), QueueRef("acme", "jobs")).stage("night")
    return "Stages of open transactions cannot be moved: night of project 'acme'"


def served(pair: Pair) -> str:
    ref = DocumentRef("", "server", "a")
    pair.source.documents.put(ref, b"{}", pair.source.now(), expires=pair.source.now() + 60)
    return "A server uses the source"


def with_pools(pair: Pair) -> str:
    pair.source.documents.put(pool_ref("other"), b"{}", pair.source.now())
    return "The source has pools, whose queues are in other stores: other"


def of_another(pair: Pair) -> str:
    migrate(pair.source, pair.target, "redis:other", Options(), lambda _line: None)
    return "another migration, of redis:other"


@pytest.mark.parametrize("obstacle", [occupied, staged, served, with_pools, of_another])
def test_a_store_that_cannot_be_moved_is_refused_unchanged(embedded: Pair, obstacle: Callable[[Pair], str]) -> None:
    Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs")).post(2)
    sentence = obstacle(embedded)
    before = embedded.target.documents.get(RECORD, embedded.target.now())
    with pytest.raises(StartRefused, match=sentence):
        moved(embedded, resume=obstacle is of_another)
    assert embedded.target.documents.get(RECORD, embedded.target.now()) == before


def test_stages_are_dropped_if_allowed(embedded: Pair) -> None:
    staged(embedded)
    assert moved(embedded, drop_stages=True)[0] == 0
    assert embedded.target.parcels.export("acme", "", 10, embedded.target.now()).items == []


def test_an_open_commit_is_completed_first(embedded: Pair) -> None:
    scene = Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef("acme", "jobs"))
    scene.stage("night", 3)
    assert scene.decide(1, ["night"]).open
    assert moved(embedded)[0] == 0
    assert len(Scene(embedded.target, scene.clock, scene.queue).walk()) == 3


def test_only_the_named_projects_move(embedded: Pair) -> None:
    for project in ("a", "b"):
        Scene(embedded.source, ManualClock(embedded.source.now()), QueueRef(project, "jobs")).post()
    with pytest.raises(StartRefused, match="The source has no data of project 'typo'"):
        moved(embedded, projects=["a", "typo"])
    assert moved(embedded, projects=["a"])[0] == 0
    assert embedded.target.parcels.projects() == ["", "a"]


def test_the_command_of_the_page_works(stores: Stores, tmp_path: Path) -> None:
    """``api-ref/backup.md``: the printed digest is the last word, and the source is as before."""
    source, target = f"rocksdb://{tmp_path}/store", stores.empty("redis", tmp_path, "a")
    with closing(connect(source)) as storage:
        scribble(storage, SEED, 30)
    (line,) = (block.text for block in blocks(ROOT / "api-ref/backup.md") if "zq-server migrate" in block.text)
    line = line.replace("rocksdb:///var/lib/zq", source).replace("redis://127.0.0.1:6379/0", target)
    assert "SHA-256 digest of both: " in succeed([*SHELL, line], tmp_path)


def test_projects_without_a_known_name_must_be_named(stores: Stores, tmp_path: Path) -> None:
    """On Redis, the keys of a project do not contain its name, and former versions did not note it."""
    uri = stores.empty("redis", tmp_path, "a")
    with closing(connect(uri)) as source, closing(connect(f"rocksdb://{tmp_path}/b")) as target:
        source.documents.put(DocumentRef("acme", "topic", "news"), b"{}", source.now())
        with redis.Redis.from_url(uri) as client:
            client.delete(*client.keys("zq:*:due"))
        pair = Pair(source, target)
        with pytest.raises(StartRefused, match="data of 1 projects whose names it does not record"):
            moved(pair)
        assert moved(pair, projects=["acme"])[0] == 0
        assert target.documents.get(DocumentRef("acme", "topic", "news"), target.now()) is not None


HEADERS = {"Client-ID": "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "X-Project-ID": "acme"}


def test_a_server_continues_on_the_new_store(stores: Stores, tmp_path: Path) -> None:
    """Encrypted messages are read, a subscription is known, and a kill of the command loses nothing."""
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
        server.terminate()  # a killed server would count as running for a minute
    kill_in_the_middle(source, target)
    done = run_apart("migrate", source, target, "--resume")
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


def kill_in_the_middle(source: str, target: str) -> None:
    """Kill the command as soon as the target has its record."""
    command = [sys.executable, "-m", MODULE, "migrate", source, target]
    with closing(connect(target)) as storage:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            began = wait_for(
                lambda: storage.documents.get(RECORD, storage.now()) or process.poll() is not None, 60, "it has begun"
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
        (["s3://bucket/a", "rocksdb:a"], "Copy a store in an object store"),
        (["rocksdb:a", "redis://u:secret@127.0.0.1"], "must not contain a password"),
        (["@missing", "rocksdb:a"], "The file missing with the URI"),
        (["a", "b", "--keep", "3"], "--keep does not apply"),
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
