# SPDX-License-Identifier: Apache-2.0
"""Encryption of bodies and extras in the store, each by itself (contract 7.9).

A sealed body begins with a byte that no JSON text begins with, so that no posted body is mistaken for a sealed one, and
each message shows whether it is sealed. Then follow the length of the id of the project's key, the id, 12 random
bytes, and the body as AES-256-GCM has encrypted it, with its tag of 16 bytes. The tag covers the project and the
message's id, too: a body that was put into another message's place cannot be opened. In a topic it covers the topic and
random bytes that stand beside the body.

A queue or topic that was created with encryption stores the moment since which all bodies have been encrypted. A plain
body in it was written past the server, and is as unreadable as a body that cannot be opened.
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
# The first byte of a sealed body: the version of the form. JSON begins with a blank, a bracket, a quote, a digit, a
# minus sign or a letter.
MARK: Final = b"\x01"
TAG: Final = 16
# Random bytes to which each body of a topic is bound.
SEAL: Final = 16
# Seconds within which a server may not know yet that a new queue or topic encrypts: its posts may be plain till then.
SETTLED: Final = 5.0
# Seconds after which a message is ready again that was claimed or popped and could not be opened.
SET_ASIDE: Final = 60
UNREADABLE: Final = "The message's body is encrypted, and cannot be opened with the keys of this server."


class Sealing:
    """Seals and opens bodies."""

    def __init__(
        self,
        keys: DataKeys,
        events: Events = NO_EVENTS,
        queue_since: Callable[[QueueRef], Seconds] = lambda _queue: 0.0,
        topic_since: Callable[[TopicRef], Seconds] = lambda _topic: 0.0,
        stored_queue_since: Callable[[QueueRef], Seconds] = lambda _queue: 0.0,
        stored_topic_since: Callable[[TopicRef], Seconds] = lambda _topic: 0.0,
    ) -> None:
        """``queue_since`` and ``topic_since`` return the moment since which all bodies have been encrypted, 0 for none,
        as a cache has it; the other two ask the store, since another server may have turned encryption off."""
        self.keys = keys
        self._events = events
        self._since_of = queue_since
        self._topic_since = topic_since
        self._stored_queue_since = stored_queue_since
        self._stored_topic_since = stored_topic_since

    def _queue_since(self, queue: QueueRef) -> Seconds:
        return self._since_of(queue) if self.keys.enabled else 0.0

    def seal(self, project: str, id: str, body: bytes) -> bytes:
        """Return the sealed body for the message of this id. Raises ``Unavailable`` if there is no key."""
        key, cipher = self.keys.sealing(project)
        nonce = os.urandom(NONCE)
        sealed: bytes = cipher.encrypt(nonce, body, _bound_to(key, project, id))
        return MARK + bytes([len(key)]) + key.encode() + nonce + sealed

    def open(self, project: str, id: str, body: bytes) -> bytes:
        """Return the body as it was posted, whether it is sealed or not. Raises ``MessageUnreadable``."""
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
        """Return the body in its stored form, and its checksum or "" (contract 7.10)."""
        if not seals:
            return body, wire.checksum(body) if checksum else ""
        sealed = self.seal(project, id, body)
        return sealed, wire.checksum(b'"' + b64encode(sealed) + b'"') if checksum else ""

    def stored_extra(self, project: str, id: str, extra: bytes, *, seals: bool) -> bytes:
        """Return the extra in its stored form; an empty one is not sealed."""
        return self.seal(project, extra_of(id), extra) if seals and extra else extra

    def opened(self, queue: QueueRef, messages: Messages) -> Messages:
        """Return the messages as they were posted, without those that cannot be opened."""
        marked = [1 for message in messages if message.body[:1] == MARK or message.extra[:1] == MARK]
        if not marked and not self._queue_since(queue):
            return messages
        return [shown for message in messages if (shown := self.opened_or_none(queue, message)) is not None]

    def opened_or_none(self, queue: QueueRef, message: Message) -> Message | None:
        """Return a message as it was posted, or None if it cannot be opened."""
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
        return structs.replace(message, body=body, extra=self.open(project, extra_of(message.id), message.extra))

    def opened_entries(self, queue: QueueRef, entries: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
        """Return history entries as ``opened`` does messages."""
        if not any(is_sealed(entry.message) for entry in entries) and not self._queue_since(queue):
            return entries
        shown = [(entry, self.opened_or_none(queue, entry.message)) for entry in entries]
        return [structs.replace(entry, message=message) for entry, message in shown if message is not None]

    def opened_published(self, project: str, messages: Sequence[Published]) -> Sequence[Published]:
        """Return messages of topics as ``opened`` does those of a queue."""
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
    """Return to what a body of a topic is bound: it has no id before it is stored.

    ``seal``: of the entry; bodies of earlier versions have none. No id of a message, or name of a topic, has a slash.
    """
    return f"topic/{topic}/{seal.hex()}" if seal else f"topic/{topic}"


def _is_later(created: Seconds, since: Seconds) -> bool:
    """Return whether a message came when every server knew for certain that the bodies are to be encrypted."""
    return bool(since) and created > since + SETTLED


def extra_of(id: str) -> str:
    """Return the id to which the extra of a message is bound, so that it cannot take the place of a body."""
    return f"extra/{id}"


def is_sealed(message: Message) -> bool:
    """Return whether the body, or the extra, is encrypted in the store."""
    return message.body[:1] == MARK or message.extra[:1] == MARK


def is_plain(message: Message) -> bool:
    """Return whether the body, or the extra, is not encrypted in the store."""
    return message.body[:1] != MARK or (bool(message.extra) and message.extra[:1] != MARK)


def _bound_to(key: str, project: str, id: str) -> bytes:
    """Return the data that the tag covers besides the body; no part can contain the separator."""
    return MARK + b"\x00".join(part.encode() for part in (key, project, id))
