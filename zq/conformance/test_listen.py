# SPDX-License-Identifier: Apache-2.0
"""Listeners are notified of each queue in which any process makes a message ready (extensions, section 2)."""

import threading
from collections.abc import Callable

import pytest
from msgspec import structs

from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, OpenStore, Scene, drafts, ids_of
from zq.core.redelivery import DeadLetters
from zq.model import ClaimRef, Copies, Grouping, HandleOutcome, Lease, Move, QueueRef, Release
from zq.storage.api import Storage

pytestmark = [pytest.mark.needs_part("listen"), pytest.mark.every_server, pytest.mark.fresh_store]

SOON = 30.0
"""Seconds within which a notification must arrive; drivers need milliseconds."""
SPARE = ".spare"
"""Suffix of the queue in which an action is repeated, since a notification may be lost."""


class Listener:
    """A listener that remembers the queues of its notifications."""

    def __init__(self) -> None:
        self._heard: set[QueueRef] = set()
        self._news = threading.Condition()

    def __call__(self, queue: QueueRef) -> None:
        with self._news:
            self._heard.add(queue)
            self._news.notify_all()

    def hears(self, queue: QueueRef) -> bool:
        """Return whether a notification of the queue has arrived or arrives soon."""
        with self._news:
            return self._news.wait_for(lambda: queue in self._heard, SOON)


Preparation = Callable[[Scene], object]
Deed = Callable[[Scene], object]


def nothing(scene: Scene) -> None:
    pass


def posted(scene: Scene) -> None:
    scene.at(scene.queue.name + ".source").post(2)


def claimed(scene: Scene) -> None:
    scene.post(2)
    scene.take(2, name="c1")


def source_claimed(scene: Scene) -> None:
    posted(scene)
    scene.at(scene.queue.name + ".source").take(2, name="c1")


def moved(scene: Scene) -> None:
    source = scene.at(scene.queue.name + ".source")
    source.move(source.page(), scene.queue.name)


def settled_away(scene: Scene) -> None:
    source = scene.at(scene.queue.name + ".source")
    source.settle("c1", move=[Move(source.held("c1")[0], scene.queue.name)])


def dead_lettered(scene: Scene) -> None:
    source = scene.at(scene.queue.name + ".source")
    assert source.claim(dead_letters=DeadLetters(scene.queue, 0, None)) is None


def put_back(scene: Scene) -> None:
    scene.settle("c1", release=[Release(scene.held("c1")[0])])


def let_go(scene: Scene) -> None:
    [message, _] = scene.get(scene.held("c1"))
    assert scene.handle([message], 0) == [HandleOutcome.DONE]


def put_back_now(scene: Scene) -> None:
    scene.release("c1", 0)


def copied(scene: Scene) -> None:
    source = scene.at(scene.queue.name + ".source")
    copies = Copies(scene.queue, drafts(1, scene.now))
    source.storage.messages.post(source.queue, drafts(1, scene.now), scene.now, copies=copies)


def staged(scene: Scene) -> None:
    scene.stage(scene.queue.name, 2)


def committed(scene: Scene) -> None:
    assert scene.commit(1, [scene.queue.name], producer=scene.queue.name).published == 2


def head_claimed(scene: Scene) -> None:
    """Claim the head of a group: the messages behind it are not ready."""
    assert scene.storage.queues.create(scene.queue, b"{}", Grouping.ORDERED)
    new = [structs.replace(draft, group="a") for draft in drafts(2, scene.now)]
    scene.storage.messages.post(scene.queue, new, scene.now)
    scene.take(1, name="c1")


def head_deleted_by_claim(scene: Scene) -> None:
    [head] = scene.held("c1")
    scene.delete(head, "c1")


def head_deleted(scene: Scene) -> None:
    scene.delete_many(scene.held("c1"))


def head_settled(scene: Scene) -> None:
    scene.settle("c1", delete=scene.held("c1"))


def head_settled_away(scene: Scene) -> None:
    [head] = scene.held("c1")
    scene.settle("c1", move=[Move(head, scene.queue.name + ".target")])


def head_buried(scene: Scene) -> None:
    [head] = scene.held("c1")
    scene.settle("c1", move=[Move(head, scene.queue.name + ".target", reason="rejected")])


