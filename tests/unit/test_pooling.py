# SPDX-License-Identifier: Apache-2.0
"""Several stores as one, where HTTP does not show it: open stores, notifications, and refused requests."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from zq.errors import Deposed, PoolsApart, StartRefused, Unavailable
from zq.model import ClaimRequest, Draft, Lease, QueueRef
from zq.model.documents import DocumentRef
from zq.model.expiry import Expiry
from zq.model.pools import BINDING, Pool, pool_ref
from zq.serving.settings import Configuration
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.pooling import PooledStorage
from zq.storage.pooling.bindings import CACHE_TTL, Bindings, by_weight
from zq.storage.pooling.stores import GRACE, RETRY_INTERVAL, Stores

QUEUE = QueueRef("acme", "jobs")


class Time:
    """A monotonic clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Opened:
    """A record of the stores that were opened and closed."""

    def __init__(self) -> None:
        self.uris: list[str] = []
        self.closed: list[str] = []
        self.dead = False

    def __call__(self, uri: str, _expiry: Expiry | None) -> Storage:
        self.uris.append(uri)
        if self.dead:
            raise Unavailable
        store = connect("memory:")
        close = store.close

        def noted() -> None:
            self.closed.append(uri)
            close()

        store.close = noted  # type: ignore[method-assign]
        return store


@pytest.fixture
def catalogue() -> Iterator[Storage]:
    opened = connect("memory:")
    yield opened
    opened.close()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def opened() -> Opened:
    return Opened()


@pytest.fixture
def bindings(catalogue: Storage, time: Time) -> Bindings:
    return Bindings(catalogue, virtual=True, monotonic=time)


@pytest.fixture
def stores(catalogue: Storage, bindings: Bindings, opened: Opened, time: Time) -> Stores:
    return Stores(catalogue, bindings, opened, time)


def put(catalogue: Storage, name: str, uri: str, weight: int = 1) -> None:
    catalogue.documents.put(pool_ref(name), msgspec.json.encode(Pool(uri, weight)), catalogue.now())


def test_a_store_is_opened_when_it_is_needed_and_once(catalogue: Storage, stores: Stores, opened: Opened) -> None:
    """No other store is opened."""
    put(catalogue, "p", "u")
    put(catalogue, "q", "v")
    assert opened.uris == []
    assert stores.get("p") is stores.get("p")
    assert opened.uris == ["u"]


def test_a_store_is_closed_a_while_after_its_pool_has_gone(
    catalogue: Storage, stores: Stores, opened: Opened, time: Time
) -> None:
    """Requests may use the store until then; the same holds for a store that the pool had before."""
    put(catalogue, "p", "u")
    stores.get("p")
    put(catalogue, "p", "w")
    time.seconds += CACHE_TTL
    stores.get("p")
    catalogue.documents.delete(pool_ref("p"), catalogue.now())
    time.seconds += CACHE_TTL
    stores.close_removed()
    assert opened.closed == []
    with pytest.raises(Unavailable, match="no longer exists"):
        stores.get("p")
    time.seconds += GRACE + 1
    stores.close_removed()
    assert sorted(opened.closed) == ["u", "w"]


def test_a_store_that_does_not_answer_is_not_tried_by_each_request(
    catalogue: Storage, stores: Stores, opened: Opened, time: Time
) -> None:
    """The store is not opened again for ``RETRY_INTERVAL`` seconds."""
    put(catalogue, "p", "u")
    opened.dead = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            stores.get("p")
    assert opened.uris == ["u"]
    time.seconds += RETRY_INTERVAL
    opened.dead = False
    stores.get("p")
    assert opened.uris == ["u", "u"]


def test_listeners_hear_of_stores_that_are_opened_later(catalogue: Storage, stores: Stores) -> None:
    """A listener is notified of messages in any store."""
    heard: list[QueueRef] = []
    stores.listen(heard.append)
    put(catalogue, "p", "u")
    store = stores.get("p")
    draft = Draft(id="1", ttl=60, delay=0, body=b"1", client="c", checksum="")
    store.messages.post(QUEUE, [draft], store.now())
    assert heard == [QUEUE]


def test_a_binding_is_chosen_once(catalogue: Storage, bindings: Bindings, time: Time) -> None:
    """Later weights and other servers do not change it; it is cached for ``CACHE_TTL`` seconds and then read again."""
    put(catalogue, "p", "u")
    assert bindings.bind(QUEUE) == "p"
    put(catalogue, "p", "u", 0)
    put(catalogue, "q", "v")
    other = Bindings(catalogue, virtual=False, monotonic=time)
    assert (other.bind(QUEUE), other.bind(QueueRef("acme", "new"))) == ("p", "q")
    time.seconds += CACHE_TTL
    assert bindings.find(QUEUE) == "p"
    found = catalogue.documents.list("acme", BINDING, "", "", 9, catalogue.now()).items
    assert [document.ref for document in found] == [DocumentRef("acme", BINDING, name) for name in ("jobs", "new")]


