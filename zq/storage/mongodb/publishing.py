# SPDX-License-Identifier: Apache-2.0
"""Publishing: drafts of stages become messages, a part at a time, each part in the caller's transaction."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from zq.model import QueueRef
from zq.storage.mongodb import layout
from zq.storage.mongodb.counting import Entry, advance
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port, Session
from zq.storage.mongodb.stages import Stages, draft

CAPACITY: Final = 4 << 20
"""Bytes of bodies in one part."""

At = list[int]
"""How far a commit's stages are published: the number of the first that is not wholly, and up to which order it is."""
BEGINNING: Final[At] = [0, 0]


def fits(stages: Sequence[Document], others: int, most: int) -> bool:
    """Whether the stages are one part, together with other work on so many messages, ``most`` in all."""
    count, weight = (sum(stage[what] for stage in stages) for what in ("count", "bytes"))
    return bool(count + others <= most and weight <= CAPACITY)


def part(
    keeper: Stages, stages: Sequence[Document], at: At, most: int, session: Session | None = None
) -> tuple[list[Document], At]:
    """The next drafts to be published, up to ``most``, and how far one is with them; none at the end."""
    chosen: list[Document] = []
    weight = 0
    index, order = at
    while index < len(stages) and len(chosen) < most:
        stage = stages[index]
        usual = CAPACITY * stage["count"] // max(1, stage["bytes"])
        found = keeper.drafts(stage, order, min(most - len(chosen), 1 + usual), session)
        for one in found:
            weight += len(one["b"])
            if chosen and weight > CAPACITY:
                return chosen, [index, order]
            chosen.append(one)
            order = one["k"]
        if order >= stage["count"] or not found:  # somebody else who carries the commit out may have removed them
            index, order = index + 1, 0
    return chosen, [index, order]


def publish(port: Port, session: Session, project: str, drafts: Sequence[Document], now: int) -> Sequence[QueueKey]:
    """Let the drafts enter their queues, in this order, as posts of this moment do; the queues."""
    by_queue: defaultdict[QueueKey, list[Document]] = defaultdict(list)
    for one in drafts:
        by_queue[layout.key(QueueRef(project, layout.original(one["j"])))].append(one)
    entries = {key: Entry(len(its), now if any(not one["l"] for one in its) else None) for key, its in by_queue.items()}
    documents = []
    for key, place in advance(port, session, entries).items() if entries else ():
        for sequence, one in enumerate(by_queue[key], place.sequence):
            available = now + one["l"] * 1000 if one["l"] else place.available
            documents.append(layout.document(key, draft(one), sequence, available, now))
    if documents:
        port.insert(documents, session)
    return list(by_queue)
