# SPDX-License-Identifier: Apache-2.0
"""SQS in the broker, as far as clients cannot observe it: stored data, and races between servers."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from zq import wire
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.encryption import MARK
from zq.errors import MessageUnreadable, QueueNotFound
from zq.model import Draft, Grouping, HandleOutcome, Holder, Message, MessageHandle, QueueRef
from zq.sqs.extension import ATTRIBUTES
from zq.sqs.feature import use_cases
from zq.sqs.messaging import Messaging, OutgoingMessage
from zq.storage import connect
from zq.storage.api import Storage

KEYS = {"one": bytes(range(32))}
QUEUE = QueueRef("acme", "jobs")
LETTER = OutgoingMessage(b'"body"', 4, None, b'{"MessageGroupId":"g"}')


@pytest.fixture
def storage() -> Iterator[Storage]:
    opened = connect("memory:")
    yield opened
    opened.close()


def broker_of(storage: Storage, keys: dict[str, bytes] | None = None) -> Broker:
    """Return the broker of one server on the store."""
    return Broker(storage, ManualClock(storage.now()), encryption_keys=keys)


def make(storage: Storage, **metadata: object) -> None:
    assert storage.queues.create(QUEUE, wire.encode(metadata))


def messaging_of(storage: Storage) -> Messaging:
    """Return the SQS use cases for messages, of one server on the store."""
    return use_cases(broker_of(storage)).messaging


def received(messaging: Messaging) -> list[Message]:
    """Receive up to ten messages of the queue."""
    claim = messaging.receive(QUEUE, 10, None, Holder()).claim
    return claim.messages if claim else []


def test_a_message_that_goes_at_once_is_told_its_sequence(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence is returned although a consumer of the FIFO queue has already taken the message."""
    assert storage.queues.create(QUEUE, wire.encode({ATTRIBUTES: {"fifo": True}}), Grouping.ORDERED)
    get, taken = storage.messages.get, []

    def late(*terms: Any) -> Any:
        taken.extend(storage.messages.pop(QUEUE, 10, storage.now()))
        return get(*terms)

    monkeypatch.setattr(storage.messages, "get", late)
    letters = [OutgoingMessage(b'"body"', 4, group="g", deduplication_id=id) for id in "aab"]
    sent = messaging_of(storage).send(QUEUE, "AK", letters)
    first, second = taken
    assert sent.ids == [first.id, first.id, second.id]
    assert sent.sequences == {first.id: first.sequence, second.id: second.sequence}


def test_a_batch_enters_a_fifo_queue_in_one_step(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates of earlier messages are omitted, which costs one more request to the store."""
    assert storage.queues.create(QUEUE, wire.encode({ATTRIBUTES: {"fifo": True}}), Grouping.ORDERED)
    post, asked = storage.messages.post, []

    def counted(queue: QueueRef, drafts: Sequence[Draft], *terms: Any, **more: Any) -> Any:
        asked.append(len(drafts))
        return post(queue, drafts, *terms, **more)

    monkeypatch.setattr(storage.messages, "post", counted)
    messaging = messaging_of(storage)

    def send(ids: str) -> list[str | None]:
        letters = [OutgoingMessage(b'"%s"' % id.encode(), 4, group="g", deduplication_id=id) for id in ids]
        letters.append(OutgoingMessage(b'"long"', 1 << 30, group="g", deduplication_id="long"))
        return messaging.send(QUEUE, "AK", letters).ids

    a, b, c, _, none = send("abca")
    assert (asked, none) == ([3], None)
    x, _, y, z, _ = send("xbyz")
    assert send("bb") == [b, b, None]
    assert asked == [3, 4, 3, 1]
    assert [message.id for message in received(messaging)] == [a, b, c, x, y, z]


def test_what_stands_beside_a_body_is_sealed_with_it(storage: Storage) -> None:
    """Body and attributes cannot be read in the store or exchanged; a receiver gets both unchanged."""
    make(storage, _enable_encrypt_messages=True)
    broker = broker_of(storage, KEYS)
    messaging = use_cases(broker).messaging
    [id] = messaging.send(QUEUE, "AK", [LETTER]).ids
    assert id is not None
    [stored] = storage.messages.get(QUEUE, [id], storage.now())
    assert stored.body.startswith(MARK)
    assert stored.attributes.startswith(MARK)
    with pytest.raises(MessageUnreadable):
        broker.sealing.open("acme", id, stored.attributes)
    [message] = received(messaging)
    assert (message.body, message.attributes) == (LETTER.body, LETTER.attributes)
    assert received(messaging_of(storage)) == []


def test_a_queue_that_another_server_deletes_is_missed(storage: Storage) -> None:
    """Each operation fails although this server has cached the queue, and none creates it again."""
    make(storage, _sqs={"visibility": 5})
    messaging = messaging_of(storage)
    messaging.send(QUEUE, "AK", [LETTER])
    [message] = received(messaging)
    handle = MessageHandle(message.id, message.claim, message.claim_count)
    for ask in (
        lambda: messaging.send(QUEUE, "AK", [LETTER]),
        lambda: received(messaging),
        lambda: messaging.handle(QUEUE, [handle]),
    ):
        storage.queues.delete(QUEUE)
        with pytest.raises(QueueNotFound):
            ask()
        assert storage.queues.get(QUEUE) is None
        make(storage, _sqs={"visibility": 5})
        assert messaging.send(QUEUE, "AK", [LETTER]).ids != [None]


def test_attributes_that_another_server_changes_hold_at_once(storage: Storage) -> None:
    """Each send is checked against the stored attributes."""
    make(storage, _sqs={"max_size": 2000})
    messaging = messaging_of(storage)
    long = OutgoingMessage(b'"x"', 1500)
    assert None not in messaging.send(QUEUE, "AK", [long]).ids
    for before, after, fits in ((2000, 1024, False), (1024, 2000, True)):
        changed = wire.encode({"_sqs": {"max_size": after}})
        assert storage.queues.update(QUEUE, wire.encode({"_sqs": {"max_size": before}}), changed)
        sent = messaging.send(QUEUE, "AK", [long, LETTER])
        assert [id is not None for id in sent.ids] == [fits, True]
        assert sent.max_size == after


def test_a_store_finds_each_grip_by_itself(storage: Storage) -> None:
    """The first handle is current, the second is stale and the third has no message; a deletion counts once."""
    make(storage)
    messaging = messaging_of(storage)
    messaging.send(QUEUE, "AK", [LETTER, LETTER])
    one, other = received(messaging)
    handles = [
        MessageHandle(one.id, one.claim, 1),
        MessageHandle(other.id, other.claim, 2),
        MessageHandle("0" * 32, one.claim, 1),
        MessageHandle(other.id, other.claim, 1, 0),
    ]
    assert messaging.handle(QUEUE, handles) == [
        HandleOutcome.DONE,
        HandleOutcome.LOST,
        HandleOutcome.GONE,
        HandleOutcome.DONE,
    ]
    assert [message.id for message in received(messaging)] == [other.id]
