# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys of queues and logs.

A key and the result of its request are written atomically with the effect of the request.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import msgpack

from zq.errors import DraftsRepeated, KeyReused, Repeated
from zq.model import Draft, IdempotencyKey
from zq.model.quotas import OVERHEAD
from zq.storage.ordered import due, layout
from zq.storage.ordered.layout import StoredKey
from zq.storage.ordered.store import Store, Write


class Owner(Protocol):
    """A queue or log that owns idempotency keys.

    ``history`` is the owner's number, with which the stored keys of its idempotency keys begin.
    """

    @property
    def history(self) -> int: ...


def check_key(store: Store, owner: Owner | None, idempotency_key: IdempotencyKey | None, answer: Any, now: int) -> None:
    """Raise an error if the idempotency key of a request is already in use in the queue or log ``owner``.

    ``answer`` is the type of the stored result.

    Raises:
        Repeated: The request is a repetition. The error contains the stored result of the first request.
        KeyReused: The key belongs to a different request.
    """
    if idempotency_key is None or owner is None:
        return
    found = due.find_live(store, "keys", _key_prefix(owner, idempotency_key), now)
    if found is not None:
        known = layout.decode_known(found[1])
        if known.digest != idempotency_key.digest:
            raise KeyReused
        store.wait_durable()  # the first request may not be durable yet, and its result promises that it is
        raise Repeated(msgpack.decode(known.answer, type=answer), known.last)


def check_keys(
    store: Store, owner: Owner | None, idempotency_key: IdempotencyKey | None, drafts: Sequence[Draft], now: int
) -> None:
    """Raise an error if an idempotency key of a post is already in use in the queue or log ``owner``.

    A post may have one key, and each of its messages (``drafts``) may have one.

    Raises:
        Repeated: The post is a repetition. The error contains the result of the first request.
        DraftsRepeated: Some messages are repetitions. The error contains the results of their first requests.
        KeyReused: A key belongs to a different request.
    """
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
    """Return the writes that store a key with the result ``answer``, and the size of the result in bytes.

    If ``counts`` is false, the size is 0. ``last`` is the sequence of the last message of a post, or 0 for other
    requests.
    """
    encoded = layout.encode(answer)
    size = len(encoded) + OVERHEAD if counts else 0
    expires = now + idempotency_key.window * 1000
    key = _key_prefix(owner, idempotency_key) + layout.number.pack(expires)
    known = layout.encode(StoredKey(idempotency_key.digest, encoded, size, last))
    return due.writes("keys", key, known, expires, due.size_note(size)), size


def _key_prefix(owner: Owner, idempotency_key: IdempotencyKey) -> bytes:
    return layout.name_prefix(layout.number.pack(owner.history), idempotency_key.key)
