# SPDX-License-Identifier: Apache-2.0
"""Queues whose messages are encrypted in the store (contract 7.9; criteria F1 and F2)."""

import logging
from base64 import b64encode
from typing import Any

import pytest
from msgspec import structs

from tests.http.api import Api
from tests.http.scoped import Scoped
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.data_keys import DataKeys
from zq.core.encryption import MARK, UNREADABLE_DELAY, Sealing
from zq.core.rates import Rates
from zq.core.tails import ALL
from zq.http.app import create_app
from zq.model import Draft, ListFilter, Message, Move, QueueRef, new_ids
from zq.model.limits import DEFAULT_KEEP
from zq.model.quotas import Quota
from zq.model.topics import Entry, TopicRef
from zq.storage.api import Storage
from zq.wire import checksum

URL = "/v2/queues/jobs/messages"
ON = {"_enable_encrypt_messages": True}
KEYS = {"one": bytes(range(32)), "two": bytes(range(32, 64))}
SECRET: Any = {"card": "4111 1111", "note": "Zo\u00eb"}


@pytest.fixture
def api(compose) -> Api:
    """Return a client of a server with keys, whose queue ``jobs`` is encrypted and keeps history."""
    made: Api = compose(encryption_keys=KEYS)
    made.put("/v2/queues/jobs", 201, ON | {"_history_ttl": 600})
    return made


@pytest.fixture
def store(storage: Storage, clock: ManualClock, api: Api) -> "Store":
    return Store(storage, clock, api.project)


class Store:
    """The stored messages of the project's queues."""

    def __init__(self, storage: Storage, clock: ManualClock, project: str) -> None:
        self._storage, self._clock, self._project = storage, clock, project

    def messages(self, queue: str = "jobs") -> list[Message]:
        shown = ListFilter("", True, True)
        ref = QueueRef(self._project, queue)
        return list(self._storage.messages.list(ref, 0, 100, shown, self._clock.now()).items)

    def swap(self, one: Message, other: Message) -> None:
        """Exchange the stored bodies of two messages."""
        self.replace(one.id, other.body)
        self.replace(other.id, one.body)

    def replace(self, id: str, body: bytes) -> None:
        ref, now = QueueRef(self._project, "jobs"), self._clock.now()
        self._storage.messages.delete(ref, [id], now)
        self._storage.messages.post(ref, [Draft(id, body, 300, 0, "")], now)


def of(shown: Any) -> list[Any]:
    """Return the bodies of a response."""
    return [message["body"] for message in shown.json["messages"]]


@pytest.mark.every_store
def test_the_store_holds_no_body_and_every_answer_does(api: Api, store: Store) -> None:
    """7.9: Every request that returns messages, including reads of the history, returns the posted bodies."""
    first, second = api.send("jobs", SECRET, None)
    for message in store.messages():
        assert message.body[:1] == MARK
        assert b"4111" not in message.body
        assert b"null" not in message.body
    assert of(api.get(f"{URL}?echo=true", 200)) == [SECRET, None]
    assert api.get(f"{URL}/{first}", 200).json["body"] == SECRET
    assert of(api.get(f"{URL}?ids={second},{first}", 200)) == [None, SECRET]
    claim, claimed = api.claim("jobs")
    assert [message["body"] for message in claimed] == [SECRET, None]
    assert of(api.get(claim, 200)) == [SECRET, None]
    api.delete(claim, 204)
    assert of(api.delete(f"{URL}?pop=5", 200)) == [SECRET, None]
    assert of(api.get("/v2/queues/jobs/history", 200)) == [SECRET, None]


def test_two_equal_bodies_are_not_equal_in_the_store(api: Api, store: Store) -> None:
    """F1: The nonce is random."""
    api.send("jobs", "same", "same")
    one, other = store.messages()
    assert one.body != other.body


