# SPDX-License-Identifier: Apache-2.0
"""Posts on MongoDB that are open while other servers read or change the queue.

A post that draws its sequences next to its transaction is stopped after one of its steps. The servers are connections
of one process; mongod cannot tell the difference.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from pymongo import MongoClient, WriteConcern
from pymongo.errors import NetworkTimeout, OperationFailure
from pymongo.monitoring import CommandListener, CommandStartedEvent

from tests.faults.test_mongodb_counters import draws, outcomes
from tests.rotation import CAMPAIGN, rotated
from tests.servers import wait_for
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import EVERYTHING, Scene, drafts, ids_of, run_together
from zq.errors import QueueNotFound, Unavailable
from zq.model import Copies, Grouping, Message, Position, QueueRef, State
from zq.model.expiry import Steps
from zq.storage.mongodb import MongoStorage, connect, layout
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.counter_cache import CounterCache
from zq.storage.mongodb.layout import QueueKey
from zq.storage.mongodb.numbering import DrawnNumbering
from zq.storage.mongodb.open_posts import OpenPosts

# The steps of a post after which it can be stopped.
STEPS = {"hold": (DrawnNumbering, "begin"), "draw": (DrawnNumbering, "assign"), "insert": (StoreClient, "insert")}
DATABASE = "open_posts"


class Stop:
    """A stop of a thread at a step of its first post until the test lets it continue."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.reached = threading.Event()
        self.may_go = threading.Event()

    def wait(self) -> None:
        if threading.current_thread() is self.thread and not self.reached.is_set():
            self.reached.set()
            self.may_go.wait(60)


@pytest.fixture
def servers(mongodb: MongoServer) -> Iterator[list[Scene]]:
    """Return three servers that draw sequences in a queue."""
    storages = [connect(mongodb.uri_of(DATABASE), drawn_sequences=True) for _ in range(3)]
    clock = ManualClock(storages[0].now())
    queue = QueueRef("acme", uuid4().hex)
    scenes = [Scene(storage, clock, queue) for storage in storages]
    scenes[0].storage.queues.create(scenes[0].queue, b"{}")
    for scene in scenes:
        draws(scene)
    yield scenes
    for storage in storages:
        storage.close()


@contextmanager
def stopped(
    step: str, monkeypatch: pytest.MonkeyPatch, post: Callable[[], list[str]]
) -> Iterator[tuple[Stop, "Future[list[str]]"]]:
    """Start a post and stop it after this step. The post continues at the end at the latest."""
    of, name = STEPS[step]
    original, stop = getattr(of, name), Stop()

    def stopping(*arguments: object) -> object:
        done = original(*arguments)
        stop.wait()
        return done

    def start() -> list[str]:
        stop.thread = threading.current_thread()
        return post()

    monkeypatch.setattr(of, name, stopping)
    with ThreadPoolExecutor(1) as pool:
        try:
            posted = pool.submit(start)
            assert stop.reached.wait(10)
            yield stop, posted
        finally:
            stop.may_go.set()


def followed(scene: Scene, marker: int = 0, limit: int = 3) -> tuple[list[Message], int]:
    """Return the messages after the marker, read page by page, and the next marker."""
    seen: list[Message] = []
    while True:
        page = scene.storage.messages.list(scene.queue, marker, limit, EVERYTHING, scene.now)
        if page.next is None:
            return seen, marker
        seen += page.items
        marker = int(page.next)


def with_history(scene: Scene) -> list[str]:
    """Return all messages of the queue from a listing of all states."""
    page = scene.storage.history.list(scene.queue, 0, 1000, None, scene.now)
    return [one.message.id for one in page.items]


def ready(scene: Scene) -> list[str]:
    """Return all ready messages of the queue, read page by page."""
    position, seen = Position(0, 0), list[str]()
    while True:
        page = scene.storage.messages.browse(scene.queue, State.READY, position, 3, scene.now)
        seen += ids_of(page.items)
        if page.next is None:
            return seen
        position = page.next


def later(stop: Stop, seconds: float = 0.3) -> None:
    threading.Timer(seconds, stop.may_go.set).start()


