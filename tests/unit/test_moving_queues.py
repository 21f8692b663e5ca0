# SPDX-License-Identifier: Apache-2.0
"""Moves of queues between pools on real stores: what moves, what is refused meanwhile, and who continues after a crash.

Each deployment has one catalogue; each of its servers is a ``PooledStorage`` with a mover of its own.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.abilities import need
from tests.servers import wait_for
from tests.stores import Stores
from zq.clock import StoreClock
from zq.conformance.builders import Scene, drafts, make_key
from zq.core.redelivery import Redelivery
from zq.errors import (
    ClaimNotFound,
    MoveNotFound,
    MoveRefused,
    PoolNotFound,
    PoolsApart,
    QueueMoving,
    QueueNotFound,
    Unavailable,
)
from zq.model import Copies, QueueRef
from zq.model import Move as MessageMove
from zq.model.documents import DocumentRef
from zq.model.hidden import Owner
from zq.model.limits import Limits
from zq.model.parcels import facts
from zq.model.pools import (
    ACTIVE,
    FREEZE,
    TOKEN,
    Freeze,
    Pool,
    binding_ref,
    flavor_ref,
    freeze_ref,
    index_ref,
    pool_ref,
    token_ref,
)
from zq.pools import mover as mover_module
from zq.pools.mover import Lease, Mover, Server
from zq.pools.moves import Move, Moves
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.pooling import PooledStorage, freezes
from zq.storage.pooling import bindings as bindings_module
from zq.storage.pooling.bindings import Bindings

DRIVERS = ("rocksdb", "redis", "mongodb")
QUEUE = QueueRef("acme", "jobs")
DEAD = QueueRef("acme", "dead")


class Member:
    """One server of the deployment: its pooled store, and its mover, which runs only when a test says so."""

    def __init__(self, deployment: "Deployment") -> None:
        self.storage = PooledStorage(deployment.catalogue, deployment.open, virtual=True)
        self.storage.follow_moves(is_shared=True)
        clock = StoreClock(deployment.catalogue.now)
        relocation = self.storage.relocation
        self.mover = Mover(
            relocation,
            deployment.catalogue,
            clock,
            lambda wake: Moves(relocation, deployment.catalogue, clock, Limits(), wake),
            lambda: deployment.servers,
        )
        self.moves = self.mover.moves

    def scene(self, name: str = "jobs") -> Scene:
        return Scene(self.storage, SimpleNamespace(now=self.storage.now), QueueRef("acme", name))

    def request(self, pool: str, queue: str = "jobs") -> Move:
        return self.moves.start(pool, "acme", msgspec.json.encode({"queue": queue}))

    def move(self, pool: str, queue: str = "jobs") -> Move:
        """Request a move, run it, and return it."""
        requested = self.request(pool, queue)
        self.mover.run_round()
        return self.moves.get(pool, requested.id)

    def contents(self, *queues: QueueRef) -> list[str]:
        """Return everything that the stores of the queues keep of them, as text."""
        now, found = self.storage.now(), []
        for queue in queues:
            binding = self.storage.relocation.binding(queue)
            store: Any = self.storage.relocation.store(binding.pool if binding else "")
            after = ""
            while (page := store.parcels.export_queue(queue, after, 3, now)).next is not None:
                found += [repr(fact) for parcel in page.items for fact in facts(parcel, now)]
                after = page.next
        return sorted(found)


class Deployment:
    """A catalogue in memory and the stores of pools."""

    def __init__(self, opened: ExitStack, uris: dict[str, str]) -> None:
        self.catalogue = connect("memory:")
        self.uris = uris
        self.servers: list[Server] = []
        self.stores: dict[str, Storage] = {}
        self._opened = opened
        opened.callback(self.catalogue.close)
        for name, uri in uris.items():
            self.add_pool(name, uri)

    def add_pool(self, name: str, uri: str, flavor: str | None = None) -> None:
        value = msgspec.json.encode(Pool(uri, 0, flavor))
        self.catalogue.documents.put(pool_ref(name), value, self.catalogue.now())

    def open(self, uri: str, _expiry: object) -> Storage:
        if uri not in self.stores:
            self.stores[uri] = connect("memory:" if uri.startswith("memory:") else uri)
            self._opened.callback(self.stores[uri].close)
        return self.stores[uri]

    def member(self) -> Member:
        member = Member(self)
        self._opened.callback(member.storage.relocation._freezes.stop)
        return member


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers follow a move at once."""
    monkeypatch.setattr(freezes, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(mover_module, "READ_GRACE", 0.0)
    monkeypatch.setattr(mover_module, "FREEZE_INTERVAL", 0.01)


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    """Pools ``a`` and ``b`` in memory."""
    with ExitStack() as opened:
        yield Deployment(opened, {"a": "memory:a", "b": "memory:b"})


@pytest.fixture
def member(deployment: Deployment) -> Member:
    return deployment.member()


def fill(member: Member) -> list[str]:
    """Store messages in all states, history, keys and dead letters, and return the names of the queues."""
    member.storage.queues.create(QUEUE, b'{"_dead_letter_queue": "dead", "_max_claim_count": 3}')
    scene = member.scene()
    scene.post(5, once=make_key("post:1"))
    scene.post(1, delay=600)
    scene.take(1, ttl=300, redelivery=Redelivery(delay=30))
    scene.release(scene.take(1).id, 0)
    scene.settle(scene.take(1).id, rest=True, history=600, once=make_key("settle:1"))
    scene.move(scene.post(1), "dead", history=900, reason="poison")
    return ["dead", "jobs"]


def reclaim(deployment: Deployment) -> None:
    """Remove the data of deleted queues, as the upkeep of a server does every few seconds."""
    for store in deployment.stores.values():
        while store.maintain(store.now()):
            pass


# What moves ----------------------------------------------------------------------------------------------------------


def test_a_queue_moves_with_everything_and_its_dead_letter_queue(member: Member) -> None:
    """Ids, sequences, times, history, keys, claim counts; and the former pool keeps nothing."""
    names = fill(member)
    before = member.contents(QUEUE, DEAD)
    done = member.move("a")
    assert (done.phase, done.error, done.queues, done.source) == ("done", "", names, "")
    assert member.contents(QUEUE, DEAD) == before
    assert member.storage.catalogue.queues.list("acme", "", 9).items == []
    assert {queue.ref.name for queue in member.storage.queues.list("acme", "", 9).items} == {"dead", "jobs"}


@pytest.mark.slow
def test_a_queue_moves_through_the_stores_of_all_drivers_and_back(tmp_path: Path) -> None:
    """A queue that returns to a store in which it was deleted is complete, too."""
    need("mongod")
    need("valkey-server")
    with ExitStack() as opened:
        stores = Stores()
        opened.callback(stores.close)
        uris = {name: stores.empty(name, tmp_path, "a") for name in DRIVERS}
        deployment = Deployment(opened, uris)
        member = deployment.member()
        fill(member)
        before = member.contents(QUEUE, DEAD)
        for pool in ("redis", "mongodb", "rocksdb", "mongodb", "redis", "rocksdb"):
            reclaim(deployment)
            done = member.move(pool)
            assert (done.phase, done.error) == ("done", ""), pool
            assert member.contents(QUEUE, DEAD) == before, pool


def test_all_queues_that_need_the_same_pool_move_together(member: Member) -> None:
    """Dead-letter queues of dead-letter queues, their other sources, and the hidden queues of all of them."""
    create = member.storage.queues.create
    create(QUEUE, b'{"_dead_letter_queue": "dead"}')
    create(QueueRef("acme", "other"), b'{"_dead_letter_queue": "dead"}')
    create(DEAD, b'{"_dead_letter_queue": "last"}')
    create(QueueRef("acme", "alone"), b'{"a": 1}')
    notices = Owner("acme", "queue", "other").notices
    Scene(member.storage, SimpleNamespace(now=member.storage.now), notices).post(2)
    done = member.move("a", "dead")
    assert done.phase == "done"
    assert done.queues == ["dead", "jobs", "last", "other", notices.name]
    for queue in done.refs:
        assert member.storage.relocation.binding(queue).pool == "a"
    assert member.storage.relocation.binding(QueueRef("acme", "alone")).pool == ""


def test_claims_do_not_move_and_their_messages_return(member: Member) -> None:
    """A settlement after the move fails; no other consumer gets the messages before the claim would have ended."""
    scene = member.scene()
    scene.post(3)
    claim = scene.take(2, ttl=60)
    assert member.move("a").phase == "done"
    with pytest.raises(ClaimNotFound):
        scene.settle(claim.id, rest=True)
    assert len(scene.take(9).messages) == 1
    left = [message for message in scene.walk() if not message.claim]
    assert [message.available for message in left] == [pytest.approx(scene.now + 60, abs=5)] * 2
    assert [message.claim_count for message in left] == [1, 1]


# While it moves ------------------------------------------------------------------------------------------------------


CHANGES: dict[str, Callable[[Scene], object]] = {
    "post": lambda scene: scene.post(1),
    "claim": lambda scene: scene.take(1),
    "pop": lambda scene: scene.pop(1),
    "release": lambda scene: scene.release("c"),
    "renew": lambda scene: scene.renew("c"),
    "settle": lambda scene: scene.settle("c", rest=True),
    "delete a message": lambda scene: scene.delete("m"),
    "create": lambda scene: scene.storage.queues.create(scene.queue, b"{}"),
    "update": lambda scene: scene.storage.queues.update(scene.queue, b"{}", b'{"a": 1}'),
    "purge": lambda scene: scene.storage.queues.purge(scene.queue),
    "delete": lambda scene: scene.storage.queues.delete(scene.queue),
    "move a message": lambda scene: scene.move(["m"], "elsewhere"),
    "move a message here": lambda scene: scene.at("other").move(["m"], "jobs"),
    "use as dead-letter queue": lambda scene: scene.storage.queues.create(
        scene.at("new").queue, b'{"_dead_letter_queue": "jobs"}'
    ),
    "stage": lambda scene: scene.stage("s", 1),
    "subscribe": lambda scene: scene.at(Owner("acme", "queue", "jobs").notices.name).post(1),
}


def test_a_moving_queue_refuses_each_change_and_serves_reads(member: Member) -> None:
    scene = member.scene()
    [message] = scene.post(1)
    scene.at("other").post(1)
    member.storage.relocation.freeze("m", Freeze("acme", ["jobs"]))
    for change in CHANGES.values():
        with pytest.raises(QueueMoving):
            change(scene)
    assert scene.one(message).id == message
    assert scene.stats().free == 1
    assert scene.at("other").take(1).messages
    member.storage.relocation.unfreeze("m", member.storage.relocation.freeze_version("m"))
    assert scene.take(1).messages


def test_the_copy_waits_for_a_change_that_began_on_another_server(deployment: Deployment, member: Member) -> None:
    """The other server has a cached binding, and its post ends after the freeze: the post moves, too."""
    other = deployment.member()
    other.scene().post(1)
    store = deployment.catalogue
    began, may_end = threading.Event(), threading.Event()
    post = store.messages.post

    def slow_post(*given: Any, **named: Any) -> Any:
        began.set()
        may_end.wait(30)
        return post(*given, **named)

    store.messages.post = slow_post  # type: ignore[method-assign]
    threads = [threading.Thread(target=lambda: other.scene().post(1))]
    threads[0].start()
    began.wait(30)
    requested = member.request("a")
    threads.append(threading.Thread(target=member.mover.run_round))
    threads[1].start()
    wait_for(lambda: other.storage.relocation._freezes.is_frozen(QUEUE), 10, "the freeze")
    with pytest.raises(QueueMoving):
        other.scene().take(1)
    assert member.moves.get("a", requested.id).phase == "freezing"
    assert deployment.stores == {} or deployment.stores["memory:a"].queues.get(QUEUE) is None
    may_end.set()
    for thread in threads:
        thread.join(30)
    assert member.moves.get("a", requested.id).phase == "done"
    other.storage.relocation._freezes.refresh()
    assert len(other.scene().take(9).messages) == 2
    assert len(deployment.stores["memory:a"].claims.list("acme", "", 9, store.now(), "jobs").items) == 1


def test_servers_read_a_moved_queue_in_its_new_pool_at_once(deployment: Deployment, member: Member) -> None:
    """The cached binding of another server does not outlive the move."""
    other = deployment.member()
    other.scene().post(1)
    assert member.move("a").phase == "done"
    wait_for(lambda: not other.storage.relocation._freezes.is_frozen(QUEUE), 10, "the end of the freeze")
    assert len(other.scene().take(9).messages) == 1
    assert deployment.catalogue.queues.get(QUEUE) is None


def test_a_process_that_does_not_take_part_prevents_the_move(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of an earlier version, or one that does not acknowledge the freeze: the error names it."""
    monkeypatch.setattr(mover_module, "FREEZE_TIMEOUT", 0.2)
    member.scene().post(1)
    deployment.servers.append(Server("elsewhere", 4711, "0.0.9"))
    failed = member.move("a")
    assert failed.phase == "failed"
    assert failed.error.startswith("The process 4711 on host elsewhere (zq 0.0.9) did not begin to reject")
    assert len(member.scene().take(9).messages) == 1
    deployment.servers.clear()
    freezing = deployment.member().storage.relocation._freezes
    with freezing.change(QUEUE):
        failed = member.move("a")
    assert "did not begin to reject changes" in failed.error
    assert member.move("a").phase == "done"


def test_a_paused_process_does_not_acknowledge_changes_of_the_past(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its record may have expired, the outcome of its changes is unknown; afterwards it works again."""
    seconds = [0.0]
    paused = freezes.Freezes(deployment.catalogue, lambda: None, lambda: seconds[0])
    monkeypatch.setattr(freezes, "POLL_INTERVAL", 1000)
    paused.start(is_shared=True)
    with pytest.raises(Unavailable, match="unknown"), paused.change(QUEUE):
        seconds[0] += freezes.MAX_AGE + 1
    with pytest.raises(Unavailable, match="unknown"), paused.change(QUEUE):
        raise AssertionError("The change must not begin.")
    with pytest.raises(Unavailable, match="unknown"), paused.change(QUEUE):
        pass
    paused.refresh()
    with paused.change(QUEUE):
        pass

    def resume() -> None:
        seconds[0] += freezes.MAX_AGE + 1
        paused.refresh()

    with pytest.raises(Unavailable, match="unknown"), paused.change(QUEUE):
        resume()
    paused.stop()


def test_a_process_that_missed_a_whole_move_forgets_its_bindings(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspending a machine stops the clock of the cache, but not the clock of the record."""
    seconds = [0.0]
    bindings = Bindings(deployment.catalogue, True, lambda: 0.0)
    freezing = bindings.freezes
    monkeypatch.setattr(freezing, "_monotonic", lambda: seconds[0])
    monkeypatch.setattr(freezing, "_interval", lambda: 1000.0)
    suspended = PooledStorage(deployment.catalogue, deployment.open, bindings=bindings)
    suspended.follow_moves(is_shared=True)
    scene = Scene(suspended, SimpleNamespace(now=suspended.now), QUEUE)
    scene.post(1)
    scene.post(1)
    deployment.catalogue.documents.delete(freezing._ref, deployment.catalogue.now())
    assert member.move("a").phase == "done"
    seconds[0] += 60
    freezing.refresh()
    scene.post(1)
    assert len(member.scene().take(9).messages) == 3
    freezing.stop()


def test_a_closed_process_has_no_record_and_answers_no_changes(deployment: Deployment, member: Member) -> None:
    """A change in progress keeps the record until it expires."""
    count = len(member.storage.relocation.find_processes())
    closed, busy = deployment.member().storage.relocation._freezes, deployment.member().storage.relocation._freezes
    closed.stop()
    with pytest.raises(Unavailable), closed.change(QUEUE):
        raise AssertionError("The change must not begin.")

    def stop() -> None:
        busy.stop()

    with pytest.raises(Unavailable, match="unknown"), busy.change(QUEUE):
        stop()
    assert len(member.storage.relocation.find_processes()) == count + 1


# Crashes -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of the moving server."""


@pytest.mark.parametrize("crashes", [1, 2])
def test_another_server_continues_after_a_crash_at_any_step(monkeypatch: pytest.MonkeyPatch, crashes: int) -> None:
    """At each step, the queue is in one pool, and the next holder of the lease completes the move."""
    check, phases = Lease.check, set[str]()
    monkeypatch.setattr(mover_module, "PAGE", 2)
    for step in range(1, 100):
        with ExitStack() as opened:
            deployment = Deployment(opened, {"a": "memory:a", "b": "memory:b"})
            first, second = deployment.member(), deployment.member()
            fill(first)
            before, left = first.contents(QUEUE, DEAD), [step]

            def counted(lease: Lease, left: list[int] = left) -> None:
                check(lease)
                left[0] -= 1
                if left[0] < 0:
                    raise Killed

            requested = first.request("a")
            for _ in range(crashes):
                with monkeypatch.context() as patched, suppress(Killed):
                    patched.setattr(Lease, "check", counted)
                    patched.setattr(Lease, "release", lambda _: None)
                    left[0] = step
                    first.mover.run_round()
                first.mover._is_busy = False
                deployment.catalogue.documents.delete(mover_module.LEASE, deployment.catalogue.now())
            phase = second.moves.get("a", requested.id).phase
            phases.add(phase)
            assert second.contents(QUEUE, DEAD) == before
            second.mover.run_round()
            assert second.moves.get("a", requested.id).phase == "done"
            assert second.contents(QUEUE, DEAD) == before
            assert deployment.catalogue.queues.list("acme", "", 9).items == []
            first.storage.relocation._freezes.refresh()
            first.scene().post(1)
        if phase == "done":
            break
    assert crashes > 1 or phases == {"waiting", "freezing", "copying", "switching", "cleaning", "done"}


def expire_lease(deployment: Deployment) -> None:
    deployment.catalogue.documents.delete(mover_module.LEASE, deployment.catalogue.now())


def before_call(monkeypatch: pytest.MonkeyPatch, target: object, name: str, pause: Callable[[], object]) -> None:
    """Call ``pause`` before the next call of the method, as if the server was paused there."""
    method = getattr(target, name)

    def paused(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(target, name, method)
        pause()
        return method(*given, **named)

    monkeypatch.setattr(target, name, paused)


def test_a_freeze_that_a_paused_mover_stores_after_the_move_ends(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next round of any server deletes it, so that the queue accepts changes again."""
    other = deployment.member()
    member.scene().post(1)
    requested = member.request("a")

    def complete() -> None:
        expire_lease(deployment)
        other.mover.run_round()

    before_call(monkeypatch, member.storage.relocation, "freeze", complete)
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "done"
    with pytest.raises(QueueMoving):
        member.scene().post(1)
    other.mover.run_round()
    member.storage.relocation._freezes.refresh()
    member.scene().post(1)


def test_a_paused_mover_does_not_repeat_an_assignment_to_a_former_pool(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile, another server has completed the move, and moved the queue back."""
    other = deployment.member()
    member.scene().post(3)
    assert member.move("a").phase == "done"
    requested = member.request("b")

    def complete() -> None:
        expire_lease(deployment)
        other.mover.run_round()
        assert other.moves.get("b", requested.id).phase == "done"
        reclaim(deployment)
        assert other.move("a").phase == "done"

    documents = deployment.catalogue.documents
    put = documents.put

    def paused(ref: DocumentRef, *given: Any, **named: Any) -> Any:
        if ref == binding_ref(QUEUE):
            monkeypatch.setattr(documents, "put", put)
            complete()
        return put(ref, *given, **named)

    before_call(monkeypatch, member.mover, "_switch", lambda: monkeypatch.setattr(documents, "put", paused))
    member.mover.run_round()
    assert documents.put == put
    binding = member.storage.relocation.binding(QUEUE)
    assert binding is not None
    assert binding.pool == "a"
    assert len(list(other.scene().walk())) == 3


def test_a_move_is_not_reverted_after_a_paused_mover_has_assigned_the_queue(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool's weight changes, and the paused mover continues while another server reverts the move."""
    other = deployment.member()
    member.scene().post(3)
    requested = member.request("a")
    documents = deployment.catalogue.documents
    put = documents.put
    assigned = []

    def paused(ref: DocumentRef, *given: Any, **named: Any) -> Any:
        if ref != binding_ref(QUEUE):
            return put(ref, *given, **named)
        monkeypatch.setattr(documents, "put", put)
        deployment.add_pool("a", deployment.uris["a"])
        expire_lease(deployment)
        before_call(monkeypatch, other.storage.relocation, "rebind", lambda: assigned.append(put(ref, *given, **named)))
        other.mover.run_round()
        return assigned[0]

    before_call(monkeypatch, member.mover, "_switch", lambda: monkeypatch.setattr(documents, "put", paused))
    member.mover.run_round()
    assert assigned == [True]
    other.mover.run_round()
    assert other.moves.get("a", requested.id).phase == "done"
    assert deployment.catalogue.queues.get(QUEUE) is None
    other.storage.relocation._freezes.refresh()
    assert len(other.scene().pop()) == 3


def test_a_move_continues_after_the_binding_of_a_deleted_queue_was_removed(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.storage.queues.create(QUEUE, b'{"_dead_letter_queue": "dead"}')
    member.storage.queues.create(DEAD, b"{}")
    documents = member.storage.catalogue.documents
    requested = member.request("a")
    before_call(
        monkeypatch,
        member.storage.relocation,
        "rebind",
        lambda: documents.delete(binding_ref(DEAD), member.storage.now()),
    )
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "switching"
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "done"
    member.storage.relocation._freezes.refresh()
    member.scene("dead").post(1)


def test_a_move_that_is_no_longer_listed_is_found_again(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server was killed after it had stored the move, or during the copy."""
    other = deployment.member()
    member.scene().post(1)
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(member.moves, "activate", lambda _: raise_killed())
        member.request("a")
    [move] = member.moves.list_active()
    unlisted = DocumentRef("", ACTIVE, move.ref.name)
    deployment.catalogue.documents.delete(unlisted, deployment.catalogue.now())
    store: Any = member.storage.relocation.store("a")
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(store.parcels, "adopt", lambda *_: raise_killed())
        member.mover.run_round()
    assert member.moves.get("a", move.id).phase == "copying"
    deployment.catalogue.documents.delete(unlisted, deployment.catalogue.now())
    expire_lease(deployment)
    other.mover.run_round()
    assert member.moves.get("a", move.id).phase == "done"
    member.storage.relocation._freezes.refresh()
    member.scene().post(1)


def raise_killed() -> None:
    raise Killed


def test_a_mover_without_its_lease_changes_nothing(deployment: Deployment, member: Member) -> None:
    other = deployment.member()
    member.scene().post(1)
    requested = member.request("a")
    assert other.mover._lease.acquire()
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "waiting"
    other.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "done"


# Paused servers ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", *(pytest.param(name, marks=pytest.mark.slow) for name in DRIVERS)])
def paused(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """Pool ``a`` in a store of each driver, and pool ``b`` in memory."""
    with ExitStack() as opened:
        uri = "memory:a"
        if request.param != "memory":
            for program in {"mongodb": ["mongod"], "redis": ["valkey-server"]}.get(request.param, []):
                need(program)
            stores = Stores()
            opened.callback(stores.close)
            uri = stores.empty(request.param, tmp_path, "a")
        yield Deployment(opened, {"a": uri, "b": "memory:b"})


def after_call(monkeypatch: pytest.MonkeyPatch, target: object, name: str, pause: Callable[[], object]) -> None:
    """Call ``pause`` after the next call of the method, as if the server was paused there."""
    method = getattr(target, name)

    def paused(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(target, name, method)
        found = method(*given, **named)
        pause()
        return found

    monkeypatch.setattr(target, name, paused)


def take_over(deployment: Deployment, other: Member) -> None:
    expire_lease(deployment)
    other.mover.run_round()
    reclaim(deployment)


def forget(deployment: Deployment, member: Member) -> None:
    """Let the record of a paused process expire."""
    freezing = member.storage.relocation._freezes
    freezing._stopping.set()
    assert freezing._thread is not None
    freezing._thread.join(10)
    deployment.catalogue.documents.delete(freezing._ref, deployment.catalogue.now())


def retry_now(monkeypatch: pytest.MonkeyPatch, member: Member) -> None:
    """Let the member repeat failed copies without a delay."""
    later = member.storage.now() + 60
    monkeypatch.setattr(member.mover, "_clock", SimpleNamespace(now=lambda: later))


@pytest.mark.parametrize("call", ["adopt", "issue_token"])
def test_a_late_copy_does_not_restore_deleted_messages(
    paused: Deployment, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Another server completes the move, and consumers delete the messages in the new pool."""
    member, other = paused.member(), paused.member()
    member.scene().post(5)
    requested = member.request("a")
    store: Any = member.storage.relocation.store("a")

    def complete() -> None:
        take_over(paused, other)
        other.storage.relocation._freezes.refresh()
        assert len(other.scene().pop()) == 5

    before_call(monkeypatch, store.parcels if call == "adopt" else member.storage.relocation, call, complete)
    member.mover.run_round()
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "done"
    assert other.scene().walk() == []


def test_a_late_deletion_of_a_failed_copy_spares_a_queue_that_has_moved(
    paused: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mover is paused in the phase ``reverting``, and the next attempt of another server succeeds."""
    monkeypatch.setattr(mover_module, "PAGE", 2)
    member, other = paused.member(), paused.member()
    ids = sorted(member.scene().post(5))
    requested = member.request("a")
    store: Any = member.storage.relocation.store("a")
    relocation, adopt = member.storage.relocation, store.parcels.adopt
    pages: list[object] = []

    def failing(*given: Any) -> None:
        pages.append(given)
        if len(pages) == 2:
            raise Unavailable
        adopt(*given)

    def complete() -> None:
        take_over(paused, other)
        retry_now(monkeypatch, other)
        take_over(paused, other)
        assert other.moves.get("a", requested.id).phase == "done"

    monkeypatch.setattr(store.parcels, "adopt", failing)
    before_call(monkeypatch, relocation, "release", lambda: after_call(monkeypatch, store.queues, "get", complete))
    member.mover.run_round()
    assert len(pages) > 2
    assert sorted(message.id for message in other.scene().walk()) == ids


@pytest.mark.parametrize("call", ["get", "release"])
def test_a_late_deletion_in_the_former_pool_spares_a_queue_that_has_returned(
    paused: Deployment, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The mover is paused in the phase ``cleaning``, and another server moves the queue back."""
    member, other = paused.member(), paused.member()
    ids = sorted(member.scene().post(3))
    assert member.move("a").phase == "done"
    requested = member.request("b")
    store, relocation = member.storage.relocation.store("a"), member.storage.relocation

    def complete() -> None:
        take_over(paused, other)
        assert other.moves.get("b", requested.id).phase == "done"
        assert other.move("a").phase == "done"

    if call == "release":
        before_call(monkeypatch, relocation, "release", complete)
    else:
        before_call(monkeypatch, relocation, "release", lambda: after_call(monkeypatch, store.queues, "get", complete))
    member.mover.run_round()
    reclaim(paused)
    assert sorted(message.id for message in other.scene().walk()) == ids
    assert paused.catalogue.documents.get(index_ref("a", QUEUE), paused.catalogue.now()) is not None


LATE_CHANGES: dict[str, tuple[str, str, Callable[[Scene, str, str], object]]] = {
    "post": ("messages", "post", lambda scene, _message, _claim: scene.at("jobs").post(1)),
    "move": ("messages", "move", lambda scene, message, _claim: scene.move([message], "jobs")),
    "settle": (
        "claims",
        "settle",
        lambda scene, message, claim: scene.settle(claim, move=[MessageMove(message, "jobs")]),
    ),
}


@pytest.mark.parametrize("change", LATE_CHANGES)
def test_a_late_message_does_not_vanish_in_the_former_pool(
    paused: Deployment, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A server is paused before its call of the store adds a message, and its record expires during the move."""
    member, late = paused.member(), paused.member()
    part, method, call = LATE_CHANGES[change]
    for name in ("jobs", "other"):
        late.scene(name).post(2)
        assert member.move("a", name).phase == "done"
    late.storage.relocation._freezes.refresh()
    claim = late.scene("other").take(1)
    free = next(message.id for message in late.scene("other").walk() if not message.claim)
    message = claim.messages[0].id if change == "settle" else free
    store = member.storage.relocation.store("a")

    def complete() -> None:
        forget(paused, late)
        assert member.move("b").phase == "done"

    before_call(monkeypatch, getattr(store, part), method, complete)
    with suppress(PoolsApart, QueueMoving, Unavailable):
        call(late.scene("other"), message, claim.id)
    assert store.queues.get(QUEUE) is None
    left = len(member.scene("other").walk()) + len(member.scene().walk())
    assert left == 4 + (change == "post")


@pytest.mark.parametrize("pool", ["", "a"], ids=["without a token", "with a token"])
def test_a_late_creation_of_a_queue_in_its_former_pool_is_refused(
    paused: Deployment, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """The first post to a queue is paused, while another server creates the queue and moves it."""
    member, late = paused.member(), paused.member()
    store: Any = member.storage.relocation.store(pool)
    if pool:
        member.scene().post(1)
        assert member.move(pool).phase == "done"
        store.queues.delete(QUEUE)
        reclaim(paused)
        late.storage.relocation._freezes.refresh()
    completed = []

    def complete() -> None:
        completed.append(pool)
        forget(paused, late)
        member.scene().post(2)
        assert member.move("b").phase == "done"

    before_call(monkeypatch, store.parcels, "create_queue", complete)
    with suppress(QueueMoving, Unavailable):
        late.scene().post(1)
    assert completed
    assert store.queues.get(QUEUE) is None
    assert len(member.scene().walk()) in (2, 3)


def test_a_message_that_arrives_late_in_the_copied_queue_moves_too(
    paused: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused server moves messages into the queue after the mover has compared the copy."""
    member = paused.member()
    for name in ("jobs", "other"):
        member.scene(name).post(2)
        assert member.move("a", name).phase == "done"
    member.storage.relocation._freezes.refresh()
    [first, second] = sorted(message.id for message in member.scene("other").walk())
    store = member.storage.relocation.store("a")
    late = Scene(store, SimpleNamespace(now=store.now), QueueRef("acme", "other"))
    before_call(
        monkeypatch,
        member.mover,
        "_clean",
        lambda: [
            late.move([first], "jobs"),
            before_call(monkeypatch, member.storage.relocation, "release", lambda: late.move([second], "jobs")),
        ],
    )
    assert member.move("b").phase == "done"
    assert store.queues.get(QUEUE) is None
    moved = {message.id for message in member.scene().walk()}
    assert len(moved) == 4
    assert {first, second} < moved


@pytest.mark.parametrize("pool", ["", "b"])
def test_a_hidden_queue_that_was_bound_late_follows_its_queue(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch, pool: str
) -> None:
    """A server is paused before it binds the hidden queue of a queue, which then moves to another pool."""
    late, notices = deployment.member(), Owner("acme", "queue", "jobs").notices
    member.scene().post(1)
    if pool:
        assert member.move(pool).phase == "done"
        late.storage.relocation._freezes.refresh()

    def post(sender: Member) -> None:
        now = sender.storage.now()
        copies = Copies(notices, drafts(1, now))
        sender.storage.messages.post(QUEUE, drafts(1, now), now, copies=copies)

    def complete() -> None:
        forget(deployment, late)
        assert member.move("a").phase == "done"

    late.scene().post(1)
    index_version = member.storage.relocation.index_version
    documents = deployment.catalogue.documents
    put = documents.put

    def paused(ref: DocumentRef, *given: Any, **named: Any) -> Any:
        if ref == binding_ref(notices):
            monkeypatch.setattr(documents, "put", put)
            complete()
        return put(ref, *given, **named)

    monkeypatch.setattr(documents, "put", paused)
    with suppress(PoolsApart, QueueMoving, QueueNotFound, Unavailable):
        post(late)
    assert documents.put == put
    post(member)
    binding = member.storage.relocation.binding(notices)
    assert binding is not None
    assert (binding.pool, binding.deleted) == ("a", None)
    assert (bool(index_version(notices, "a")), index_version(notices, pool)) == (True, "")
    assert len(member.scene(notices.name).walk()) == len(member.scene().walk()) - 2
    assert member.storage.relocation.store(pool).queues.get(notices) is None


def test_a_late_settlement_is_repeated_in_the_new_pool(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is paused between two attempts, because the dead-letter queue was missing."""
    late = deployment.member()
    late.storage.queues.create(QUEUE, b'{"_dead_letter_queue": "dead", "_max_claim_count": 3}')
    late.scene().post(1)
    claim = late.scene().take(1)
    settled = []

    def complete() -> None:
        forget(deployment, late)
        assert member.move("a").phase == "done"
        late.storage._bindings._lookups.clear()
        new = member.storage.relocation.store("a")
        before_call(monkeypatch, new.claims, "settle", lambda: settled.append("a"))
        before_call(monkeypatch, deployment.catalogue.claims, "settle", raise_killed)

    before_call(monkeypatch, late.storage.claims, "_create_missing", complete)
    with pytest.raises((ClaimNotFound, Unavailable)):
        late.scene().settle(claim.id, move=[MessageMove(claim.messages[0].id, "dead")])
    assert settled


def test_the_key_of_a_late_message_differs_from_all_keys_of_clients(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visible ASCII characters that HTTP permits in keys contain no space."""
    member.scene().post(1)
    member.scene("other").post(1)
    source = deployment.catalogue
    late = Scene(source, SimpleNamespace(now=source.now), QueueRef("acme", "other"))
    target, keys = member.storage.relocation.store("a"), []
    post = target.messages.post

    def record(*given: Any, **named: Any) -> Any:
        keys.append(named["idempotency_key"].key)
        return post(*given, **named)

    monkeypatch.setattr(target.messages, "post", record)
    before_call(monkeypatch, member.mover, "_clean", lambda: late.move(late.page(), "jobs"))
    assert member.move("a").phase == "done"
    [key] = keys
    assert " " in key
    assert not key.startswith("sqs ")


def test_a_deleted_message_with_a_late_move_does_not_return_after_the_former_store_failed(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused server moves a copied message within its former queue, and consumers delete it in the new pool."""
    member.scene().post(2)
    source = deployment.catalogue
    message = member.scene().walk()[0].id
    late = Scene(source, SimpleNamespace(now=source.now), QUEUE)
    requested = member.request("a")
    before_call(monkeypatch, member.mover, "_clean", lambda: late.move([message], "jobs"))
    before_call(monkeypatch, member.storage.relocation, "release", raise_unavailable)
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "cleaning"
    assert len(member.scene().pop()) == 2
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "done"
    assert source.queues.get(QUEUE) is None
    assert member.scene().walk() == []


def test_a_queue_is_served_if_its_deletion_in_the_former_pool_always_fails(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    member.scene().post(2)
    requested = member.request("a")

    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(member.storage.relocation, "release", fail)
    for _ in range(2):
        member.mover.run_round()
        assert member.moves.get("a", requested.id).phase == "cleaning"
        assert len(member.scene().pop(1)) == 1


def test_an_old_copy_does_not_return_after_its_deletion_was_delayed(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former store fails, and meanwhile clients delete the queue and create it again."""
    monkeypatch.setattr(bindings_module, "BINDING_RETENTION", 0.0)
    member.scene().post(3)
    store: Any = deployment.catalogue
    requested = member.request("a")

    def fail(*_: object) -> None:
        raise Unavailable

    with monkeypatch.context() as patched:
        patched.setattr(member.storage.relocation, "release", fail)
        member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "cleaning"
    assert len(member.scene().pop()) == 3
    with pytest.raises(MoveRefused, match="is already part of the move"):
        member.request("b")
    member.storage.queues.delete(QUEUE)
    member.storage.maintain(store.now())
    [message] = member.scene().post(1)
    assert [one.id for one in member.scene().walk()] == [message]
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "done"
    assert store.queues.get(QUEUE) is None
    assert [one.id for one in member.scene().walk()] == [message]
    member.storage.queues.delete(QUEUE)
    member.storage.maintain(store.now())
    assert store.documents.get(binding_ref(QUEUE), store.now()) is None


def test_a_late_end_of_a_freeze_does_not_end_the_freeze_of_the_next_attempt(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = deployment.member()
    member.scene().post(3)
    requested = member.request("a")
    store: Any = member.storage.relocation.store("a")
    before_call(monkeypatch, store.parcels, "adopt", lambda: raise_unavailable())

    def repeat() -> None:
        take_over(deployment, other)
        assert other.moves.get("a", requested.id).phase == "waiting"
        other.storage.relocation.freeze(requested.id, Freeze("acme", ["jobs"], "a"))

    before_call(monkeypatch, member.storage.relocation, "unfreeze", repeat)
    member.mover.run_round()
    assert deployment.catalogue.documents.get(freeze_ref(requested.id), member.storage.now()) is not None
    retry_now(monkeypatch, other)
    take_over(deployment, other)
    assert other.moves.get("a", requested.id).phase == "done"
    assert list(deployment.catalogue.documents.list("", FREEZE, "", "", 9, member.storage.now()).items) == []


def raise_unavailable() -> None:
    raise Unavailable


def test_a_mover_that_has_lost_its_lease_does_not_acquire_it_in_the_same_round(
    deployment: Deployment, member: Member
) -> None:
    lease = member.mover._lease
    assert lease.acquire()
    lease.renew()
    lease.check()
    expire_lease(deployment)
    lease.renew()
    with pytest.raises(mover_module._LeaseLost):
        lease.check()
    lease.renew()
    with pytest.raises(mover_module._LeaseLost):
        lease.check()
    assert lease.acquire()
    lease.check()


def test_each_store_of_a_moved_queue_keeps_only_a_fencing_token(deployment: Deployment, member: Member) -> None:
    member.scene().post(1)
    assert member.move("a").phase == "done"
    assert member.move("b").phase == "done"
    now = member.storage.now()
    for store in (deployment.catalogue, *deployment.stores.values()):
        [document] = store.documents.list("acme", TOKEN, "", "", 9, now).items
        assert document.ref == token_ref(QUEUE)


# Ends and refusals ---------------------------------------------------------------------------------------------------


def test_a_cancelled_move_leaves_the_queue_where_it_was(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it begins and while it copies; afterwards it is too late."""
    names = fill(member)
    before = member.contents(QUEUE, DEAD)
    requested = member.request("a")
    member.moves.cancel("a", requested.id)
    member.moves.cancel("a", requested.id)
    member.mover.run_round()
    assert member.moves.get("a", requested.id).phase == "cancelled"
    copying = Mover._copy

    def cancelled(mover: Mover, move: Move) -> Move:
        member.moves.cancel("a", move.id)
        return copying(mover, move)

    with monkeypatch.context() as patched:
        patched.setattr(Mover, "_copy", cancelled)
        assert member.move("a").phase == "cancelled"
    assert deployment.stores["memory:a"].queues.list("acme", "", 9).items == []
    assert member.contents(QUEUE, DEAD) == before
    reclaim(deployment)
    done = member.move("a")
    assert (done.phase, done.queues) == ("done", names)
    with pytest.raises(MoveRefused, match="its phase is done"):
        member.moves.cancel("a", done.id)
    with pytest.raises(MoveNotFound):
        member.moves.cancel("b", done.id)
    assert [move.phase for move in member.moves.list("a", "", None).items] == ["cancelled", "cancelled", "done"]


def test_a_copy_that_differs_is_not_used(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue stays in its pool, and the copy is deleted."""
    fill(member)
    before = member.contents(QUEUE, DEAD)
    pages = Mover._pages

    def without_last(mover: Mover, parcels: Any, queue: QueueRef) -> Any:
        for page in pages(mover, parcels, queue):
            page.items.pop()
            yield page

    with monkeypatch.context() as patched:
        patched.setattr(mover_module, "MAX_ATTEMPTS", 1)
        patched.setattr(Mover, "_pages", lambda *given: [*(without_last if sided() else pages)(*given)])
        sides = [False, False, True, True]
        sided = lambda: sides.pop(0)  # noqa: E731
        failed = member.move("a")
    assert (failed.phase, "differs from the queue" in failed.error) == ("failed", True), failed
    assert member.contents(QUEUE, DEAD) == before
    assert deployment.stores["memory:a"].queues.list("acme", "", 9).items == []
    reclaim(deployment)
    assert member.move("a").phase == "done"


def test_a_change_of_a_paused_server_during_the_copy_is_noticed(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server moves a message to the dead-letter queue after the mover has read that queue. The copy is repeated."""
    scene = member.scene()
    member.storage.queues.create(QUEUE, b'{"_dead_letter_queue": "dead", "_max_claim_count": 3}')
    member.storage.queues.create(DEAD, b"{}")
    [message] = scene.post(1)
    catalogue, pages, late = deployment.catalogue, Mover._pages, [message]

    def between(mover: Mover, parcels: Any, queue: QueueRef) -> Any:
        if queue == QUEUE and late:
            Scene(catalogue, SimpleNamespace(now=catalogue.now), QUEUE).move([late.pop()], "dead")
        yield from pages(mover, parcels, queue)

    monkeypatch.setattr(Mover, "_pages", between)
    waiting = member.move("a")
    assert (waiting.phase, "changed during the copy" in waiting.error) == ("waiting", True)
    assert len(list(scene.walk())) + len(list(member.scene("dead").walk())) == 1


def test_a_claim_that_ends_during_the_copy_is_no_change(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = member.scene()
    scene.post(3)
    scene.take(2, ttl=1)
    before_call(monkeypatch, member.mover, "_read_contents", lambda: time.sleep(1.2))
    assert member.move("a").phase == "done"
    assert len(scene.take(9).messages) == 3


@pytest.mark.parametrize("phase", ["_copy", "_switch"])
def test_a_pool_whose_store_changes_during_the_move_gets_a_new_copy(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """A server that was paused after its check has changed the pool."""
    member.scene().post(3)
    store = deployment.open("memory:c", None)
    before_call(
        monkeypatch,
        member.mover,
        phase,
        lambda: [deployment.add_pool("a", "memory:c"), store.queues.create(QUEUE, b'{"other": 1}')],
    )
    waiting = member.move("a")
    assert (waiting.phase, waiting.attempt, waiting.error) == ("waiting", 2, "The pool a was changed during the copy.")
    assert len(list(member.scene().walk())) == 3
    assert store.queues.get(QUEUE) is not None
    store.queues.delete(QUEUE)
    reclaim(deployment)
    monkeypatch.setattr(member.mover, "_clock", SimpleNamespace(now=lambda: waiting.not_before + 1))
    member.mover.run_round()
    assert member.moves.get("a", waiting.id).phase == "done"
    assert deployment.stores["memory:c"].queues.stats(QUEUE, member.storage.now()).free == 3
    assert len(list(member.scene().walk())) == 3


def test_a_failed_copy_is_repeated_later(
    deployment: Deployment, member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is served between the attempts, and a change between them moves, too."""
    fill(member)
    adopted: list[object] = []
    store: Any = member.storage.relocation.store("a")
    adopt = store.parcels.adopt

    def failing(*given: Any) -> None:
        adopted.append(given)
        if len(adopted) == 1:
            raise Unavailable
        adopt(*given)

    monkeypatch.setattr(store.parcels, "adopt", failing)
    waiting = member.move("a")
    assert (waiting.phase, waiting.attempt, waiting.has_copy) == ("waiting", 2, False)
    member.scene().post(1)
    before = member.contents(QUEUE, DEAD)
    member.mover.run_round()
    assert member.moves.get("a", waiting.id).phase == "waiting"
    monkeypatch.setattr(member.mover, "_clock", SimpleNamespace(now=lambda: waiting.not_before + 1))
    reclaim(deployment)
    member.mover.run_round()
    done = member.moves.get("a", waiting.id)
    assert (done.phase, done.error) == ("done", "")
    assert member.contents(QUEUE, DEAD) == before


REFUSALS: dict[str, tuple[Callable[[Deployment, Member], object], type[Exception], str]] = {
    "unknown pool": (lambda _, member: member.request("nowhere"), PoolNotFound, "no pool nowhere"),
    "unknown queue": (lambda _, member: member.request("a", "nothing"), QueueNotFound, "no queue nothing"),
    "same pool": (lambda _, member: [member.move("a"), member.request("a")], MoveRefused, "already in the pool a"),
    "moving": (lambda _, member: [member.request("a"), member.request("b")], MoveRefused, "is already part of"),
    "stages": (lambda _, member: [member.scene().stage("s", 1), member.request("a")], MoveRefused, "open stages"),
    "same store": (
        lambda deployment, member: [
            member.move("a"),
            deployment.add_pool("alias", "memory:alias"),
            deployment.stores.update({"memory:alias": deployment.stores["memory:a"]}),
            member.request("alias"),
        ],
        MoveRefused,
        "use the same store",
    ),
    "other flavor": (
        lambda deployment, member: [
            deployment.add_pool("fast", "memory:fast", "fast"),
            deployment.catalogue.documents.put(flavor_ref("acme", "slow"), b"", 1.0),
            deployment.add_pool("slow", "memory:slow", "slow"),
            member.storage.queues.update(QUEUE, b"{}", b'{"_flavor": "slow"}') if member.move("slow") else None,
            member.request("fast"),
        ],
        MoveRefused,
        "has the _flavor slow",
    ),
    "deleted": (
        lambda _, member: [member.move("a"), member.storage.queues.delete(QUEUE), member.request("b")],
        QueueNotFound,
        "no queue jobs",
    ),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_move_that_cannot_succeed_is_refused_before_anything_changes(
    deployment: Deployment, member: Member, reason: str
) -> None:
    attempt, error, sentence = REFUSALS[reason]
    member.storage.queues.create(QUEUE, b"{}")
    with pytest.raises(error, match=sentence):
        attempt(deployment, member)
    assert not member.storage.relocation._freezes._frozen
    if reason == "unknown queue":
        member.scene().post(1)


def test_a_store_with_a_queue_of_the_same_name_is_not_overwritten(deployment: Deployment, member: Member) -> None:
    """The remainder of another deployment stays there."""
    member.scene().post(1)
    store = member.storage.relocation.store("a")
    Scene(store, SimpleNamespace(now=store.now), QUEUE).post(3)
    failed = member.move("a")
    assert "already has a queue jobs" in failed.error
    assert store.queues.stats(QUEUE, store.now()).free == 3
    assert len(member.scene().take(9).messages) == 1


def test_the_estimate_uses_the_rate_of_the_last_move(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zq.pools.moves.MIN_MEASURED", 5)
    member.scene().post(20)
    requested = member.request("a")
    assert (requested.messages, requested.is_measured) == (20, False)
    member.mover.run_round()
    again = member.request("b")
    assert (again.messages, again.is_measured) == (20, True)


def test_a_copied_queue_is_counted_and_found_once(member: Member) -> None:
    """While both stores have it, metrics and the search for a message use the pool of the binding."""
    [message] = member.scene().post(1)
    member.storage.relocation.freeze("m", Freeze("acme", ["jobs"]))
    store: Any = member.storage.relocation.store("a")
    source: Any = member.storage.catalogue
    store.parcels.adopt("acme", source.parcels.export_queue(QUEUE, "", 9, store.now()).items, store.now())
    assert [queue for queue, _ in member.storage.depths(store.now(), 9, 9)] == [QUEUE]
    found = member.storage.locate("acme", message, store.now())
    assert found is not None
    assert found.queue == QUEUE