def test_a_body_that_was_swapped_in_the_store_is_never_shown(
    api: Api, store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """F1: No verb returns either message. Other messages are returned, and the log names the two."""
    api.send("jobs", "a", "b", "c")
    one, other, third = store.messages()
    store.swap(one, other)
    assert of(api.get(f"{URL}?echo=true", 200)) == ["c"]
    with caplog.at_level(logging.ERROR):
        refused = api.get(f"{URL}/{one.id}", 503)
    assert refused.headers["X-Zq-Error"] == "MessageUnreadable"
    assert one.id in caplog.text
    api.get(f"{URL}?ids={one.id},{other.id}", 503)
    assert of(api.get(f"{URL}?ids={one.id},{third.id}", 200)) == ["c"]
    claim, claimed = api.claim("jobs")
    assert [message["body"] for message in claimed] == ["c"]
    assert of(api.get(claim, 200)) == ["c"]
    api.post("/v2/queues/jobs/claims", 204, {})
    api.delete(claim, 204)
    clock.advance(UNREADABLE_DELAY)
    assert of(api.delete(f"{URL}?pop=5", 200)) == ["c"]
    assert of(api.get("/v2/queues/jobs/history", 200)) == ["c"]
    assert api.post("/v2/queues/jobs/history/replay", 200, {"limit": 10}).json["replayed"] == 1


def test_a_message_is_shown_again_when_its_key_is(api: Api, store: Store, compose, clock: ManualClock) -> None:
    """F2: A server without the key loses no message, not even by a pop.

    All keys decrypt and the first key encrypts. Later pops skip the message for a minute.
    """
    api.patch("/v2/queues/jobs", 200, [{"op": "remove", "path": "/metadata/_history_ttl"}])
    api.send("jobs", "mine")
    other = compose(encryption_keys={"two": KEYS["two"]})
    (message,) = store.messages()
    other.get(f"{URL}/{message.id}", 503)
    assert of(other.delete(f"{URL}?pop=1", 200)) == []
    clock.advance(UNREADABLE_DELAY - 1)
    assert of(api.delete(f"{URL}?pop=1", 200)) == []
    other.send("jobs", "theirs")
    rotated = compose(encryption_keys={"two": KEYS["two"], "one": KEYS["one"]})
    assert sorted(of(rotated.get(f"{URL}?echo=true&include_delayed=true", 200))) == ["mine", "theirs"]
    clock.advance(60)
    assert sorted(of(rotated.delete(f"{URL}?pop=2", 200))) == ["mine", "theirs"]


def test_who_settles_all_of_a_claim_settles_what_it_has_shown(api: Api, compose, clock: ManualClock) -> None:
    """F2: A message that cannot be decrypted is not part of the claim; it is ready again a minute later."""
    api.send("jobs", "mine")
    other = compose(encryption_keys={"two": KEYS["two"]})
    other.send("jobs", "theirs")
    claim, claimed = other.claim("jobs")
    assert [message["body"] for message in claimed] == ["theirs"]
    assert other.post(f"{claim}/settle", 200, {"delete": "*"}).json["deleted"] == 1
    api.post("/v2/queues/jobs/claims", 204, {})
    clock.advance(UNREADABLE_DELAY)
    assert [message["body"] for message in api.claim("jobs")[1]] == ["mine"]


def test_a_popped_message_without_its_key_stays_in_the_history(api: Api, compose) -> None:
    """F2: If the queue keeps history, the message can be replayed from there."""
    api.send("jobs", "mine")
    other = compose(encryption_keys={"two": KEYS["two"]})
    assert of(other.delete(f"{URL}?pop=1", 200)) == []
    assert of(other.get("/v2/queues/jobs/history", 200)) == []
    assert of(api.get("/v2/queues/jobs/history", 200)) == ["mine"]
    api.post("/v2/queues/jobs/history/replay", 200, {"limit": 1})
    assert of(api.get(f"{URL}?echo=true", 200)) == ["mine"]


def test_each_message_tells_itself_whether_it_is_sealed(api: Api, store: Store, compose) -> None:
    """7.9: The queue's present flag and a move to another queue do not matter."""
    api.send("jobs", 1)
    api.patch("/v2/queues/jobs", 200, [{"op": "replace", "path": "/metadata/_enable_encrypt_messages", "value": False}])
    api.send("jobs", 2)
    assert [message.body[:1] == MARK for message in store.messages()] == [True, False]
    assert of(api.get(f"{URL}?echo=true", 200)) == [1, 2]


@pytest.mark.every_store
def test_a_dead_letter_stays_sealed_and_can_be_read(api: Api, store: Store) -> None:
    """F2: The body is bound to the message's id, which a move keeps; a new body is encrypted as well."""
    api.send("jobs", "old", "gone")
    claim, claimed = api.claim("jobs")
    one, other = (message["id"] for message in claimed)
    moves = [{"id": one, "queue": "plain"}, {"id": other, "queue": "plain", "body": "new"}]
    api.post(f"{claim}/settle", 200, {"move": moves})
    assert [message.body[:1] for message in store.messages("plain")] == [MARK, MARK]
    assert sorted(of(api.get("/v2/queues/plain/messages?echo=true", 200))) == ["new", "old"]


@pytest.mark.every_store
def test_copies_of_history_are_sealed_anew(api: Api, store: Store) -> None:
    """F2: The copies have ids of their own."""
    api.send("jobs", SECRET)
    api.delete(f"{URL}?pop=1", 200)
    api.post("/v2/queues/jobs/history/replay", 200, {"limit": 1})
    assert [message.body[:1] for message in store.messages()] == [MARK]
    assert of(api.get(f"{URL}?echo=true", 200)) == [SECRET]


@pytest.mark.every_store
def test_what_is_staged_is_sealed_when_it_is_published(api: Api, store: Store) -> None:
    api.post(f"{URL}?stage=night", 202, {"messages": [{"body": SECRET}]})
    api.post("/v2/commits", 200, {"producer": "job", "batch": 1, "publish": ["night"]})
    assert [message.body[:1] for message in store.messages()] == [MARK]
    assert of(api.get(f"{URL}?echo=true", 200)) == [SECRET]


def test_nobody_can_post_what_is_taken_for_sealed(api: Api) -> None:
    """The first byte of an encrypted body cannot begin a JSON text."""
    api.put("/v2/queues/plain", 201)
    url = "/v2/queues/plain/messages"
    api.post(url, 400, b'{"messages": [{"body": \x01"one"}]}')
    api.send("plain", "\x01\x03one", "AQNvbmU=")
    assert of(api.get(f"{url}?echo=true", 200)) == ["\x01\x03one", "AQNvbmU="]


def test_another_project_cannot_open_it(api: Api, store: Store, storage: Storage, clock: ManualClock) -> None:
    """F1: Each project has its own key."""
    api.send("jobs", SECRET)
    (message,) = store.messages()
    thief = api.tenant("other")
    draft = Draft(message.id, message.body, 300, 0, "")
    storage.messages.post(QueueRef(thief.project, "jobs"), [draft], clock.now())
    thief.get(f"{URL}/{message.id}", 503)


def test_without_keys_encryption_is_refused_and_nothing_is_stored_in_clear(api: Api, store: Store, compose) -> None:
    """7.9: The server answers 400 to enable encryption, and 503 for an encrypted queue whose keys it lacks."""
    bare = compose()
    assert "message_encryption_key_file" in bare.put("/v2/queues/more", 400, ON).json["description"]
    bare.post(URL, 503, {"messages": [{"body": SECRET}]})
    assert store.messages() == []


def test_a_checksum_is_that_of_the_ciphertext(store: Store, compose) -> None:
    api = compose(checksum=True, encryption_keys=KEYS)
    (id,) = api.send("jobs", SECRET)
    (message,) = store.messages()
    told = api.get(f"{URL}/{id}", 200).json["checksum"]
    assert told == checksum(b'"' + b64encode(message.body) + b'"')
    assert api.claim("jobs")[1][0]["checksum"] == told


# Topics.

NEWS = "/v2/topics/news"


@pytest.fixture
def news(api: Api) -> Api:
    """Return the client after encryption is enabled for the topic ``news``."""
    api.put(NEWS, 201, ON)
    return api


def published(api: Api, *bodies: Any) -> list[str]:
    """Publish messages and return their ids."""
    document = {"messages": [{"body": body} for body in bodies]}
    return [href.rpartition("/")[2] for href in api.post(f"{NEWS}/messages", 201, document).json["resources"]]


@pytest.mark.every_store
def test_a_topic_stands_encrypted_in_its_log_and_is_read_as_it_was_published(
    news: Api, storage: Storage, clock: ManualClock
) -> None:
    """F2: Listings, reads by id and waiting requests return the published bodies."""
    first, second = published(news, SECRET, "two")
    stored = [entry.body for batch in storage.topics.read(news.project, 0, 10, ALL).batches for entry in batch.entries]
    assert [body[:1] for body in stored] == [MARK, MARK]
    assert not [body for body in stored if b"4111" in body]
    assert of(news.get(f"{NEWS}/messages", 200)) == [SECRET, "two"]
    assert of(news.get(f"{NEWS}/messages?ids={first},{second}", 200)) == [SECRET, "two"]
    assert news.get(f"{NEWS}/messages/{first}", 200).json["body"] == SECRET
    assert of(news.get(f"{NEWS}/messages?marker={first}&wait=1", 200)) == ["two"]


def test_what_was_published_in_the_clear_and_sealed_stand_side_by_side(news: Api) -> None:
    sealed, off = published(news, 1), [{"op": "replace", "path": "/metadata/_enable_encrypt_messages", "value": False}]
    news.patch(NEWS, 200, off)
    clear = published(news, 2)
    assert of(news.get(f"{NEWS}/messages", 200)) == [1, 2]
    assert sealed < clear


def test_a_message_of_a_topic_that_cannot_be_opened_is_503_for_itself_alone(
    compose, storage: Storage, clock: ManualClock
) -> None:
    """Like in queues, the other messages are returned."""
    api = compose(encryption_keys=KEYS)
    api.put(NEWS, 201, ON)
    first, second = published(api, 1, 2)
    bare = compose(encryption_keys={"other": bytes(32)})
    assert of(bare.get(f"{NEWS}/messages", 200)) == []
    for path in (f"{first}", f"?ids={first},{second}"):
        refused = bare.get(f"{NEWS}/messages/{path}".replace("/?", "?"), 503)
        assert refused.headers["X-Zq-Error"] == "MessageUnreadable"


@pytest.mark.every_store
def test_bodies_that_were_exchanged_within_a_topic_are_never_shown(
    news: Api, compose, storage: Storage, clock: ManualClock
) -> None:
    """F1: Each body is bound to random bytes stored with it.

    Bodies of earlier versions, which are not, stay readable.
    """
    published(news, 1, 2)
    topic = TopicRef(news.project, "news")
    one, other = [entry for batch in storage.topics.read(news.project, 0, 10, ALL).batches for entry in batch.entries]
    exchanged = [structs.replace(one, body=other.body), structs.replace(other, body=one.body)]
    sealing = Sealing(DataKeys(storage.documents, clock, KEYS))
    former = Entry(sealing.seal(news.project, "topic/news", b'"former"'), 600)
    elsewhere = Entry(sealing.seal(news.project, "topic/other", b'"elsewhere"'), 600)
    storage.topics.publish(topic, [*exchanged, former, elsewhere], clock.now(), DEFAULT_KEEP)
    assert of(news.get(f"{NEWS}/messages", 200)) == [1, 2, "former"]


@pytest.mark.every_store
def test_a_plain_body_where_all_are_encrypted_is_never_shown(
    news: Api, store: Store, storage: Storage, clock: ManualClock
) -> None:
    """F1: This holds for every read of a queue or topic that was created with encryption."""
    clock.advance(10)
    (id,) = news.send("jobs", SECRET)
    store.replace(id, b'"forged"')
    entry = Entry(b'"forged"', 600)
    sequence = storage.topics.publish(TopicRef(news.project, "news"), [entry], clock.now(), DEFAULT_KEEP)
    assert news.get(f"{URL}/{id}", 503).headers["X-Zq-Error"] == "MessageUnreadable"
    assert of(news.get(f"{URL}?echo=true", 200)) == []
    news.get(f"{URL}?ids={id}", 503)
    news.post("/v2/queues/jobs/claims", 204)
    assert of(news.get(f"{NEWS}/messages", 200)) == []
    assert news.get(f"{NEWS}/messages/{sequence}", 503).headers["X-Zq-Error"] == "MessageUnreadable"
    off = [{"op": "replace", "path": "/metadata/_enable_encrypt_messages", "value": False}]
    for path in ("/v2/queues/jobs", NEWS):
        assert "~sealed" not in news.get(path, 200).json
        news.patch(path, 400, [{"op": "add", "path": "/metadata/~sealed", "value": 1}])
        news.patch(path, 200, off)
    assert news.get(f"{URL}/{id}", 200).json["body"] == "forged"
    assert of(news.get(f"{NEWS}/messages", 200)) == ["forged"]


@pytest.mark.every_store
def test_plain_bodies_are_read_at_once_when_another_server_has_turned_encryption_off(
    compose, clock: ManualClock
) -> None:
    """A reader caches for a second that all bodies are encrypted; it queries the store before it refuses a body."""
    one, other = compose(encryption_keys=KEYS), compose(encryption_keys=KEYS)
    for path in ("/v2/queues/jobs", NEWS):
        one.put(path, 201, ON)
    clock.advance(10)
    one.send("jobs", "sealed")
    published(one, "sealed")
    assert of(other.get(f"{URL}?echo=true", 200)) == of(other.get(f"{NEWS}/messages", 200)) == ["sealed"]
    for path in ("/v2/queues/jobs", NEWS):
        one.patch(path, 200, [{"op": "replace", "path": "/metadata/_enable_encrypt_messages", "value": False}])
    one.send("jobs", "plain")
    published(one, "plain")
    assert of(other.get(f"{URL}?echo=true", 200)) == of(other.get(f"{NEWS}/messages", 200)) == ["sealed", "plain"]


def test_plain_bodies_from_before_the_encryption_stay_readable(compose, clock: ManualClock) -> None:
    """This holds for a queue and a topic whose encryption was enabled later, also after a repeated patch."""
    api = compose(encryption_keys=KEYS)
    api.put("/v2/queues/jobs", 201)
    api.send("jobs", "plain")
    api.put(NEWS, 201)
    published(api, "plain")
    for path in ("/v2/queues/jobs", NEWS):
        for value in (True, False, True):
            api.patch(path, 200, [{"op": "add", "path": "/metadata/_enable_encrypt_messages", "value": value}])
    clock.advance(10)
    api.send("jobs", "sealed")
    published(api, "sealed")
    assert of(api.get(f"{URL}?echo=true", 200)) == ["plain", "sealed"]
    assert of(api.get(f"{NEWS}/messages", 200)) == ["plain", "sealed"]


@pytest.mark.every_store
@pytest.mark.parametrize("way", ["move", "bury", "too often", "redrive"])
def test_plain_bodies_that_are_moved_into_an_encrypted_queue_stay_readable(
    compose, clock: ManualClock, way: str
) -> None:
    """Drivers move bodies without inspecting them, so the queue accepts plain bodies afterwards."""
    api = compose(encryption_keys=KEYS)
    api.put("/v2/queues/jobs", 201, ON)
    api.put("/v2/queues/plain", 201, {"_dead_letter_queue": "jobs", "_max_claim_count": 1})
    clock.advance(10)
    (id,) = api.send("plain", "moved")
    claim, _ = api.claim("plain")
    if way == "move":
        api.post(f"{claim}/settle", 200, {"move": [{"id": id, "queue": "jobs"}]})
    elif way == "bury":
        api.post(f"{claim}/settle", 200, {"bury": [{"id": id, "reason": "x"}]})
    elif way == "too often":
        api.delete(claim, 204)
        api.post("/v2/queues/plain/claims", 204)
    else:
        api.delete(claim, 204)
        api.post("/v2/queues/plain/redrive", 200, {"to": "jobs"})
    clock.advance(10)
    api.send("jobs", "sealed")
    assert sorted(of(api.get(f"{URL}?echo=true", 200))) == ["moved", "sealed"]


@pytest.mark.every_store
@pytest.mark.parametrize(
    "refused",
    [
        "unknown claim",
        "ids of another claim",
        "older fence",
        "full project",
        "key of another request",
        "repeated request",
        "commit is open",
    ],
)
def test_a_move_that_stores_no_plain_body_leaves_the_notice_of_plain_bodies(
    compose, storage: Storage, clock: ManualClock, project_suffix: str, refused: str
) -> None:
    """A plain body that is forged in the encrypted queue later is never returned."""
    api: Api = compose(encryption_keys=KEYS, commit_slice=1, patience=-1.0)
    if refused == "full project":
        quota = Quota(**dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25, "queues": 2})
        broker = Broker(storage, clock, quota=quota, rates=Rates(64, clock.now), encryption_keys=KEYS)
        api = Scoped(lambda options: create_app(broker, **options), project_suffix).api()
    api.put("/v2/queues/jobs", 201, ON)
    api.put("/v2/queues/plain", 201)
    clock.advance(10)
    first, second = api.send("plain", "first", "second")
    move = {"move": [{"id": first, "queue": "jobs"}]}
    if refused == "unknown claim":
        api.post("/v2/queues/plain/claims/none/settle", 404, move)
    elif refused == "ids of another claim":
        api.claim("plain", limit=1)
        other, _ = api.claim("plain", limit=1)
        assert api.post(f"{other}/settle", 200, move).json["lost"] == [first]
    elif refused == "older fence":
        api.post("/v2/fences/etl", 200)
        claim = "/v2/queues/plain/claims/etl.1"
        api.put(f"{claim}?fence=etl:1", 201)
        api.post("/v2/fences/etl", 200)
        api.post(f"{claim}/settle?fence=etl:1", 409, move)
    elif refused == "key of another request":
        claim, _ = api.claim("plain")
        api.post(f"{claim}/settle", 200, {"delete": [second]}, headers={"Idempotency-Key": "k"})
        api.post(f"{claim}/settle", 422, move, headers={"Idempotency-Key": "k"})
    elif refused == "repeated request":
        api.claim("plain", limit=1, ttl=60, grace=60)
        for _ in range(2):
            api.put("/v2/queues/plain/claims/etl.1", 201, {"ttl": 60, "grace": 60})
            settled = api.post("/v2/queues/plain/claims/etl.1/settle", 200, move, headers={"Idempotency-Key": "k"})
            assert settled.json["lost"] == [first]
            clock.advance(61)
    elif refused == "commit is open":
        api.put("/v2/queues/plain/claims/etl.1", 201)
        held = [{"queue": "plain", "claim": "etl.1"}]
        api.post("/v2/commits", 202, {"producer": "etl", "batch": 1, "settle": held})
        api.post("/v2/queues/plain/claims/etl.1/settle", 404, move)
    else:
        claim, _ = api.claim("plain")
        missing = {"id": second, "queue": "missing"}
        api.post(f"{claim}/settle", 403, {"move": [*move["move"], missing]})
    store = Store(storage, clock, api.project)
    (id,) = api.send("jobs", SECRET)
    store.replace(id, b'"forged"')
    assert api.get(f"{URL}/{id}", 503).headers["X-Zq-Error"] == "MessageUnreadable"