@pytest.mark.parametrize("step", ["draw", "insert"])
@pytest.mark.parametrize(
    "listing", [lambda scene: ids_of(followed(scene)[0]), with_history, ready], ids=["list", "history", "ready"]
)
def test_listing_beside_an_open_post_waits_for_it_and_has_its_messages(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch, step: str, listing: Callable[[Scene], list[str]]
):
    here, there, other = servers
    before = other.post(1)
    with stopped(step, monkeypatch, partial(there.post, 2)) as (stop, posted):
        after = here.post(2)
        later(stop)
        listed = listing(here)
        assert listed == [*before, *posted.result(10), *after]


def test_page_stays_full_if_messages_are_removed_while_it_waits(servers: list[Scene], monkeypatch: pytest.MonkeyPatch):
    """A short page looks like the end of the queue (L6)."""
    here, there, other = servers
    before = other.post(3)
    with stopped("insert", monkeypatch, partial(there.post, 2)) as (stop, posted):
        after = here.post(4)

        def consume() -> None:
            other.storage.messages.delete(other.queue, before, other.now)
            stop.may_go.set()

        threading.Timer(0.3, consume).start()
        page = here.storage.messages.list(here.queue, 0, 5, EVERYTHING, here.now)
        assert ids_of(page.items) == [*posted.result(10), *after[:3]]


def test_page_of_ready_messages_ends_before_posts_that_began_after_its_view(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch
):
    """A delayed message that is ready by now has a later available-at than these posts."""
    here, there, other = servers
    [first] = other.post(1)
    [delayed] = other.post(1, delay=5)
    view, posted = StoreClient.view, []

    def late(self: StoreClient, *arguments: Any) -> object:
        seen = view(self, *arguments)
        if self is here.storage._client and not posted:
            posted.extend(other.post(1))
        return seen

    monkeypatch.setattr(StoreClient, "view", late)
    with stopped("insert", monkeypatch, partial(there.post, 1)) as (stop, opened):
        after = other.post(1)
        later(stop)
        soon = Scene(here.storage, ManualClock(here.now + 6), here.queue)
        page = soon.storage.messages.browse(soon.queue, State.READY, Position(0, 0), 10, soon.now)
        assert ids_of(page.items) == [first, *opened.result(10), *after]
        assert page.next is not None
        rest = soon.storage.messages.browse(soon.queue, State.READY, page.next, 10, soon.now)
    assert ids_of(rest.items) == [*posted, delayed]


@contextmanager
def held_next(mongodb: MongoServer, lane: str) -> Iterator[threading.Event]:
    """Hold a lane from the end of its transaction on, as the next slow transaction of its server does."""
    is_held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with mongodb.client() as client, client.start_session() as session:
            while not is_held.is_set():
                session.start_transaction()
                with suppress(OperationFailure):
                    client[DATABASE]["messages"].update_one({"_id": "j" + lane}, {"$inc": {"t": 1}}, session=session)
                    is_held.set()
                    over.wait(60)
                session.abort_transaction()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        try:
            yield is_held
        finally:
            over.set()
            is_held.set()
            holding.result()


def test_listing_beside_a_server_with_slow_transactions_waits_for_one_of_them(
    servers: list[Scene], mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch
):
    here, there, other = servers
    with stopped("insert", monkeypatch, partial(there.post, 2)) as (stop, posted), ThreadPoolExecutor(1) as pool:
        after = here.post(1)
        listed = pool.submit(other.page, EVERYTHING)
        with held_next(mongodb, there.storage.messages._poster._lane.name) as is_held:
            later(stop, 1.2)
            assert is_held.wait(10)
            began = time.monotonic()
            assert listed.result(10) == [*posted.result(10), *after]
            assert time.monotonic() - began < 0.5


def test_listings_that_wait_for_the_same_post_touch_its_lane_one_at_a_time(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch
):
    here, there, other = servers
    touch, running, most = StoreClient.touch, [], []

    def counting(self: StoreClient, doc_id: str) -> object:
        running.append(doc_id)
        most.append(len(running))
        time.sleep(0.02)
        touched = touch(self, doc_id)
        running.remove(doc_id)
        return touched

    with stopped("insert", monkeypatch, partial(there.post, 1)) as (stop, posted):
        after = here.post(1)
        monkeypatch.setattr(StoreClient, "touch", counting)
        later(stop, 0.5)
        pages = run_together(*[lambda: other.page(EVERYTHING)] * 8)
        assert pages == [[*posted.result(10), *after]] * 8
    assert max(most) == 1


