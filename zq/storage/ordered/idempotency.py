# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys of queues and logs. Each is written with its answer in the same step as the request's effect."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import msgpack

from zq.errors import DraftsRepeated, KeyReused, Repeated
from zq.model import Draft, IdempotencyKey
from zq.model.quotas import OVERHEAD
from zq.storage.ordered import due, layout
from zq.storage.ordered.layout import Known
from zq.storage.ordered.store import Store, Write


class Owner(Protocol):
    """The owner of idempotency keys, a queue or a log. The stored keys begin with the number ``history``."""

    @property
    def history(self) -> int: ...


def check_key(store: Store, owner: Owner | None, idempotency_key: IdempotencyKey | None, answer: Any, now: int) -> None:
    """Raise ``Repeated`` or ``KeyReused`` if the owner has the key. ``answer`` is the type of the remembered answer."""
    if idempotency_key is None or owner is None:
        return
    found = due.living(store, "keys", _key_prefix(owner, idempotency_key), now)
    if found is not None:
        known = layout.decode_known(found[1])
        if known.digest != idempotency_key.digest:
            raise KeyReused
        store.wait_durable()  # the first request may not be durable yet, but its repeated answer says that it is
        raise Repeated(msgpack.decode(known.answer, type=answer), known.last)


def check_keys(
    store: Store, owner: Owner | None, idempotency_key: IdempotencyKey | None, drafts: Sequence[Draft], now: int
) -> None:
    """Check the keys of a post and of its drafts. Raises ``Repeated``, ``KeyReused`` or ``DraftsRepeated``."""
    check_key(store, owner, idempotency_key, list[str], now)
    first: dict[str, Repeated] = {}
    for draft in drafts:
        if draft.once is None:
            continue
        try:
            check_key(store, owner, draft.once, list[str], now)
        except Repeated as told:
            first[draft.id] = told
    if first:
        raise DraftsRepeated(first)


def key_writes(
    owner: Owner, idempotency_key: IdempotencyKey, answer: Any, now: int, counts: bool = True, last: int = 0
) -> tuple[list[Write], int]:
    """Return the writes that store a key with its answer, and the size that counts towards the quota.

    ``counts``: whether the answer counts towards the quota. For ``last`` see ``Known``.
    """
    encoded = layout.encode(answer)
    size = len(encoded) + OVERHEAD if counts else 0
    expires = now + idempotency_key.window * 1000
    key = _key_prefix(owner, idempotency_key) + layout.number.pack(expires)
    known = layout.encode(Known(idempotency_key.digest, encoded, size, last))
    return due.writes("keys", key, known, expires, due.size_note(size)), size


def _key_prefix(owner: Owner, idempotency_key: IdempotencyKey) -> bytes:
    return layout.ended(layout.number.pack(owner.history), idempotency_key.key)