def test_a_redrive_beyond_the_quota_leaves_the_notice_of_plain_bodies(
    storage: Storage, clock: ManualClock, project_suffix: str
) -> None:
    """The origin of one dead letter is encrypted; the origin of the other would exceed the quota of queues."""
    quota = Quota(**dict.fromkeys(Quota.__struct_fields__, 0) | {"share": 25, "queues": 2})
    broker = Broker(storage, clock, quota=quota, rates=Rates(64, clock.now), encryption_keys=KEYS)
    api = Scoped(lambda options: create_app(broker, **options), project_suffix).api()
    api.put("/v2/queues/jobs", 201, ON)
    api.put("/v2/queues/dead", 201)
    clock.advance(10)
    dead = QueueRef(api.project, "dead")
    for origin in ("jobs", "missing"):
        former = QueueRef(api.project, origin)
        draft = Draft(new_ids(1, clock.now())[0], b'"plain"', 300, 0, "")
        storage.messages.post(former, [draft], clock.now())
        storage.messages.move(former, [Move(draft.id, "dead", reason="bad")], clock.now())
        if origin == "missing":
            storage.queues.delete(former)
    assert len(storage.messages.list(dead, 0, 10, ListFilter(), clock.now()).items) == 2
    api.post("/v2/queues/dead/redrive", 403, {})
    store = Store(storage, clock, api.project)
    (id,) = api.send("jobs", SECRET)
    store.replace(id, b'"forged"')
    assert api.get(f"{URL}/{id}", 503).headers["X-Zq-Error"] == "MessageUnreadable"