def test_a_weight_is_a_share() -> None:
    """A pool of weight 0 is never chosen."""
    assert {by_weight({"a": 0, "b": 3, "c": 0}) for _ in range(20)} == {"b"}


def test_a_dead_letter_never_leaves_its_pool(catalogue: Storage, bindings: Bindings) -> None:
    """A dead-letter queue that is bound to another pool is refused; the error names both queues."""
    bindings.bind(QueueRef("acme", "dead"))
    put(catalogue, "p", "u")
    bindings.pools(fresh=True)
    bindings.bind(QUEUE)
    with pytest.raises(PoolsApart, match=r"jobs.*dead"):
        bindings.bind_together(QUEUE, QueueRef("acme", "dead"))


def test_a_missing_message_is_not_reported_while_a_pool_is_unavailable(catalogue: Storage, opened: Opened) -> None:
    """A message that another store has is found anyway."""
    now = catalogue.now()
    catalogue.messages.post(QUEUE, [Draft("a", b"1", 600, 0, "c")], now)
    put(catalogue, "p", "u")
    pooled = PooledStorage(catalogue, opened, virtual=True)
    assert pooled.locate("acme", "none", now) is None
    put(catalogue, "q", "v")
    opened.dead = True
    away = PooledStorage(catalogue, opened, virtual=True)
    found = away.locate("acme", "a", now)
    assert found is not None
    assert found.queue == QUEUE
    with pytest.raises(Unavailable):
        away.locate("acme", "none", now)


@pytest.mark.parametrize("error", [Unavailable, Deposed])
def test_the_maintenance_of_pools_fails_only_if_a_store_was_lost(
    catalogue: Storage, opened: Opened, monkeypatch: pytest.MonkeyPatch, error: type[Unavailable]
) -> None:
    """The failure of ``Deposed`` ends the server, which then opens the pool's store anew."""
    put(catalogue, "p", "u")
    pooled = PooledStorage(catalogue, opened, virtual=True)
    [store] = [one for one in pooled.pools().values() if one is not None]

    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(store, "maintain", fail)
    with pytest.raises(Deposed) if error is Deposed else nullcontext():
        pooled.maintain(pooled.now())


def test_claims_of_a_project_are_those_of_all_pools(catalogue: Storage, opened: Opened) -> None:
    """Each claim is listed once, over all pages; a listing with an unavailable pool fails."""
    for name in ("a", "b"):
        put(catalogue, name, f"uri-{name}")
    pooled = PooledStorage(catalogue, opened, virtual=True)
    now, expected = pooled.now(), []
    for number in range(12):
        queue = QueueRef("acme", f"q{number}")
        pooled.messages.post(queue, [Draft(f"m{number}", b"1", 60, 0, "c")], now)
        pooled.claims.create(queue, ClaimRequest(Lease(f"c{number}", 60, 60), 1), now)
        expected.append((queue.name, f"c{number}"))
    for limit in (1, 5, 100):
        found, after = [], ""
        while True:
            page = pooled.claims.list("acme", after, limit, now)
            found += [(one.queue, one.id) for one in page.items]
            if page.next is None:
                break
            after = page.next
        assert sorted(found) == sorted(expected)
    assert [one.id for one in pooled.claims.list("acme", "", 9, now, "q7").items] == ["c7"]
    put(catalogue, "c", "uri-c")
    opened.dead = True
    later = PooledStorage(catalogue, opened, virtual=True)
    with pytest.raises(Unavailable):
        later.claims.list("acme", "", 100, now)


def test_a_store_in_memory_cannot_be_a_pool(tmp_path: Path) -> None:
    """Each server would have a different store in memory."""
    file = tmp_path / "zq.conf"
    text = "[DEFAULT]\npooling = true\n[pooling:catalog]\nallowed_hosts = memory:\n[storage]\nuri = {}\n"
    file.write_text(text.format("redis://localhost/0"))
    with pytest.raises(StartRefused, match="must not contain memory:"):
        Configuration(str(file))
    file.write_text(text.format("memory:"))
    assert Configuration(str(file)).current.pooling is not None


class Filling:
    """A store whose free space a test sets."""

    def __init__(self) -> None:
        self.is_low = False
        self.checks = 0

    def __call__(self) -> bool:
        self.checks += 1
        return self.is_low


def test_space_is_low_if_any_open_store_has_little(catalogue: Storage, opened: Opened) -> None:
    """Each store is checked every time, because each has its own state; the check opens no store."""
    put(catalogue, "p", "u")
    pooled = PooledStorage(catalogue, opened, virtual=True)
    assert not pooled.has_low_space()
    assert opened.uris == []
    spaces = [Filling(), Filling()]
    for store, space in zip([catalogue, pooled.pools()["p"]], spaces, strict=True):
        store.has_low_space = space  # type: ignore[union-attr]
    for space in spaces:
        space.is_low = True
        assert pooled.has_low_space()
        space.is_low = False
    assert not pooled.has_low_space()
    assert [space.checks for space in spaces] == [3, 3]
