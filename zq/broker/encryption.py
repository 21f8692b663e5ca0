# SPDX-License-Identifier: Apache-2.0
"""Bodies that are encrypted in the store, each by itself, and what stands beside them (contract 7.9).

A sealed body begins with a byte that no JSON text begins with, so that nobody can post what is taken for one, and each
message tells itself whether it is sealed. Then follow the length of the id of the project's key, the id, 12 random
bytes, and the body as AES-256-GCM has encrypted it, with its tag of 16 bytes. The tag covers the project and the
message's id, too: a body that was put into another message's place cannot be opened. In a topic it covers the topic.
"""

import logging
import os
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import structs

from zq import wire
from zq.broker.data_keys import NONCE, DataKeys
from zq.errors import MessageUnreadable
from zq.events import NO_EVENTS, Events
from zq.model import HistoryEntry, Message, Messages
from zq.model.subscriptions import Notice
from zq.model.topics import Published

LOG = logging.getLogger(__name__)
# The first byte of a sealed body: the version of the form. JSON begins with a blank, a bracket, a quote, a digit, a
# minus sign or a letter.
MARK: Final = b"\x01"
TAG: Final = 16
# Seconds after which a message is ready again that was claimed or popped and could not be opened.
SET_ASIDE: Final = 60
UNREADABLE: Final = "The message's body is encrypted, and cannot be opened with the keys of this server."


class Sealing:
    """Seals and opens bodies."""

    def __init__(self, keys: DataKeys, events: Events = NO_EVENTS) -> None:
        self.keys = keys
        self._events = events

    def seal(self, project: str, id: str, body: bytes) -> bytes:
        """The body as it is stored for the message of this id. Raises ``Unavailable`` if there is no key."""
        key, cipher = self.keys.sealing(project)
        nonce = os.urandom(NONCE)
        sealed: bytes = cipher.encrypt(nonce, body, _bound_to(key, project, id))
        return MARK + bytes([len(key)]) + key.encode() + nonce + sealed

    def open(self, project: str, id: str, body: bytes) -> bytes:
        """The body as it was posted, whether it is sealed or not. Raises ``MessageUnreadable``."""
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
        """The body as it is stored, and the checksum of that, "" without (contract 7.10)."""
        if not seals:
            return body, wire.checksum(body) if checksum else ""
        sealed = self.seal(project, id, body)
        return sealed, wire.checksum(b'"' + b64encode(sealed) + b'"') if checksum else ""

    def stored_extra(self, project: str, id: str, extra: bytes, *, seals: bool) -> bytes:
        """What stands beside a body, as it is stored; nothing stays nothing."""
        return self.seal(project, extra_of(id), extra) if seals and extra else extra

    def opened(self, project: str, messages: Messages) -> Messages:
        """The messages as they were posted; those that cannot be opened are left out."""
        if not [1 for message in messages if message.body[:1] == MARK or message.extra[:1] == MARK]:
            return messages
        return [shown for message in messages if (shown := self.opened_or_none(project, message)) is not None]

    def opened_or_none(self, project: str, message: Message) -> Message | None:
        """One message as it was posted; None if it cannot be opened."""
        try:
            return self.opened_one(project, message)
        except MessageUnreadable:
            return None

    def opened_one(self, project: str, message: Message) -> Message:
        """The same. Raises ``MessageUnreadable``."""
        if not is_sealed(message):
            return message
        body = self.open(project, message.id, message.body)
        return structs.replace(message, body=body, extra=self.open(project, extra_of(message.id), message.extra))

    def opened_entries(self, project: str, entries: Sequence[HistoryEntry]) -> Sequence[HistoryEntry]:
        """As ``opened``, of history."""
        if not any(is_sealed(entry.message) for entry in entries):
            return entries
        shown = [(entry, self.opened_or_none(project, entry.message)) for entry in entries]
        return [structs.replace(entry, message=message) for entry, message in shown if message is not None]

    def opened_published(self, project: str, messages: Sequence[Published]) -> Sequence[Published]:
        """As ``opened``, of topics."""
        if not [1 for message in messages if message.entry.body[:1] == MARK]:
            return messages
        shown = []
        for message in messages:
            with suppress(MessageUnreadable):
                shown.append(self.opened_one_published(project, message))
        return shown

    def opened_one_published(self, project: str, message: Published) -> Published:
        """One of them. Raises ``MessageUnreadable``."""
        entry = message.entry
        if entry.body[:1] != MARK:
            return message
        body = self.open(project, id_in_topic(message.topic), entry.body)
        return structs.replace(message, entry=structs.replace(entry, body=body))

    def opened_notice(self, project: str, notice: Notice) -> Notice:
        """What is to be delivered, as it was posted. Raises ``MessageUnreadable``."""
        id = notice.message if notice.kind == "queue" else id_in_topic(notice.name)
        return structs.replace(notice, body=self.open(project, id, notice.body))

    def _failed(self, id: str, key: str) -> MessageUnreadable:
        self._events.unreadable()
        LOG.error(
            "Message %s cannot be opened: it was changed or moved in the store, or this server has not the master key "
            "of key %.32r of its project.",
            id,
            key,
        )
        return MessageUnreadable(UNREADABLE)


def id_in_topic(topic: str) -> str:
    """To what bodies of a topic are bound: they have no ids before they are stored. No id of a message has a slash."""
    return f"topic/{topic}"


def extra_of(id: str) -> str:
    """To what the extra of a message is bound: it cannot take the place of a body."""
    return f"extra/{id}"


def is_sealed(message: Message) -> bool:
    """Whether its body, or what stands beside it, is encrypted in the store."""
    return message.body[:1] == MARK or message.extra[:1] == MARK


def _bound_to(key: str, project: str, id: str) -> bytes:
    """What the tag of a body covers besides the body; no part can hold the byte between them."""
    return MARK + b"\x00".join(part.encode() for part in (key, project, id))
