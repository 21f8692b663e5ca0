# SPDX-License-Identifier: Apache-2.0
"""Stages: drafts that nobody sees until a commit publishes them. P = a project's prefix.

A stage is a document: ``_id`` "s" P name, ``s`` P name, ``token`` that tells it from others of its name, ``count`` and
``bytes`` of what it holds, ``expires``, and ``due``: when upkeep is to remove it; 0 = it is dropped, and gone for every
verb. While a commit has it, ``commit`` names the attempt, and it has no ``due``.
``e``, of a stage and its drafts alike: when the TTL index removes them, should no upkeep come. A commit that is not one
step takes it away, and it does not come back, so that nothing of what is decided can go.

A draft is a document: ``_id`` "d" token order, ``s`` as its stage, ``q`` "d" token, ``k`` its order there, ``w`` the
message's id, ``j`` its queue, ``t`` ttl, ``l`` delay, ``u`` client, ``b`` body, ``m`` checksum. It goes with its
stage.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

from bson.datetime_ms import DatetimeMS

from zq.errors import CommitRunning, StageFull, StageNotFound
from zq.model import Draft, Once, QueueRef
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.once import BEFORE_ALL, Attempt, recall, remember
from zq.storage.mongodb.port import Port, Session

BATCH: Final = 500
"""Drafts that one command changes or removes: MongoDB takes 30 microseconds for each, and others wait meanwhile."""
LATE: Final = 60_000
"""Milliseconds from a stage's end to ``e``: a commit that came in time may be at it still."""


class Staging(NamedTuple):
    """Drafts for a queue on their way into a stage of a project; ``expires``, ``most_bytes`` and ``most_messages`` are
    the stage's."""

    project: str
    stage: str
    queue: QueueRef
    drafts: Sequence[Draft]
    now: int
    expires: int
    most_bytes: int
    most_messages: int
    once: Once | None


