# SPDX-License-Identifier: Apache-2.0
"""Encryption of message bodies and attributes in the store (contract 7.9).

An encrypted body begins with a byte that no JSON text begins with. So clients cannot post a body that looks encrypted,
and the first byte shows whether a body is encrypted. The layout is: that byte, the length of the data key's id, the id,
a nonce of 12 random bytes, and the AES-256-GCM ciphertext with its tag of 16 bytes. The tag also covers the project and
the message id: a body that was copied to another message cannot be decrypted. In a topic it covers the topic and random
bytes that are stored with the body.

A queue or topic that was created with encryption has the time since which all its bodies are encrypted. A plain body in
it was not written by a server, and is treated like one that cannot be decrypted.
"""

import logging
import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import structs

from zq import wire
from zq.core.data_keys import NONCE, DataKeys
from zq.errors import MessageUnreadable
from zq.events import NO_EVENTS, Events
from zq.model import HistoryEntry, Message, Messages, QueueRef, Seconds
from zq.model.topics import Published, TopicRef

LOG = logging.getLogger(__name__)
# First byte of an encrypted body: the version of the layout. JSON begins with white space, a bracket, a quote, a digit,
# a minus sign or a letter.
MARK: Final = b"\x01"
# Bytes of the authentication tag.
TAG: Final = 16
# Random bytes to which each body of a topic is bound.
SEAL: Final = 16
# Seconds for which a server may post plain bodies to a new encrypting queue or topic, because its cache is older.
SETTLED: Final = 5.0
# Delay in seconds of a message that was claimed or popped and could not be decrypted.
SET_ASIDE: Final = 60
UNREADABLE: Final = "The message's body is encrypted, and cannot be opened with the keys of this server."