def test_touch_of_a_lane_waits_for_a_majority_whatever_the_write_concern(mongodb: MongoServer):
    class Commits(CommandListener):
        concerns: ClassVar[list[dict]] = []

        def started(self, event: CommandStartedEvent) -> None:
            if event.command_name == "commitTransaction":
                self.concerns.append(event.command["writeConcern"])

        def succeeded(self, event: object) -> None: ...

        def failed(self, event: object) -> None: ...

    with MongoClient(mongodb.uri_of(DATABASE), event_listeners=[Commits()]) as pymongo:
        client = StoreClient(pymongo, DATABASE, 10.0, WriteConcern(w=1, j=False), sharded=False)
        with client.verb():
            assert client.touch("j0") is not None
    assert Commits.concerns == [{"w": "majority", "j": True}]


def test_server_without_the_option_waits_for_open_posts_of_others(
    servers: list[Scene], mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch
):
    """All servers of a store need not have the same value of the option."""
    here, there, _ = servers
    storage = connect(mongodb.uri_of(DATABASE))
    without = Scene(storage, here.clock, here.queue)
    with stopped("insert", monkeypatch, partial(there.post, 2)) as (stop, posted):
        after = [*here.post(1), *without.post(1)]
        later(stop)
        assert without.page(EVERYTHING) == [*posted.result(10), *after]
    with stopped("draw", monkeypatch, partial(there.post, 2)) as (stop, posted):
        later(stop)
        storage.queues.purge(without.queue)
        assert stop.may_go.is_set(), "the purge waited for the post"
        assert posted.result(10)
    storage.close()


def test_listing_whose_page_is_consumed_while_it_waits_has_the_next_page(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch
):
    """An empty page would mean that no message is left."""
    here, there, other = servers
    first = other.post(1)
    original = OpenPosts._settle
    with stopped("draw", monkeypatch, partial(there.post, 1)) as (stop, posted):
        page, behind = here.post(3), here.post(10)

        def settle(*arguments: Any) -> object:
            stop.may_go.set()
            settled = original(*arguments)
            other.storage.messages.delete(other.queue, [*first, *posted.result(10), *page], other.now)
            return settled

        monkeypatch.setattr(OpenPosts, "_settle", settle)
        listed = ids_of(here.storage.messages.list(here.queue, 0, 4, EVERYTHING, here.now).items)
        assert listed == behind[:4]


def test_posts_that_create_queues_waste_no_sequences_of_other_queues(servers: list[Scene]):
    here, there, _ = servers
    there.post(1)  # so that ``here`` draws
    with ThreadPoolExecutor(8) as pool:
        for _ in range(24):
            pool.submit(Scene(here.storage, here.clock, QueueRef("other", uuid4().hex)).post, 1)
            pool.submit(here.post, 1)
    sequences = [one.sequence for one in followed(here, limit=100)[0]]
    assert len(sequences) == 25
    assert sequences[-1] - sequences[0] < 35


def test_listing_whose_page_ends_before_an_open_post_does_not_wait(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch
):
    here, there, _ = servers
    before = here.post(2)
    with stopped("draw", monkeypatch, partial(there.post, 2)) as (_, posted):
        assert ids_of(followed(here)[0]) == before
        here.post(1)
        assert here.page(limit=2) == before
        assert not posted.done()


@pytest.mark.parametrize("step", [*rotated(["draw", "insert"], 1), *(["hold"] if CAMPAIGN else [])])
def test_listing_beside_a_stopped_server_ends_its_transaction_and_misses_nothing(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch, step: str
):
    """The server continues later, and posts again with higher sequences."""
    here, there, other = servers
    other.post(1)
    with stopped(step, monkeypatch, partial(there.post, 2)) as (stop, posted):
        here.post(2)
        began = time.monotonic()
        seen, marker = followed(here)
        assert time.monotonic() - began < 3.5
        assert len(seen) == 3
        with monkeypatch.context() as patch:
            patch.delattr(OpenPosts, "_settle")
            assert len(followed(here)[0]) == 3, "what is settled is remembered"
        if step == "hold":  # nothing was drawn, so no reader has ended the transaction
            assert not posted.done()
        stop.may_go.set()
        new = posted.result(10)
    rest, _ = followed(here, marker)
    assert ids_of(rest) == new
    assert ids_of(followed(other)[0]) == [*ids_of(seen), *new]


