# SPDX-License-Identifier: Apache-2.0
"""What scripts refuse, as errors. A script that refuses answers with an array, whose first item says what."""

from collections.abc import Callable, Sequence
from struct import Struct as Packing
from typing import Any, Final

import msgspec

from zq.errors import (
    ClaimLapsed,
    ClaimNotFound,
    ClaimNotHeld,
    CommitRunning,
    Fenced,
    KeyReused,
    MessageClaimed,
    Repeated,
    StageDiffers,
    StageFull,
    StageNotFound,
    ZqError,
)
from zq.model import Draft, Once, Settled
from zq.storage.redis.lines import Reply

KNOWN: Final = Packing(">QH")
"""Front of what a queue knows of a key: until when, and the length of the digest, which follows; then the answer."""
REFUSALS: Final[dict[bytes, tuple[type[ZqError], str]]] = {
    b"claimed": (MessageClaimed, "The message is held by a claim that was not given as claim_id."),
    b"unheld": (ClaimNotHeld, "A claim given as claim_id or claim_ids does not hold the message; nothing was deleted."),
    b"unclaimed": (ClaimNotFound, "There is no live claim of this id in the queue."),
    b"fenced": (Fenced, "The epoch of the fence is not the last one that was given out."),
    b"full": (StageFull, "The stage would hold more than it may."),
    b"unstaged": (StageNotFound, "There is no stage of this name in the project, or it was dropped."),
    b"running": (CommitRunning, "A commit of the producer is being carried out: try again soon."),
    b"lapsed": (ClaimLapsed, "A claim to be settled is not live any more, or holds nothing; nothing has changed."),
}


def checked(reply: Reply, once: Once | None = None, answer: Callable[[bytes], Any] = msgspec.msgpack.decode) -> Reply:
    """The reply of a script that did its work. ``answer`` reads what a repeat of ``once`` is to be told."""
    if not isinstance(reply, list):
        return reply
    if reply[0] == b"differs":
        stage, count, expected = reply[1].decode(), int(reply[2]), int(reply[3])
        raise StageDiffers(
            f"The stage {stage} holds {count} messages, and {expected} are expected; nothing has changed."
        )
    if once is None or reply[0] != b"known":
        kind, sentence = REFUSALS[reply[0]]
        raise kind(sentence)
    told: bytes = reply[1]
    end = KNOWN.size + KNOWN.unpack_from(told)[1]
    if told[KNOWN.size : end] != once.digest:
        raise KeyReused("The Idempotency-Key was given before, to another request.")
    raise Repeated(answer(told[end:]))


def settled(packed: bytes) -> Settled:
    """What a settlement did, as the script tells and keeps it."""
    return Settled(*msgspec.msgpack.decode(packed))


def ids(drafts: Sequence[Draft]) -> bytes:
    """What a repeated post is told."""
    return msgspec.msgpack.encode([draft.id for draft in drafts])