class Sealing:
    """Encryption and decryption of message bodies."""

    def __init__(
        self,
        keys: DataKeys,
        events: Events = NO_EVENTS,
        queue_since: Callable[[QueueRef], Seconds] = lambda _queue: 0.0,
        topic_since: Callable[[TopicRef], Seconds] = lambda _topic: 0.0,
        stored_queue_since: Callable[[QueueRef], Seconds] = lambda _queue: 0.0,
        stored_topic_since: Callable[[TopicRef], Seconds] = lambda _topic: 0.0,
    ) -> None:
        """Initialize with functions that return the time since which all bodies are encrypted (0 = some may be plain).

        ``queue_since`` and ``topic_since`` may be cached; ``stored_queue_since`` and ``stored_topic_since`` read the
        store, because another server may have turned encryption off.
        """
        self.keys = keys
        self._events = events
        self._since_of = queue_since
        self._topic_since = topic_since
        self._stored_queue_since = stored_queue_since
        self._stored_topic_since = stored_topic_since

    def _queue_since(self, queue: QueueRef) -> Seconds:
        return self._since_of(queue) if self.keys.enabled else 0.0

    def seal(self, project: str, id: str, body: bytes) -> bytes:
        """Encrypt a body for the message with this id. Raises ``Unavailable`` if there is no key."""
        key, cipher = self.keys.sealing(project)
        nonce = os.urandom(NONCE)
        sealed: bytes = cipher.encrypt(nonce, body, _bound_to(key, project, id))
        return MARK + bytes([len(key)]) + key.encode() + nonce + sealed

    def open(self, project: str, id: str, body: bytes) -> bytes:
        """Return the body as it was posted; a plain body is returned unchanged. Raises ``MessageUnreadable``."""
        if body[:1] != MARK:
            return body
        end = 2 + body[1] if len(body) > 1 else 0
        key = body[2:end].decode("ascii", "replace")
        cipher = self.keys.opening(project, key)
        if cipher is None or len(body) < end + NONCE + TAG:
            raise self._failed(id, key)
        from cryptography.exceptions import InvalidTag

        nonce, sealed = body[end : end + NONCE], body[end + NONCE :]
        try:
            opened: bytes = cipher.decrypt(nonce, sealed, _bound_to(key, project, id))
        except InvalidTag as error:
            raise self._failed(id, key) from error
        return opened

    def stored(self, project: str, id: str, body: bytes, *, seals: bool, checksum: bool) -> tuple[bytes, str]:
        """Return the body to store and its checksum ("" unless ``checksum``).

        ``seals``: encrypt the body (contract 7.10).
        """
        if not seals:
            return body, wire.checksum(body) if checksum else ""
        sealed = self.seal(project, id, body)
        return sealed, wire.checksum(b'"' + b64encode(sealed) + b'"') if checksum else ""

    def stored_attributes(self, project: str, id: str, attributes: bytes, *, seals: bool) -> bytes:
        """Return the attributes to store, encrypted if ``seals``. Empty attributes stay empty."""
        return self.seal(project, attributes_of(id), attributes) if seals and attributes else attributes

    def opened(self, queue: QueueRef, messages: Messages) -> Messages:
        """Return the messages as they were posted, without those that cannot be decrypted."""
        marked = [1 for message in messages if message.body[:1] == MARK or message.attributes[:1] == MARK]
        if not marked and not self._queue_since(queue):
            return messages
        return [shown for message in messages if (shown := self.opened_or_none(queue, message)) is not None]

    def opened_or_none(self, queue: QueueRef, message: Message) -> Message | None:
        """Return a message as it was posted, or ``None`` if it cannot be decrypted."""
        try:
            return self.opened_one(queue, message)
        except MessageUnreadable:
            return None

    def opened_one(self, queue: QueueRef, message: Message) -> Message:
        """Return a message as it was posted. Raises ``MessageUnreadable``."""
        if (
            is_plain(message)
            and _is_later(message.created, self._queue_since(queue))
            and _is_later(message.created, self._stored_queue_since(queue))
        ):
            raise self._plain(message.id)
        if not is_sealed(message):
            return message
        project = queue.project
        body = self.open(project, message.id, message.body)
        attributes = self.open(project, attributes_of(message.id), message.attributes)
        return structs.replace(message, body=body, attributes=attributes)

    def opened_entries(self, queue: QueueRef, entries: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
        """Return history entries as they were posted, without those that cannot be decrypted."""
        if not any(is_sealed(entry.message) for entry in entries) and not self._queue_since(queue):
            return entries
        shown = [(entry, self.opened_or_none(queue, entry.message)) for entry in entries]
        return [structs.replace(entry, message=message) for entry, message in shown if message is not None]

    def opened_published(self, project: str, messages: Sequence[Published]) -> Sequence[Published]:
        """Return messages of topics as they were posted, without those that cannot be decrypted."""
        if not self.keys.enabled and not [1 for message in messages if message.entry.body[:1] == MARK]:
            return messages
        shown = []
        for message in messages:
            with suppress(MessageUnreadable):
                shown.append(self.opened_one_published(project, message))
        return shown

    def opened_one_published(self, project: str, message: Published) -> Published:
        """Return a message of a topic as it was published. Raises ``MessageUnreadable``."""
        entry, topic = message.entry, message.topic
        if entry.body[:1] != MARK:
            ref = TopicRef(project, topic)
            if (
                self.keys.enabled
                and _is_later(message.created, self._topic_since(ref))
                and _is_later(message.created, self._stored_topic_since(ref))
            ):
                raise self._plain(str(message.sequence))
            return message
        body = self.open(project, id_in_topic(topic, entry.seal), entry.body)
        return structs.replace(message, entry=structs.replace(entry, body=body))

    def _plain(self, id: str) -> MessageUnreadable:
        self._events.unreadable()
        LOG.error("Message %s is not encrypted, though all are where it was found: it was changed in the store.", id)
        return MessageUnreadable(UNREADABLE)

    def _failed(self, id: str, key: str) -> MessageUnreadable:
        self._events.unreadable()
        LOG.error(
            "Message %s cannot be opened: it was changed or moved in the store, or this server has not the master key "
            "of key %.32r of its project.",
            id,
            key,
        )
        return MessageUnreadable(UNREADABLE)


def id_in_topic(topic: str, seal: bytes) -> str:
    """Return the identity to which a topic's body is bound, because such a message has no id before it is stored.

    ``seal``: random bytes of the entry; entries of earlier versions have none. The slash prevents collisions with
    message ids and topic names.
    """
    return f"topic/{topic}/{seal.hex()}" if seal else f"topic/{topic}"


def _is_later(created: Seconds, since: Seconds) -> bool:
    """Return whether a message was posted when every server knew that its body must be encrypted."""
    return bool(since) and created > since + SETTLED


def attributes_of(id: str) -> str:
    """Return the identity to which a message's attributes are bound, so that they cannot be stored as its body."""
    return f"extra/{id}"


def is_sealed(message: Message) -> bool:
    """Return whether the message's body or attributes are encrypted in the store."""
    return message.body[:1] == MARK or message.attributes[:1] == MARK


def is_plain(message: Message) -> bool:
    """Return whether the message's body or attributes are stored unencrypted."""
    return message.body[:1] != MARK or (bool(message.attributes) and message.attributes[:1] != MARK)


def _bound_to(key: str, project: str, id: str) -> bytes:
    """Return the additional authenticated data of a body. No part can contain the separator."""
    return MARK + b"\x00".join(part.encode() for part in (key, project, id))