def test_listing_of_a_queue_whose_document_was_removed_and_made_anew_waits_for_open_posts(
    servers: list[Scene], mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch
):
    """MongoDB removes the document 60 days after the deletion of the queue; sequences then begin again."""
    here, there, other = servers
    days = [0]
    here.storage.messages._open_posts = OpenPosts(here.storage._client, lambda: 86_400.0 * days[0])
    there.post(5)
    assert len(here.page(EVERYTHING)) == 5
    with mongodb.client() as client:
        client[DATABASE]["messages"].delete_many({"s": layout.key(here.queue).shard})
    days[0] = 60
    other.storage.queues.create(other.queue, b"{}")
    with stopped("insert", monkeypatch, partial(there.post, 2)) as (stop, posted):
        after = other.post(1)
        later(stop)
        assert here.page(EVERYTHING) == [*posted.result(10), *after]


def test_metadata_are_changed_once_no_open_post_has_the_former_ones(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch
):
    here, there, _ = servers
    for step, count in (("draw", 2), ("insert", 4)):
        with stopped(step, monkeypatch, partial(there.post, 2)) as (stop, posted), ThreadPoolExecutor(1) as pool:
            former = here.storage.queues.get(here.queue).metadata
            changed = pool.submit(here.storage.queues.update, here.queue, former, former + b" ")
            time.sleep(0.2)
            assert not changed.done()
            stop.may_go.set()
            assert changed.result(10)
            assert len(followed(here)[0]) == count
            posted.result(10)


def test_post_that_expects_former_metadata_is_refused(servers: list[Scene]):
    here, there, _ = servers
    there.storage.queues.update(here.queue, b"{}", b'{"a": 1}')
    assert here.storage.messages.post(here.queue, drafts(1, here.now), here.now, b"{}") == b'{"a": 1}'
    assert here.walk() == []
    assert here.storage.messages.post(here.queue, drafts(1, here.now), here.now, b'{"a": 1}') is None
    assert len(here.walk()) == 1


@pytest.mark.parametrize("way", ["purge", "delete"])
@pytest.mark.parametrize("step", ["draw", "insert"])
def test_removal_beside_an_open_post_waits_and_leaves_nothing_of_it(
    servers: list[Scene], mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch, way: str, step: str
):
    here, there, other = servers
    other.post(1)
    with stopped(step, monkeypatch, partial(there.post, 2)) as (stop, posted), ThreadPoolExecutor(1) as pool:
        removed = pool.submit(getattr(here.storage.queues, way), here.queue)
        time.sleep(0.2)
        assert not removed.done()
        assert other.walk() == []
        stop.may_go.set()
        removed.result(10)
        posted.result(10)
    assert here.walk() == []
    new = here.post(1)
    assert ids_of(other.walk()) == new
    here.storage.maintain(here.now)
    with mongodb.client() as client:
        of_queue = {"q": layout.key(here.queue).messages}
        assert client[DATABASE]["messages"].count_documents(of_queue) == 1


