# SPDX-License-Identifier: Apache-2.0
"""Commits: prepared and decided, then carried out in slices. See ``producers`` for what is noted.

A commit on few messages is one transaction. A larger one first keeps what it needs, in bounded transactions: its
stages, and what its claims hold. Then one write decides. Each slice is one transaction, which notes how far it came.
Whoever prepares has a time for each step; past it anybody may give the commit up, but only before it is decided.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimLapsed, CommitRunning, Fenced, StageNotFound
from zq.model import Bounds, Commit, Committed, Fence, Held, Unfinished
from zq.storage.extensions import check_size, check_stage
from zq.storage.mongodb import fences, layout, producers, stages, steps
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.pins import Holdings, Pins
from zq.storage.mongodb.port import LONGEST_PAUSE, Forsaken, Port, Session
from zq.storage.mongodb.producers import ABORTING, DECIDED, PREPARING
from zq.storage.mongodb.publishing import BEGINNING, At, fits, part, publish
from zq.storage.mongodb.stages import Stages
from zq.storage.mongodb.takers import Takers
from zq.storage.mongodb.taking import Announce

AT_WORK: Final = 2000
"""Milliseconds for which a commit that is being given up is left to whoever is at it."""
CLEANED: Final = 500
"""Drafts that one slice removes from stages at least, if there are so many: it takes 15 ms."""
LONGEST_REST: Final = 0.2
"""Seconds between two steps of keeping stages at most; else as long as the last one took."""
MANY: Final = 100
ROUNDS: Final = 100
"""How much upkeep does at a time."""


class Watch:
    """A verb's moment, in milliseconds, which goes on while the verb works."""

    def __init__(self, now: int) -> None:
        self.start = now
        self._begun = time.monotonic()

    def now(self) -> int:
        return self.start + int(1000 * (time.monotonic() - self._begun))


class Begun(NamedTuple):
    """A commit's first transaction: the producer's record after it, the queues that got messages, what claims hold."""

    record: Document
    entered: Sequence[QueueKey] = ()
    held: Holdings = {}


