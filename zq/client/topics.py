# SPDX-License-Identifier: Apache-2.0
"""Verbs of a topic, each written once for both kinds of client."""

from collections.abc import Iterable
from typing import Any, ClassVar

from zq.client import batches
from zq.client.calls import Call, Page, listing, operation
from zq.client.listings import Ids, message_pages, message_stretch
from zq.client.named import NamedVerbs
from zq.client.values import Message, Stretch


class TopicVerbs(NamedVerbs):
    """A topic of the client's project. It need not exist: the first message makes it."""

    kind: ClassVar[str] = "topics"

    @operation
    def publish(self, body: Any, *, ttl: int | None = None, key: str | None = None) -> Call[str]:
        """Publish a message; its id, which is its sequence in the project's log. Repeats are safe."""
        return batches.first(batches.post_call(self.kind, self.name, batches.packed([body], ttl, None), key))

    @operation
    def publish_batch(self, bodies: Iterable[Any], *, ttl: int | None = None, key: str | None = None) -> Call[Ids]:
        """Publish messages in one request, all or none; their ids."""
        return batches.post_call(self.kind, self.name, batches.packed(bodies, ttl, None), key)

    @listing
    def list(self, *, after: int | str | None = None, page: int | None = None) -> Call[Page[Message]]:
        """What the log has of the topic, behind a sequence; only streams tell of gaps. ``page``: as for queues."""
        params = {"marker": after, "limit": page, "detailed": True}
        return message_pages(self._path("messages"), params)

    @operation
    def stretch(self, after: int, *, page: int | None = None) -> Call[Stretch[Message]]:
        """One page of the listing, where it ends, and the gap before it if messages behind ``after`` are gone."""
        return message_stretch(self._path("messages"), {"marker": after, "limit": page, "detailed": True})