def head_handled(scene: Scene) -> None:
    assert scene.handle(scene.get(scene.held("c1"))) == [HandleOutcome.DONE]


def head_committed(scene: Scene) -> None:
    claim = ClaimRef(scene.queue, "c1", 0)
    assert scene.commit(1, settle=[claim], producer=scene.queue.name).deleted == 1


WAYS: dict[str, tuple[Preparation, Deed]] = {
    "post": (nothing, lambda scene: scene.post()),
    "post.with.copies": (nothing, copied),
    "release": (claimed, lambda scene: scene.release("c1")),
    "release.with.delay.0": (claimed, put_back_now),
    "settle.release": (claimed, put_back),
    "handle": (claimed, let_go),
    "settle.move": (source_claimed, settled_away),
    "move": (posted, moved),
    "dead.letter": (posted, dead_lettered),
    "commit": (staged, committed),
    "group.delete.by.claim": (head_claimed, head_deleted_by_claim),
    "group.delete": (head_claimed, head_deleted),
    "group.settle.delete": (head_claimed, head_settled),
    "group.settle.move": (head_claimed, head_settled_away),
    "group.settle.bury": (head_claimed, head_buried),
    "group.handle": (head_claimed, head_handled),
    "group.commit": (head_claimed, head_committed),
}


@pytest.fixture
def prepared(storage: Storage) -> Storage:
    """Return the store with two queues for each action. No message in them is ready."""
    for name, (prepare, _) in WAYS.items():
        for queue in (name, name + SPARE):
            prepare(Scene(storage, ManualClock(storage.now()), QueueRef("acme", queue)))
    return storage


def check(listening: Storage, acting: Storage) -> None:
    """Check that each action notifies the listener, and that a message is ready at the notification."""
    ear = Listener()
    listening.listen(ear)
    for name, (_, deed) in WAYS.items():
        for queue in (QueueRef("acme", name), QueueRef("acme", name + SPARE)):
            scene = Scene(acting, ManualClock(acting.now()), queue)
            deed(scene)
            if ear.hears(queue):
                break
        else:
            pytest.fail(f"Nothing was heard of {name}.")
        found = Scene(listening, scene.clock, queue)
        assert found.ready() > 0
        assert ids_of(found.take(1).messages) != []


def test_a_listener_is_notified_by_its_own_connection(prepared: Storage):
    """Post, release, settlement, move, burial and publishing notify, each in a queue of its own."""
    check(prepared, prepared)


@pytest.mark.shared
def test_a_listener_is_notified_by_another_connection(open_store: OpenStore, prepared: Storage):
    acting = open_store()
    check(prepared, acting)
    acting.close()


def test_a_listener_is_notified_of_a_next_head_after_a_claimed_one_expired(storage: Storage, scene: Scene):
    """Either the listener is notified, or the store reports when the next head becomes ready."""
    assert storage.queues.create(scene.queue, b"{}", Grouping.ORDERED)
    for ttl in (60, 3600):
        [draft] = drafts(1, scene.now, ttl=ttl)
        storage.messages.post(scene.queue, [structs.replace(draft, group="a")], scene.now)
    request = structs.replace(scene.request(1), lease=Lease("c1", 300, 0, prolong=False))
    assert storage.claims.create(scene.queue, request, scene.now).claim is not None
    known = scene.due()
    expiry = scene.tick(61)
    if known is None or known > expiry:
        ear = Listener()
        storage.listen(ear)
        storage.maintain(scene.now)
        assert ear.hears(scene.queue)
    assert scene.ready() == 1


def test_a_notification_wakes_a_waiting_consumer(storage: Storage, scene: Scene):
    """A consumer that claims, waits for a notification and claims again gets every message."""
    news = threading.Semaphore(0)
    storage.listen(lambda queue: news.release())
    taken: list[str] = []

    def claimer() -> None:
        while len(taken) < 40:
            some = scene.claimable(7)
            taken.extend(some)
            if not some and not news.acquire(timeout=SOON):
                return

    worker = threading.Thread(target=claimer)
    worker.start()
    posted_ids = [id for _ in range(20) for id in scene.post(2)]
    worker.join(DEADLINE)
    assert sorted(taken) == sorted(posted_ids)