class Stages:
    """All stages of the store."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def add(self, staging: Staging) -> None:
        """Store all drafts or none. Raises ``StageFull``, ``CommitRunning`` if a commit has the stage."""
        documents: list[Document] = []
        attempt = Attempt(layout.key(staging.queue), staging.once, staging.now) if staging.once else None

        def work(session: Session) -> Document | None:
            if attempt:
                for known in recall(self._port, session, [attempt], list[str]).values():
                    raise known
            stage, stale = self._stage(session, staging)
            if stale:
                return stale
            documents[:] = _documents(stage, staging)
            self._port.insert(documents, session)
            if attempt:
                remember(self._port, session, [(attempt, [draft.id for draft in staging.drafts], BEFORE_ALL)])
            return None

        def first() -> Document:
            # Another one's draft may have this place in the stage if ours was not stored; so "w" too.
            return {field: one[field] for one in documents[:1] for field in ("_id", "s", "w")}

        while True:
            with self._port.verb():
                stale = self._port.transaction(work, first)
            if stale is None:
                return
            self.drop(exactly(stale))

    def _stage(self, session: Session, staging: Staging) -> tuple[Document, Document | None]:
        """The stage with room made for the drafts. Second: one of its name that must be removed first."""
        named = identity(staging.project, staging.stage)
        more = {"count": len(staging.drafts), "bytes": sum(len(draft.body) for draft in staging.drafts)}
        found = self._port.find(named, session=session)
        stage = found[0] if found else {**named, "token": uuid4().hex, "count": 0, "bytes": 0}
        if "commit" in stage:
            raise _committing(staging.stage)
        if found and stage["due"] <= staging.now:
            return stage, stage
        count, size = stage["count"] + more["count"], stage["bytes"] + more["bytes"]
        if size > staging.most_bytes or count > staging.most_messages:
            raise StageFull("The stage would hold more than it may.")
        if found:
            self._port.update([{"q": named, "u": {"$inc": more}}], session)
        else:
            stage |= {"expires": staging.expires, "due": staging.expires, "e": DatetimeMS(staging.expires + LATE)}
            self._port.insert([{**stage, **more}], session)
        return stage, None

    def find(self, project: str, names: Sequence[str], now: int, session: Session) -> list[Document]:
        """The stages, in this order, each once. Raises ``StageNotFound``, ``CommitRunning``."""
        wanted = [identity(project, name) for name in dict.fromkeys(names)]
        found = {stage["_id"]: stage for stage in self._port.find(self._any(wanted), session=session)}
        stages = []
        for name, place in zip(dict.fromkeys(names), wanted, strict=True):
            stage = found.get(place["_id"])
            if stage is None or stage["expires"] <= now or stage.get("due") == 0:
                raise StageNotFound(f"There is no stage {name} in the project; nothing was committed.")
            if "commit" in stage:
                raise _committing(name)
            stages.append(stage)
        return stages

    def pin(self, stages: Sequence[Document], attempt: str, session: Session) -> None:
        """Keep them for a commit."""
        step = {"$set": {"commit": attempt}, "$unset": {"due": "", "e": ""}}
        if stages:
            self._port.update([{"q": self._any(stages), "u": step, "multi": True}], session)

    def keep(self, stage: Document) -> Iterator[None]:
        """Take care that the drafts of a pinned stage stay; one item for each step. Raises ``StageNotFound``."""
        for part in self._parts(stage):
            with self._port.verb():
                statement = {"q": part, "u": {"$unset": {"e": ""}}, "multi": True, "hint": layout.OBSERVERS}
                kept = self._port.update([statement])
            if kept < min(BATCH, stage["count"] - part["k"]["$gt"]):
                raise StageNotFound("A stage of the commit has expired meanwhile; nothing was committed.")
            yield

    def unpin(self, stages: Sequence[Document], attempt: str) -> None:
        """Give back what the attempt has pinned."""
        step = [{"$set": {"due": "$expires"}}, {"$unset": "commit"}]
        if stages:
            self._port.update([{"q": {**self._any(stages), "commit": attempt}, "u": step, "multi": True}])

    def drafts(self, stage: Document, after: int, limit: int, session: Session | None = None) -> list[Document]:
        """Drafts of the stage behind the one of order ``after``, in order."""
        where = {**self._within(stage), "k": {"$gt": after}}
        return self._port.find(where, limit=limit, sort={"k": 1}, hint=layout.OBSERVERS, session=session)

    def drop(self, stage: Document) -> int:
        """Remove the stage that fits, however long it takes, unless a commit has it; how many drafts went."""
        step = {"query": {**stage, "commit": {"$exists": False}}, "update": {"$set": {"due": 0}}, "new": True}
        with self._port.verb():
            dropped = self._port.modify(step)
        return self.remove(dropped) if dropped else 0

    def remove(self, stage: Document) -> int:
        """Remove a stage to which nobody can add any more; how many drafts went."""
        removed = 0
        for part in self._parts(stage):
            with self._port.verb():
                removed += self._port.delete_all(part, hint=layout.OBSERVERS)
        self.forget(stage)
        return removed

    def remove_part(self, stage: Document, begin: int, end: int) -> None:
        """Remove drafts of such a stage: those behind the order ``begin``, up to ``end``."""
        with self._port.verb():
            self._port.delete_all({**self._within(stage), "k": {"$gt": begin, "$lte": end}}, hint=layout.OBSERVERS)

    def forget(self, stage: Document) -> None:
        """Remove a stage whose drafts are gone."""
        with self._port.verb():
            self._port.delete([{"q": exactly(stage), "limit": 1}])

    def remove_small(self, stages: Sequence[Document], session: Session) -> None:
        """Remove stages in one step."""
        if stages:
            drafts = [{"q": self._within(stage), "limit": 0, "hint": layout.OBSERVERS} for stage in stages]
            self._port.delete([*drafts, {"q": self._any(stages), "limit": 0}], session)

    def _any(self, stages: Sequence[Document]) -> Document:
        """A filter on the stages."""
        named: Document = {"_id": {"$in": [stage["_id"] for stage in stages]}}
        return {**named, "s": {"$in": [stage["s"] for stage in stages]}} if self._port.sharded else named

    def _parts(self, stage: Document) -> list[Document]:
        """Filters on the drafts of the stage, so many at a time."""
        starts = range(0, stage["count"], BATCH)
        return [{**self._within(stage), "k": {"$gt": start, "$lte": start + BATCH}} for start in starts]

    def _within(self, stage: Document) -> Document:
        """A filter on the drafts of the stage."""
        within = {"q": "d" + stage["token"]}
        return {"s": stage["s"], **within} if self._port.sharded else within


def identity(project: str, stage: str) -> Document:
    """The filter that finds the stage."""
    shard = layout.project_prefix(project) + layout.text(stage)
    return {"_id": "s" + shard, "s": shard}


def exactly(stage: Document) -> Document:
    """The filter that finds this stage and no later one of its name."""
    return {field: stage[field] for field in ("_id", "s", "token")}


def _documents(stage: Document, staging: Staging) -> list[Document]:
    made = []
    for order, draft in enumerate(staging.drafts, stage["count"] + 1):
        made.append(
            {
                "_id": f"d{stage['token']}{order:08x}",
                "s": stage["s"],
                "q": "d" + stage["token"],
                "k": order,
                "w": layout.text(draft.id),
                "j": layout.text(staging.queue.name),
                "t": draft.ttl,
                "l": draft.delay,
                "u": layout.text(draft.client),
                "b": draft.body,
                "m": layout.text(draft.checksum),
                **({"e": stage["e"]} if "e" in stage else {}),
            }
        )
    return made


def draft(document: Document) -> Draft:
    """The model's draft."""
    original = layout.original
    return Draft(
        id=original(document["w"]),
        body=document["b"],
        ttl=document["t"],
        delay=document["l"],
        client=original(document["u"]),
        checksum=original(document["m"]),
    )


def _committing(stage: str) -> CommitRunning:
    return CommitRunning(f"Another commit has the stage {stage} under way: try again soon.")