def test_attributes_are_encrypted_with_the_body(api: Api, storage: Storage, clock: ManualClock) -> None:
    """Attributes of the message and of the request are encrypted; every response shows them, also after a replay."""
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"messages": [{"body": SECRET, "attributes": {"card": "4111 1111"}}]}
    api.post(URL, 201, body, {"traceparent": parent})
    [stored] = storage.messages.list(QueueRef(api.project, "jobs"), 0, 10, ListFilter(), clock.now()).items
    assert stored.attributes.startswith(MARK)
    assert b"4111" not in stored.attributes
    attributes = {"card": "4111 1111", "traceparent": parent}
    [popped] = api.delete(f"{URL}?pop=1&detailed=true", 200).json["messages"]
    api.post("/v2/queues/jobs/history/replay", 200, {"limit": 1})
    [copy] = api.get(f"{URL}?echo=true&detailed=true", 200).json["messages"]
    assert popped["attributes"] == copy["attributes"] == attributes


@pytest.mark.every_store
def test_attributes_of_a_topic_are_encrypted_with_the_body(news: Api, storage: Storage) -> None:
    """Every reader sees the attributes; attributes that were exchanged in the store are never returned."""
    body = {"messages": [{"body": SECRET, "attributes": {"card": "4111 1111"}}, {"body": 2, "attributes": {"a": "x"}}]}
    news.post(f"{NEWS}/messages", 201, body)
    one, other = [entry for batch in storage.topics.read(news.project, 0, 10, ALL).batches for entry in batch.entries]
    assert one.attributes.startswith(MARK)
    assert b"4111" not in one.attributes
    shown = news.get(f"{NEWS}/messages?detailed=true", 200).json["messages"]
    assert [message["attributes"] for message in shown] == [{"card": "4111 1111"}, {"a": "x"}]
    exchanged = structs.replace(one, attributes=other.attributes)
    storage.topics.publish(TopicRef(news.project, "news"), [exchanged], storage.now(), DEFAULT_KEEP)
    assert len(news.get(f"{NEWS}/messages", 200).json["messages"]) == 2