def test_maintenance_after_a_removal_of_a_dead_server_waits_for_open_posts(
    servers: list[Scene], mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise a message stored afterwards would stay forever, invisible."""
    here, there, other = servers
    with stopped("insert", monkeypatch, partial(there.post, 2)) as (stop, posted):
        with monkeypatch.context() as patch:
            patch.setattr(OpenPosts, "settle", lambda *_: (_ for _ in ()).throw(Unavailable()))
            with pytest.raises(Unavailable):
                here.storage.queues.purge(here.queue)
        later(stop)
        other.storage.maintain(other.now)
        posted.result(10)
    with mongodb.client() as client:
        of_queue = {"q": layout.key(here.queue).messages}
        assert client[DATABASE]["messages"].count_documents(of_queue) == 0
    assert here.walk() == []


def test_maintenance_after_a_removal_settles_once_and_not_for_each_batch(
    servers: list[Scene], mongodb: MongoServer, monkeypatch: pytest.MonkeyPatch
):
    here, _, other = servers
    here.post(10)
    here.storage.queues.purge(here.queue)
    settle, settled = OpenPosts.settle, []

    def counting(self: OpenPosts, key: QueueKey) -> None:
        settled.append(key)
        settle(self, key)

    monkeypatch.setattr(OpenPosts, "settle", counting)
    other.storage.maintain(other.now, pace=Steps(size=2))
    assert settled.count(layout.key(here.queue)) == 1
    with mongodb.client() as client:
        of_queue = {"q": layout.key(here.queue).messages}
        assert client[DATABASE]["messages"].count_documents(of_queue) == 0


def test_draw_that_is_executed_late_changes_nothing(servers: list[Scene], monkeypatch: pytest.MonkeyPatch):
    """Neither the range of a later open post nor the sequences change."""
    here, there, _ = servers
    there.post(1)
    send, late = StoreClient.send_once, []

    def lose(self: StoreClient, command: dict) -> dict:
        late.append(partial(send, self, command))
        monkeypatch.setattr(StoreClient, "send_once", send)
        raise NetworkTimeout("planted")

    monkeypatch.setattr(StoreClient, "send_once", lose)
    first = there.post(1)
    with stopped("draw", monkeypatch, partial(there.post, 2)) as (stop, posted):
        after = here.post(1)
        [repeat] = late
        repeat()
        here.at(f"{here.queue.name}.other").post(1)  # whose commit makes the draw visible to readers
        later(stop)
        assert ids_of(followed(here)[0])[1:] == [*first, *posted.result(10), *after]


def test_attempt_that_is_not_the_newest_of_its_lane_draws_nothing(servers: list[Scene]):
    """The post is stored nevertheless, with sequences of its own."""
    here, there, _ = servers
    posted = there.post(2)
    there.storage.messages._poster._lane.attempt = 0
    posted += there.post(2)
    messages = followed(here)[0]
    assert ids_of(messages) == posted
    assert [message.sequence for message in messages] == [1, 2, 3, 4]


def test_range_that_a_removal_has_hidden_is_drawn_again(servers: list[Scene], monkeypatch: pytest.MonkeyPatch):
    """With several queues, their documents are read after the draw. The post comes after the removal."""
    here, there, _ = servers
    find, copies = StoreClient.find, there.at(f"{there.queue.name}.copies")
    copies.post(1)
    purges = [here.storage.queues.purge]

    def purging(self: StoreClient, *arguments: object, **options: object) -> object:
        if "x." in str(options.get("fields")) and purges:
            monkeypatch.setattr(OpenPosts, "settle", lambda *_: None)
            purges.pop()(here.queue)
        return find(self, *arguments, **options)

    monkeypatch.setattr(StoreClient, "find", purging)
    new, beside = drafts(2, there.now), drafts(1, there.now)
    there.storage.messages.post(there.queue, new, there.now, copies=Copies(copies.queue, beside))
    assert purges == []
    assert ids_of(here.walk()) == ids_of(new)


def test_server_that_has_lost_its_lane_takes_another_one(servers: list[Scene], mongodb: MongoServer):
    here, _, other = servers
    posted = here.post(2)
    lane = here.storage.messages._poster._lane
    former = lane.name
    with mongodb.client() as client:
        taken = client[DATABASE]["messages"].update_one({"_id": "j" + former}, {"$set": {"o": "another"}})
        assert taken.modified_count == 1
    posted += here.post(2)
    posted += here.post(2)
    assert lane.name not in ("", former)
    assert ids_of(other.walk()) == posted


def test_server_does_not_wait_for_the_dead_owner_of_a_lane(servers: list[Scene], mongodb: MongoServer):
    """The server takes over another lane without a lease, or creates one."""
    here, there, other = servers
    here.post(1)
    with mongodb.client() as client, client.start_session() as session, session.start_transaction():
        lanes = client[DATABASE]["messages"]
        lanes.update_many({"_id": {"$gte": "j", "$lt": "k"}}, {"$set": {"u": datetime(2020, 1, 1, tzinfo=UTC)}})
        held = here.storage.messages._poster._lane.name
        lanes.update_one({"_id": "j" + held}, {"$inc": {"t": 1}}, session=session)
        for scene in (there, other):
            began = time.monotonic()
            scene.post(1)
            assert time.monotonic() - began < 0.4
        names = {scene.storage.messages._poster._lane.name for scene in servers}
        assert len(names) == 3
        assert "" not in names


def test_two_servers_that_use_one_lane_lose_and_double_nothing(servers: list[Scene]):
    here, there, other = servers
    here.post(1)
    mine, its = (scene.storage.messages._poster._lane for scene in (here, there))
    its._owner, its.name, its.group, its.attempt = mine._owner, mine.name, mine.group, mine.attempt

    def many(scene: Scene) -> list[str]:
        return [message for _ in range(20) for message in scene.post(2)]

    told = run_together(*[partial(many, scene) for scene in (here, there)])
    seen = [message.id for message in followed(other)[0]][1:]
    assert sorted(seen) == sorted(message for its in told for message in its)
    for its in told:
        assert [message for message in seen if message in set(its)] == its


def test_missing_queue_is_made_and_not_drawn_in(servers: list[Scene], mongodb: MongoServer):
    """This holds whether or not the queue existed before."""
    here, there, _ = servers
    here.post(2)
    here.storage.queues.delete(here.queue)
    made = here.at(f"{here.queue.name}.new")
    for scene in (here, made):
        draws(scene)
        posted = scene.post(2)
        assert ids_of(there.at(scene.queue.name).walk()) == posted
        with mongodb.client() as client:
            counter = client[DATABASE]["messages"].find_one({"_id": layout.key(scene.queue).counter})
        assert "e" not in counter
        assert counter["n"] == layout.key(scene.queue).shard
        assert [drawn["f"] for drawn in counter.get("x", {}).values()] in ([], [1])


def test_post_that_must_not_create_a_known_queue_that_another_server_deleted_is_refused(servers: list[Scene]):
    here, there, _ = servers
    here.post(1)
    there.storage.queues.delete(there.queue)
    with pytest.raises(QueueNotFound):
        here.storage.messages.post(here.queue, drafts(1, here.now), here.now, create=False)
    assert not there.exists()


def test_group_in_known_queues_takes_as_few_commands_as_possible(mongodb: MongoServer):
    """A group in one queue takes one command to draw; several queues take another to read their ranges."""

    class Commands(CommandListener):
        names: ClassVar[list[str]] = []

        def started(self, event: CommandStartedEvent) -> None:
            name = event.command_name
            if name == "commitTransaction" or event.command[name] == layout.MESSAGES:
                self.names.append(name)

        def succeeded(self, event: object) -> None: ...

        def failed(self, event: object) -> None: ...

    with MongoClient(mongodb.uri_of(DATABASE), event_listeners=[Commands()]) as pymongo:
        durable = WriteConcern(w="majority", j=True)
        storage = MongoStorage(StoreClient(pymongo, DATABASE, 10.0, durable, sharded=False, draws=True))
        here = Scene(storage, ManualClock(storage.now()), QueueRef("acme", uuid4().hex))
        copies = here.at(f"{here.queue.name}.copies")
        here.post(1)
        copies.post(1)
        draws(here)
        found = []
        for count in (0, 0, 1, 1):
            Commands.names.clear()
            beside = Copies(copies.queue, drafts(1, here.now)) if count else None
            here.storage.messages.post(here.queue, drafts(1, here.now), here.now, copies=beside)
            found.append(list(Commands.names))
        storage._feed.close()
    assert found[1] == ["update", "findAndModify", "insert", "commitTransaction"]
    assert found[3] == ["update", "update", "find", "insert", "commitTransaction"]


def test_group_of_several_queues_draws_in_each(servers: list[Scene], monkeypatch: pytest.MonkeyPatch):
    """A post and its copies become visible together, and a listing of the copies waits, too."""
    here, there, _ = servers
    copies = [scene.at(f"{scene.queue.name}.copies") for scene in servers]
    copies[0].post(1)
    new, beside = drafts(2, there.now), drafts(1, there.now)

    def post() -> list[str]:
        pair = Copies(copies[1].queue, beside)
        there.storage.messages.post(there.queue, new, there.now, copies=pair)
        return ids_of(new)

    with stopped("insert", monkeypatch, post) as (stop, posted):
        last = copies[0].post(1)
        later(stop)
        assert ids_of(followed(copies[2])[0])[1:] == [*ids_of(beside), *last]
        posted.result(10)
    assert ids_of(here.walk()) == ids_of(new)


@pytest.mark.parametrize("grouping", [Grouping.ORDERED, Grouping.FAIR])
def test_posts_to_one_group_become_visible_in_the_order_of_their_sequences(
    servers: list[Scene], monkeypatch: pytest.MonkeyPatch, grouping: Grouping
):
    """The second one of two open posts to a group conflicts at the group's entry, and draws again."""
    lines = [scene.at(f"{scene.queue.name}.{grouping.value}") for scene in servers]
    lines[0].storage.queues.create(lines[0].queue, b"{}", grouping)
    for line in lines:
        draws(line)
    here, there, other = lines
    with stopped("draw", monkeypatch, partial(there.post, 2)) as (stop, posted):
        first = here.post(2)
        stop.may_go.set()
        second = posted.result(10)
    assert ids_of(other.walk()) == [*first, *second]
    assert other.claimable(2) == first


def test_readers_beside_three_servers_miss_nothing_and_discard_nothing(servers: list[Scene]):
    posts = 100 if CAMPAIGN else 25
    over = threading.Event()

    def many(scene: Scene) -> list[str]:
        return [message for at in range(posts) for message in scene.post(1 + at % 4)]

    def follow(scene: Scene) -> list[str]:
        marker, seen = 0, []
        while True:
            is_last = over.is_set()
            new, marker = followed(scene, marker, 20)
            seen += ids_of(new)
            if is_last:
                return seen

    with ThreadPoolExecutor(6) as pool:
        readers = [pool.submit(follow, scene) for scene in servers for _ in range(2)]
        told = run_together(*[partial(many, scene) for scene in servers * 2])
        over.set()
        seen = [reader.result(30) for reader in readers]
    stored = ids_of(servers[0].walk())
    assert sorted(stored) == sorted(message for its in told for message in its)
    assert all(its == stored for its in seen)
    found = [outcomes(scene) for scene in servers]
    assert [one["failed"] for one in found] == [0, 0, 0]
    assert [one["outdated"] for one in found] == [0, 0, 0]
    # A listing that waits for a slow post can abort it once.
    assert sum(one["conflict"] for one in found) <= 0.1 * sum(one["committed"] for one in found)


def test_servers_that_have_noticed_each_other_post_without_conflicts(servers: list[Scene]):
    pair = servers[:2]
    for scene in pair:
        scene.storage._client.counters = CounterCache(shared_seconds=3600)
    for scene in pair * 2:
        scene.post(1)
    before = [outcomes(scene) for scene in pair]

    def many(scene: Scene) -> None:
        for _ in range(30):
            scene.post(1)

    run_together(*[partial(many, scene) for scene in pair])
    for scene, earlier in zip(pair, before, strict=True):
        found = outcomes(scene)
        assert found["committed"] > earlier["committed"]
        assert found["conflict"] + found["outdated"] == earlier["conflict"] + earlier["outdated"]
    assert len(pair[0].walk()) == 64


@pytest.mark.parametrize("lasts", [0.0, 0.3])
def test_server_that_is_alone_again_stops_to_draw(servers: list[Scene], lasts: float):
    here, there, _ = servers
    here.storage._client.counters = counters = CounterCache(shared_seconds=lasts)
    key = layout.key(here.queue)
    here.post(1)
    there.post(1)
    here.post(1)
    assert counters.is_shared([key]) == (lasts > 0)
    wait_for(lambda: not counters.is_shared([key]), 5, "the counter is not shared any more")
    here.post(1)
    here.post(1)
    assert key in counters.get([key])