class Commits:
    """The commits of all producers."""

    def __init__(self, port: Port, keeper: Stages, takers: Takers, announce: Announce, watcher: steps.Steps) -> None:
        self._port = port
        self._stages = keeper
        self._takers = takers
        self._announce = announce
        self._pins = Pins(port)
        self._watcher = watcher
        self._patience = int(2000 * port.timeout)
        """Milliseconds for a step of preparing."""

    def commit(self, commit: Commit, now: int, bounds: Bounds) -> Committed:
        """The commit, done if it is small, else decided; or what the producer's last one did."""
        watch = Watch(now)
        while True:
            record = self._find(producers.identity(commit.project, commit.producer))
            replayed = "batch" in record and commit.batch <= record["batch"]
            if record.get("state") == DECIDED or (replayed and producers.remembered(record, now)):
                for stage in commit.publish if replayed else ():
                    self._stages.drop(stages.identity(commit.project, stage))
                return producers.committed(record, replayed=replayed)
            if "state" in record:
                if record["due"] > watch.now():
                    raise _running()
                self._abort(record, watch)
            elif result := self._attempt(commit, watch, bounds):
                return result
            elif watch.now() - now > self._patience:
                raise _running()
            else:
                time.sleep(LONGEST_PAUSE)

    def last(self, project: str, producer: str, now: int) -> Committed | None:
        """The last decided batch; None if there is none."""
        record = self._find(producers.identity(project, producer))
        return producers.committed(record) if producers.remembered(record, now) else None

    def carry_on(self, project: str, producer: str, most: int, now: int) -> bool:
        """One slice of the producer's decided commit, in one transaction; whether anything is left."""
        record = self._find(producers.identity(project, producer))
        if record.get("state") != DECIDED:
            return False
        entered: list[QueueKey] = []
        work, step = self._slice(record, most, entered, Watch(now))
        if work is None:
            return self._clean(record, most)
        try:
            self._step(record, work)
        except Forsaken:  # others have done it
            return False
        self._tell(entered)
        self._watcher.reached(step)
        return True

    def unfinished(self) -> list[Unfinished]:
        """Decided commits of all producers."""
        decided: Document = {"due": {"$exists": True}, "state": DECIDED}
        with self._port.verb():
            found = self._port.find(decided, limit=MANY, sort={"due": 1}, hint=layout.DUE)
        return [producers.unfinished(record) for record in found]

    def resume(self, now: int, *, stages: bool = True) -> int:
        """Give up what others have left undecided; drop stages that have expired, if so. How many drafts went."""
        # What was given back by a commit has no expiry any more, so that nobody else would drop it.
        lasting: Document = {"$or": [{"state": {"$exists": True}}, {"e": {"$exists": False}}]}
        overdue: Document = {"due": {"$lte": now}, "state": {"$ne": DECIDED}, **({} if stages else lasting)}
        removed = 0
        for _ in range(ROUNDS):
            with self._port.verb():
                found = self._port.find(overdue, limit=MANY, sort={"due": 1}, hint=layout.DUE)
            removed += sum(self._resume(one, now) for one in found)
            if len(found) < MANY:
                break
        return removed

    def _resume(self, one: Document, now: int) -> int:
        if "state" not in one:
            return self._stages.drop(stages.exactly(one))
        self._abort(one, Watch(now))
        return 0

    def _attempt(self, commit: Commit, watch: Watch, bounds: Bounds) -> Committed | None:
        """None = another attempt came first."""
        try:
            with self._port.verb():
                begun = self._port.transaction(partial(self._begin, commit, uuid4().hex, watch, bounds))
        except Forsaken:
            return None
        record = begun.record
        self._tell(begun.entered)
        if "state" in record:
            self._watcher.reached(steps.BEGUN)
            record = self._prepare(begun, commit.fence, watch)
        else:
            self._watcher.reached(steps.DONE)
        return producers.committed(record)

    def _begin(self, commit: Commit, attempt: str, watch: Watch, bounds: Bounds, session: Session) -> Begun:
        """Do it all, if it is small; else keep the stages and note what is to be done."""
        place = producers.identity(commit.project, commit.producer)
        former = next(iter(self._port.find(place, session=session)), {})
        if former.get("attempt") == attempt:  # this is run again, although it was committed
            claims = producers.claims(former) if "state" in former else []
            return Begun(former, (), self._pins.holdings(claims, watch.start, session))
        if "state" in former or (producers.remembered(former, watch.start) and commit.batch <= former["batch"]):
            raise Forsaken
        if commit.fence is not None:
            fences.check(self._port, session, commit.project, commit.fence)
        kept = self._stages.find(commit.project, commit.publish, watch.start, session)
        for name, stage in zip(dict.fromkeys(commit.publish), kept, strict=True):
            check_stage(commit, name, stage["count"])
        held = self._pins.holdings(list(dict.fromkeys(commit.settle)), watch.start, session)
        published, deleted = sum(stage["count"] for stage in kept), sum(map(len, held.values()))
        check_size(Committed(commit.batch, published, deleted), bounds)
        entered: Sequence[QueueKey] = ()
        if fits(kept, deleted, bounds.step):
            drafts, _ = part(self._stages, kept, BEGINNING, bounds.step, session)
            if len(drafts) != published:
                raise StageNotFound("A stage of the commit has expired meanwhile; nothing was committed.")
            entered = publish(self._port, session, commit.project, drafts, watch.start)
            self._stages.remove_small(kept, session)
            self._pins.finish_small(held, watch.start, session)
            record = producers.done(commit, attempt, published, deleted, watch.start)
        else:
            self._stages.pin(kept, attempt, session)
            due = watch.now() + self._patience
            record = producers.preparing(commit, attempt, kept, former, watch.start, due)
        self._port.update([{"q": place, "u": record, "upsert": True}], session)
        return Begun(record, entered, held)

    def _prepare(self, begun: Begun, fence: Fence | None, watch: Watch) -> Document:
        """Pin what the claims hold, and decide; the decided record."""
        record = begun.record
        try:
            record = self._keep(record, watch)
            for messages in self._pins.parts(begun.held):
                record = self._step(record, partial(self._pin, messages, record, watch))
                self._watcher.reached(steps.PINNED)
            record = self._step(record, partial(self._decide, begun, fence, watch))
        except (ClaimLapsed, Fenced, StageNotFound):
            self._abort(record, watch)
            raise
        except Forsaken:
            raise _running() from None  # it took too long, and others have given it up
        self._watcher.reached(steps.DECIDED)
        return record

    def _keep(self, record: Document, watch: Watch) -> Document:
        """Take care that no stage expires meanwhile, resting so that others are served; the record then."""
        for stage in record["publish"]:
            began = time.monotonic()
            for _ in self._stages.keep(stage):
                record = self._step(record, lambda session: self._prolonged(watch))
                time.sleep(min(LONGEST_REST, time.monotonic() - began))
                began = time.monotonic()
        return record

    def _pin(
        self, messages: Sequence[tuple[Held, Document]], record: Document, watch: Watch, session: Session
    ) -> Document:
        self._pins.pin(messages, record, watch.start, session)
        return self._prolonged(watch)

    def _prolonged(self, watch: Watch) -> Document:
        return {"$set": {"due": watch.now() + self._patience}}

    def _decide(self, begun: Begun, fence: Fence | None, watch: Watch, session: Session) -> Document:
        record, deleted = begun.record, sum(map(len, begun.held.values()))
        if fence is not None:
            fences.check(self._port, session, layout.original(record["project"]), fence)
        published = sum(stage["count"] for stage in record["publish"])
        figures = {"batch": record["next"], "published": published, "deleted": deleted}
        return {"$set": {"state": DECIDED, "due": watch.now(), **figures}}

    def _slice(
        self, record: Document, most: int, entered: list[QueueKey], watch: Watch
    ) -> tuple[Callable[[Session], Document] | None, str]:
        """What is to be done next of a decided commit, and the name of that step; None = nothing but to clean up."""
        if record["settled"] < len(record["settle"]):
            return partial(self._settle, record, most, watch), steps.SETTLED
        drafts, at = part(self._stages, record["publish"], record["at"], most)
        if drafts:
            return partial(self._publish, record, drafts, at, entered, watch), steps.PUBLISHED
        return None, steps.DONE

    def _settle(self, record: Document, most: int, watch: Watch, session: Session) -> Document:
        claims = producers.claims(record)[record["settled"] :]
        done = self._pins.finish(claims, record["attempt"], most, watch.start, session)
        return {"$inc": {"settled": done}, "$set": {"due": watch.now()}}

    def _publish(
        self, record: Document, drafts: list[Document], at: At, entered: list[QueueKey], watch: Watch, session: Session
    ) -> Document:
        project = layout.original(record["project"])
        entered[:] = publish(self._port, session, project, drafts, watch.start)
        return {"$set": {"at": at, "due": watch.now()}}

    def _clean(self, record: Document, most: int) -> bool:
        """Remove some of the stages, which nobody sees any more, and then what is noted; whether anything is left."""
        most = max(most, CLEANED)
        removed, order, drafts = record["removed"], record.get("order", 0), 0
        while removed < len(record["publish"]) and drafts < most:
            stage = record["publish"][removed]
            begin, order = order, min(stage["count"], order + most - drafts)
            self._stages.remove_part(stage, begin, order)
            drafts += order - begin
            if order == stage["count"]:
                self._stages.forget(stage)
                removed, order = removed + 1, 0
                self._watcher.reached(steps.UNSTAGED)
        if removed < len(record["publish"]):
            self._take_over(record, {"removed": removed, "order": order})
            return True
        forgotten = {"e": DatetimeMS(record["moment"] + record["ttl"] * 1000)}
        self._end(record, {"$set": forgotten, "$unset": dict.fromkeys(producers.UNDER_WAY, "")})
        self._watcher.reached(steps.DONE)
        return False

    def _abort(self, record: Document, watch: Watch) -> None:
        """Give a commit up that is not decided, unless somebody has taken a step of it since."""
        given_up = self._take_over(record, {"state": ABORTING, "due": watch.now() + AT_WORK})
        if given_up is None:
            return
        self._watcher.reached(steps.ABORTING)
        claims = producers.claims(given_up)
        self._pins.unpin(claims, given_up["attempt"])
        self._tell([layout.key(claim.queue) for claim in claims])
        self._watcher.reached(steps.UNPINNED)
        with self._port.verb():
            self._stages.unpin(given_up["publish"], given_up["attempt"])
        if "batch" in given_up:
            nothing_left = dict.fromkeys((*producers.UNDER_WAY, "attempt"), "")
            self._end(given_up, {"$set": {"e": given_up["former"]}, "$unset": nothing_left})
        else:
            with self._port.verb():
                self._port.delete([{"q": producers.same(given_up), "limit": 1}])
        self._watcher.reached(steps.ABORTED)

    def _step(self, record: Document, change: Callable[[Session], Document]) -> Document:
        """Take a step, in one transaction with the change, which says what is to be noted; the record then.

        If a step was taken since, by this transaction or by others, there is no change. Raises ``Forsaken`` if the
        commit is given up or done.
        """

        def work(session: Session) -> Document:
            place = {field: record[field] for field in ("_id", "s", "attempt")}
            open_ones = {**place, "state": {"$in": [PREPARING, DECIDED]}}
            for current in self._port.find(open_ones, session=session):
                if current["turn"] != record["turn"]:
                    return current
                noted = change(session)
                noted["$inc"] = {**noted.get("$inc", {}), "turn": 1}
                changed = self._port.modify({"query": place, "update": noted, "new": True}, session)
                return changed or {}
            raise Forsaken

        with self._port.verb():
            return self._port.transaction(work)

    def _take_over(self, record: Document, noted: Document) -> Document | None:
        """The record with this noted; None if somebody has taken a step since."""
        step = {"$set": noted, "$inc": {"turn": 1}}
        with self._port.verb():
            return self._port.modify({"query": producers.unchanged(record), "update": step, "new": True})

    def _end(self, record: Document, step: Document) -> None:
        with self._port.verb():
            self._port.update([{"q": producers.same(record), "u": step}])

    def _find(self, place: Document) -> Document:
        """The producer's record, as no fail-over can take it back; empty if there is none."""
        with self._port.verb():
            return next(iter(self._port.find(place, committed=True)), {})

    def _tell(self, queues: Sequence[QueueKey]) -> None:
        """Messages are ready in these queues, maybe since moments that are past."""
        for key in queues:
            self._takers.lower(key)
            self._announce(key.ref)


def _running() -> CommitRunning:
    return CommitRunning("Another attempt at this producer's commit is under way: try again soon.")
