# SPDX-License-Identifier: Apache-2.0
"""Encryption of stored message bodies and attributes (contract section 7.9).

An encrypted body has this layout:

- the byte ``MARK``, which cannot begin a JSON text, so clients cannot post a body that looks encrypted;
- the length of the data key's id (one byte), and the id;
- a nonce of 12 random bytes;
- the AES-256-GCM ciphertext with its 16-byte tag.

The tag also authenticates the project and the message id. A body that an attacker copies to another message can
therefore not be decrypted. In a topic, the tag authenticates the topic and random bytes that are stored with the body.

A queue or topic with encryption records the time since which all its bodies are encrypted. A later unencrypted body was
not written by a server, so it is treated like a body that cannot be decrypted.
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
from zq.model.topics import Entry, PublishedMessage, TopicRef

LOG = logging.getLogger(__name__)
# First byte of an encrypted body: the layout version. JSON begins with white space, a bracket, a quote, a digit, a
# minus sign or a letter.
MARK: Final = b"\x01"
# Length of the authentication tag in bytes.
TAG: Final = 16
# Number of random bytes that bind a topic's body to its log entry.
SEAL: Final = 16
# Seconds after the start of encryption in which a server with an outdated cache may still post unencrypted bodies.
CACHE_EXPIRY_SECONDS: Final = 5.0
# Redelivery delay in seconds of a message that could not be decrypted when it was claimed or popped.
UNREADABLE_DELAY: Final = 60
UNREADABLE: Final = "The message body is encrypted and cannot be decrypted with this server's keys."


class Sealing:
    """Encryption and decryption of message bodies.

    The arguments whose names end with ``_since`` are functions. They return the time since which all bodies of a queue
    or topic are encrypted; 0 = some may be unencrypted. The functions whose names begin with ``stored_`` read the
    store, because another server may have disabled encryption.
    """

    def __init__(
        self,
        keys: DataKeys,
        events: Events = NO_EVENTS,
        queue_since: Callable[[QueueRef], Seconds] = lambda _queue: 0.0,
        topic_since: Callable[[TopicRef], Seconds] = lambda _topic: 0.0,
        stored_queue_since: Callable[[QueueRef], Seconds] = lambda _queue: 0.0,
        stored_topic_since: Callable[[TopicRef], Seconds] = lambda _topic: 0.0,
    ) -> None:
        self.keys = keys
        self._events = events
        self._cached_queue_since = queue_since
        self._topic_since = topic_since
        self._stored_queue_since = stored_queue_since
        self._stored_topic_since = stored_topic_since

    def _queue_since(self, queue: QueueRef) -> Seconds:
        return self._cached_queue_since(queue) if self.keys.enabled else 0.0

    def seal(self, project: str, id: str, body: bytes) -> bytes:
        """Encrypt the body of a message. Raises ``Unavailable`` if the server has no master key."""
        key, cipher = self.keys.ensure_cipher(project)
        nonce = os.urandom(NONCE)
        sealed: bytes = cipher.encrypt(nonce, body, _associated_data(key, project, id))
        return MARK + bytes([len(key)]) + key.encode() + nonce + sealed

    def open(self, project: str, id: str, body: bytes) -> bytes:
        """Decrypt a body; return an unencrypted body unchanged. Raises ``MessageUnreadable`` if decryption fails."""
        if body[:1] != MARK:
            return body
        end = 2 + body[1] if len(body) > 1 else 0
        key = body[2:end].decode("ascii", "replace")
        cipher = self.keys.find_cipher(project, key)
        if cipher is None or len(body) < end + NONCE + TAG:
            raise self._report_undecryptable(id, key)
        from cryptography.exceptions import InvalidTag

        nonce, sealed = body[end : end + NONCE], body[end + NONCE :]
        try:
            opened: bytes = cipher.decrypt(nonce, sealed, _associated_data(key, project, id))
        except InvalidTag as error:
            raise self._report_undecryptable(id, key) from error
        return opened

    def encode_body(self, project: str, id: str, body: bytes, *, seals: bool, checksum: bool) -> tuple[bytes, str]:
        """Return the body to store and its checksum.

        If ``seals`` is true, the body is encrypted. If ``checksum`` is false, the checksum is "".
        """
        if not seals:
            return body, wire.checksum(body) if checksum else ""
        sealed = self.seal(project, id, body)
        return sealed, wire.checksum(b'"' + b64encode(sealed) + b'"') if checksum else ""

    def encode_attributes(self, project: str, id: str, attributes: bytes, *, seals: bool) -> bytes:
        return self.seal(project, attributes_binding(id), attributes) if seals and attributes else attributes

    def decrypt_all(self, queue: QueueRef, messages: Messages) -> Messages:
        """Decrypt messages. Omit messages that cannot be decrypted."""
        marked = [1 for message in messages if message.body[:1] == MARK or message.attributes[:1] == MARK]
        if not marked and not self._queue_since(queue):
            return messages
        return [shown for message in messages if (shown := self.decrypt_or_none(queue, message)) is not None]

    def decrypt_or_none(self, queue: QueueRef, message: Message) -> Message | None:
        """Decrypt a message. Return ``None`` if it cannot be decrypted."""
        try:
            return self.decrypt(queue, message)
        except MessageUnreadable:
            return None

    def decrypt(self, queue: QueueRef, message: Message) -> Message:
        """Decrypt a message. Raises ``MessageUnreadable`` if the message cannot be decrypted."""
        if (
            is_plain(message)
            and _must_be_encrypted(message.created, self._queue_since(queue))
            and _must_be_encrypted(message.created, self._stored_queue_since(queue))
        ):
            raise self._report_unencrypted(message.id)
        if not is_sealed(message):
            return message
        project = queue.project
        body = self.open(project, message.id, message.body)
        attributes = self.open(project, attributes_binding(message.id), message.attributes)
        return structs.replace(message, body=body, attributes=attributes)

    def decrypt_entries(self, queue: QueueRef, entries: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
        """Decrypt history entries. Omit entries that cannot be decrypted."""
        if not any(is_sealed(entry.message) for entry in entries) and not self._queue_since(queue):
            return entries
        shown = [(entry, self.decrypt_or_none(queue, entry.message)) for entry in entries]
        return [structs.replace(entry, message=message) for entry, message in shown if message is not None]

    def decrypt_published(self, project: str, messages: Sequence[PublishedMessage]) -> Sequence[PublishedMessage]:
        """Decrypt messages of topics. Omit messages that cannot be decrypted."""
        marked = [1 for message in messages if message.entry.body[:1] == MARK or message.entry.attributes[:1] == MARK]
        if not marked and not self.keys.enabled:
            return messages
        shown = []
        for message in messages:
            with suppress(MessageUnreadable):
                shown.append(self.decrypt_published_message(project, message))
        return shown

    def decrypt_published_message(self, project: str, message: PublishedMessage) -> PublishedMessage:
        """Decrypt a message of a topic. Raises ``MessageUnreadable`` if the message cannot be decrypted."""
        entry, ref = message.entry, TopicRef(project, message.topic)
        if (
            is_plain(entry)
            and self.keys.enabled
            and _must_be_encrypted(message.created, self._topic_since(ref))
            and _must_be_encrypted(message.created, self._stored_topic_since(ref))
        ):
            raise self._report_unencrypted(str(message.sequence))
        if not is_sealed(entry):
            return message
        id = topic_binding(message.topic, entry.seal)
        body = self.open(project, id, entry.body)
        attributes = self.open(project, attributes_binding(id), entry.attributes)
        return structs.replace(message, entry=structs.replace(entry, body=body, attributes=attributes))

    def _report_unencrypted(self, id: str) -> MessageUnreadable:
        self._events.unreadable()
        LOG.error("Message %s is not encrypted although its queue or topic is: it was modified in the store.", id)
        return MessageUnreadable(UNREADABLE)

    def _report_undecryptable(self, id: str, key: str) -> MessageUnreadable:
        self._events.unreadable()
        LOG.error(
            "Message %s cannot be decrypted: it was modified or moved in the store, or this server lacks the master "
            "key of its project's data key %.32r.",
            id,
            key,
        )
        return MessageUnreadable(UNREADABLE)


def topic_binding(topic: str, seal: bytes) -> str:
    """Return the ``id`` to pass to ``Sealing.seal`` and ``Sealing.open`` for the body of a message in a topic.

    A topic's message is encrypted before its id is assigned. Therefore, the topic's name and the random bytes ``seal``
    replace the id. In messages of earlier zq versions, ``seal`` is b"".
    """
    # The slash keeps the result different from all ids.
    return f"topic/{topic}/{seal.hex()}" if seal else f"topic/{topic}"


def _must_be_encrypted(created: Seconds, since: Seconds) -> bool:
    """Return whether a message that was created at ``created`` must be encrypted.

    ``since`` is the time when encryption was enabled; 0 = not enabled. For ``CACHE_EXPIRY_SECONDS`` afterwards, a
    server with an outdated cache may still have posted unencrypted messages.
    """
    return bool(since) and created > since + CACHE_EXPIRY_SECONDS


def attributes_binding(id: str) -> str:
    """Return the ``id`` to pass to ``Sealing.seal`` and ``Sealing.open`` for the attributes of a message.

    This value differs from the ``id`` that is passed for the body of the message. An attacker with write access to the
    store can therefore not pass off attributes as a body.
    """
    return f"extra/{id}"


def is_sealed(message: Message | Entry) -> bool:
    """Return whether the body or the attributes are encrypted in the store."""
    return message.body[:1] == MARK or message.attributes[:1] == MARK


def is_plain(message: Message | Entry) -> bool:
    """Return whether the body or the attributes are stored unencrypted."""
    return message.body[:1] != MARK or (bool(message.attributes) and message.attributes[:1] != MARK)


def _associated_data(key: str, project: str, id: str) -> bytes:
    return MARK + b"\x00".join(part.encode() for part in (key, project, id))
