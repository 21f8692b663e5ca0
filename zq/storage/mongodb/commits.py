# SPDX-License-Identifier: Apache-2.0
"""Commits of transactional producers. The module ``producers`` describes the producers' documents.

A commit atomically publishes the messages of stages, which are invisible until then, and deletes claimed messages. A
small commit is a single transaction. A large commit has three phases:

1. Prepare: the server reserves the stages and the claimed messages, in transactions of limited size.
2. Decide: a single transaction makes the commit effective.
3. Carry out: transactions of limited size, called slices, delete the claimed messages and publish the stages. Each
   slice stores its progress, so any server can continue.

Each step of the first phase has a deadline. After the deadline, any server may abort the commit. A decided commit is
never aborted.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimLapsed, CommitRunning, Fenced, StageNotFound
from zq.model import Bounds, ClaimRef, Commit, CommitResult, Fence, UnfinishedCommit
from zq.storage.capabilities import check_size, check_stage
from zq.storage.mongodb import layout, producers, stages
from zq.storage.mongodb.changes import check_fence
from zq.storage.mongodb.client import LONGEST_PAUSE, Session, StoreClient, TransactionAborted
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.producers import ABORTING, DECIDED, PREPARING, CommitEvents, Step
from zq.storage.mongodb.queue_claimer import Announce, QueueClaimers
from zq.storage.mongodb.reservations import Holdings, Reservations
from zq.storage.mongodb.stages import BEGINNING, UNCOUNTED_FLAG, Progress, Stages, fits, next_drafts, publish

# Milliseconds for which only the server that aborts a commit may work on it.
ABORT_GRACE: Final = 2000
# Minimum number of drafts that one clean-up removes from stages, which takes 15 ms.
CLEANED_AT_ONCE: Final = 500
# Maximum pause in seconds after a step that extends stages. The pause is as long as the step, up to this limit.
LONGEST_REST: Final = 0.2
# Maximum number of commits and stages that one search finds.
FOUND_AT_ONCE: Final = 100
# Maximum number of searches per maintenance round.
MAX_SEARCHES: Final = 100


class RunningClock:
    """A clock that starts at the time of a request. Times are in milliseconds."""

    def __init__(self, now: int) -> None:
        self.start = now
        self._begun = time.monotonic()

    def now(self) -> int:
        return self.start + int(1000 * (time.monotonic() - self._begun))


class CommitStart(NamedTuple):
    """The result of the first transaction of a commit."""

    record: BsonDocument
    entered: Sequence[QueueKey] = ()
    held: Holdings = {}


class Commits:
    """The executor of transactional producers' commits."""

    def __init__(
        self,
        client: StoreClient,
        stage_store: Stages,
        claimers: QueueClaimers,
        announce: Announce,
        events: CommitEvents,
    ) -> None:
        self._client = client
        self._stages = stage_store
        self._claimers = claimers
        self._announce = announce
        self._reservations = Reservations(client)
        self._events = events
        self._patience = int(2000 * client.timeout)
        """The time limit of each step that prepares a commit, in milliseconds."""

    def commit(self, commit: Commit, now: int, bounds: Bounds) -> CommitResult:
        """Complete a small commit, or make a large commit effective. Return the result of the producer's last batch.

        - If the batch was committed before, return the stored result and drop the stages of the repeated request.
        - If the producer's last commit is decided but incomplete, return the result of that commit.
        - If the producer has an undecided commit whose deadline has passed, abort it first.

        Raises ``CommitRunning`` if another server is preparing or aborting a commit of the producer, or if the attempts
        take too long. Also raises the same errors as ``TransactionController.commit``.
        """
        clock = RunningClock(now)
        while True:
            record = self._find(producers.identity(commit.project, commit.producer))
            replayed = "batch" in record and commit.batch <= record["batch"]
            if record.get("state") == DECIDED or (replayed and producers.has_last_batch(record, now)):
                for stage in (*commit.publish, *commit.beside) if replayed else ():
                    self._stages.drop(stages.identity(commit.project, stage))
                return producers.last_batch(record, replayed=replayed)
            if "state" in record:
                if record["due"] > clock.now():
                    raise CommitRunning
                self._abort(record, clock)
            elif result := self._attempt(commit, clock, bounds):
                return result
            elif clock.now() - now > self._patience:
                raise CommitRunning
            else:
                time.sleep(LONGEST_PAUSE)

    def last(self, project: str, producer: str, now: int) -> CommitResult | None:
        """Return the result of the producer's last decided commit.

        Return None if the producer has no decided commit or if the result has expired.
        """
        record = self._find(producers.identity(project, producer))
        return producers.last_batch(record) if producers.has_last_batch(record, now) else None

    def continue_commit(self, project: str, producer: str, max_messages: int, now: int) -> bool:
        """Delete or publish up to ``max_messages`` messages of the producer's commit. Return whether work is left."""
        record = self._find(producers.identity(project, producer))
        if record.get("state") != DECIDED:
            return False
        entered: list[QueueKey] = []
        work, step = self._slice(record, max_messages, entered, RunningClock(now))
        if work is None:
            return self._clean(record, max_messages)
        try:
            self._step(record, work)
        except TransactionAborted:  # other servers have completed the commit
            return False
        self._announce_ready(entered)
        self._events.reached(step)
        return True

    def find_unfinished_commits(self) -> list[UnfinishedCommit]:
        """Return up to ``FOUND_AT_ONCE`` commits of all producers that are effective but not completed."""
        decided: BsonDocument = {"due": {"$exists": True}, "state": DECIDED}
        with self._client.verb():
            found = self._client.find(decided, limit=FOUND_AT_ONCE, sort={"due": 1}, hint=layout.DUE)
        return [producers.unfinished_commit(record) for record in found]

    def find_commits(self, project: str, states: Sequence[str]) -> list[tuple[UnfinishedCommit, int]]:
        """Return all incomplete commits of the project that are in these states, with their deadlines in ms."""
        # The index on ``due`` is not used here: a commit whose ``due`` changes during the search could be missed.
        wanted: BsonDocument = {**producers.project_filter(project), "state": {"$in": states}}
        with self._client.verb():
            found = self._client.find(wanted, hint="_id_", fields=dict.fromkeys(producers.PROGRESS_FIELDS, 1))
        return [(producers.unfinished_commit(record), int(record["due"])) for record in found]

    def abort_overdue(self, project: str, producer: str, now: int) -> None:
        """Abort the producer's commit if it is undecided and its deadline has passed."""
        record = self._find(producers.identity(project, producer))
        if record.get("state") in (PREPARING, ABORTING) and record["due"] <= now:
            self._abort(record, RunningClock(now))

    def resume(self, now: int, *, stages: bool = True) -> int:
        """Abort overdue undecided commits, remove expired stages, and return the number of removed staged messages.

        If ``stages`` is False, ignore the expired stages that MongoDB's TTL index removes anyway.
        """
        # A large commit removes ``e`` from its stages. After an abort, only this method can drop them.
        lasting: BsonDocument = {"$or": [{"state": {"$exists": True}}, {"e": {"$exists": False}}]}
        overdue: BsonDocument = {"due": {"$lte": now}, "state": {"$ne": DECIDED}, **({} if stages else lasting)}
        removed = 0
        for _ in range(MAX_SEARCHES):
            with self._client.verb():
                found = self._client.find(overdue, limit=FOUND_AT_ONCE, sort={"due": 1}, hint=layout.DUE)
            removed += sum(self._resume(one, now) for one in found)
            if len(found) < FOUND_AT_ONCE:
                break
        return removed

    def _resume(self, one: BsonDocument, now: int) -> int:
        if "state" not in one:
            return self._stages.drop(stages.exact_filter(one))
        self._abort(one, RunningClock(now))
        return 0

    def _attempt(self, commit: Commit, clock: RunningClock, bounds: Bounds) -> CommitResult | None:
        """Try to commit, and return the result of the producer's last batch.

        If a concurrent attempt was faster, return None.
        """
        try:
            with self._client.verb():
                begun = self._client.transaction(partial(self._begin, commit, uuid4().hex, clock, bounds))
        except TransactionAborted:
            return None
        record = begun.record
        self._announce_ready(begun.entered)
        if "state" in record:
            self._events.reached(Step.BEGUN)
            record = self._prepare(begun, commit.fence, clock)
        else:
            self._events.reached(Step.DONE)
        return producers.last_batch(record)

    def _begin(
        self, commit: Commit, attempt: str, clock: RunningClock, bounds: Bounds, session: Session
    ) -> CommitStart:
        """Complete a small commit, or store a large commit in the producer's document and reserve its stages."""
        doc_id = producers.identity(commit.project, commit.producer)
        former = next(iter(self._client.find(doc_id, session=session)), {})
        if former.get("attempt") == attempt:  # an earlier run of this transaction was committed
            claims = producers.claims(former) if "state" in former else []
            return CommitStart(former, (), self._reservations.find_holdings(claims, clock.start, session))
        if "state" in former or (producers.has_last_batch(former, clock.start) and commit.batch <= former["batch"]):
            raise TransactionAborted
        if commit.fence is not None:
            check_fence(self._client, session, commit.project, commit.fence)
        kept = self._stages.find(commit, clock.start, session)
        for name, stage in zip(dict.fromkeys(commit.publish), kept, strict=False):
            check_stage(commit, name, stage["count"])
        published = sum(stage["count"] for stage in kept if UNCOUNTED_FLAG not in stage)
        held = self._reservations.find_holdings(list(dict.fromkeys(commit.settle)), clock.start, session)
        deleted = sum(map(len, held.values()))
        check_size(CommitResult(commit.batch, published, deleted), bounds)
        entered: Sequence[QueueKey] = ()
        if fits(kept, deleted, bounds.step):
            drafts, _ = next_drafts(self._stages, kept, BEGINNING, bounds.step, session)
            if len(drafts) != sum(stage["count"] for stage in kept):
                raise StageNotFound.of(commit.publish[0])  # drafts have expired meanwhile
            entered = publish(self._client, session, commit.project, drafts, clock.start)
            self._stages.remove_small(kept, session)
            self._reservations.finish_small(held, clock.start, session)
            record = producers.completed_document(commit, attempt, published, deleted, clock.start)
        else:
            self._stages.reserve(kept, attempt, session)
            due = clock.now() + self._patience
            record = producers.preparing_document(commit, attempt, kept, former, clock.start, due)
        self._client.update([{"q": doc_id, "u": record, "upsert": True}], session)
        return CommitStart(record, entered, held)

    def _prepare(self, begun: CommitStart, fence: Fence | None, clock: RunningClock) -> BsonDocument:
        """Prepare and decide the commit, and return the producer's document."""
        record = begun.record
        try:
            record = self._extend_stages(record, clock)
            for messages in self._reservations.parts(begun.held):
                record = self._step(record, partial(self._reserve, messages, record, clock))
                self._events.reached(Step.RESERVED)
            record = self._step(record, partial(self._decide, begun, fence, clock))
        except (ClaimLapsed, Fenced, StageNotFound):
            self._abort(record, clock)
            raise
        except TransactionAborted:
            raise CommitRunning from None  # the preparation took too long, and another server has aborted it
        self._events.reached(Step.DECIDED)
        return record

    def _extend_stages(self, record: BsonDocument, clock: RunningClock) -> BsonDocument:
        """Remove the expiry of the staged messages, because they must exist until the commit has published them.

        The method pauses after each step to limit the load on MongoDB.
        """
        for stage in record["publish"]:
            began = time.monotonic()
            for _ in self._stages.remove_expiry(stage):
                record = self._step(record, lambda session: self._later_deadline(clock))
                time.sleep(min(LONGEST_REST, time.monotonic() - began))
                began = time.monotonic()
        return record

    def _reserve(
        self,
        messages: Sequence[tuple[ClaimRef, BsonDocument]],
        record: BsonDocument,
        clock: RunningClock,
        session: Session,
    ) -> BsonDocument:
        self._reservations.reserve(messages, record, clock.start, session)
        return self._later_deadline(clock)

    def _later_deadline(self, clock: RunningClock) -> BsonDocument:
        return {"$set": {"due": clock.now() + self._patience}}

    def _decide(self, begun: CommitStart, fence: Fence | None, clock: RunningClock, session: Session) -> BsonDocument:
        record, deleted = begun.record, sum(map(len, begun.held.values()))
        if fence is not None:
            check_fence(self._client, session, layout.decode_text(record["project"]), fence)
        self._reservations.check_removals(begun.held, session)
        published = sum(stage["count"] for stage in record["publish"] if UNCOUNTED_FLAG not in stage)
        figures = {"batch": record["next"], "published": published, "deleted": deleted, "decided": record["moment"]}
        return {"$set": {"state": DECIDED, "due": clock.now(), **figures}}

    def _slice(
        self, record: BsonDocument, max_messages: int, entered: list[QueueKey], clock: RunningClock
    ) -> tuple[Callable[[Session], BsonDocument] | None, Step]:
        """Return a function that executes the next slice of a decided commit, and the step that the slice belongs to.

        If all messages are deleted or published, the function is None.
        """
        if record["settled"] < len(record["settle"]):
            return partial(self._settle, record, max_messages, clock), Step.SETTLED
        drafts, at = next_drafts(self._stages, record["publish"], record["at"], max_messages)
        if drafts:
            return partial(self._publish, record, drafts, at, entered, clock), Step.PUBLISHED
        return None, Step.DONE

    def _settle(self, record: BsonDocument, max_messages: int, clock: RunningClock, session: Session) -> BsonDocument:
        claims = producers.claims(record)[record["settled"] :]
        done = self._reservations.finish(claims, record["attempt"], max_messages, clock.start, session)
        return {"$inc": {"settled": done}, "$set": {"due": clock.now()}}

    def _publish(
        self,
        record: BsonDocument,
        drafts: list[BsonDocument],
        at: Progress,
        entered: list[QueueKey],
        clock: RunningClock,
        session: Session,
    ) -> BsonDocument:
        project = layout.decode_text(record["project"])
        entered[:] = publish(self._client, session, project, drafts, clock.start)
        return {"$set": {"at": at, "due": clock.now()}}

    def _clean(self, record: BsonDocument, max_messages: int) -> bool:
        """Remove published stages. No transaction is needed, because the stages are already invisible."""
        max_messages = max(max_messages, CLEANED_AT_ONCE)
        removed, order, drafts = record["removed"], record.get("order", 0), 0
        while removed < len(record["publish"]) and drafts < max_messages:
            stage = record["publish"][removed]
            begin, order = order, min(stage["count"], order + max_messages - drafts)
            self._stages.remove_part(stage, begin, order)
            drafts += order - begin
            if order == stage["count"]:
                self._stages.forget(stage)
                removed, order = removed + 1, 0
                self._events.reached(Step.UNSTAGED)
        if removed < len(record["publish"]):
            self._take_over(record, {"removed": removed, "order": order})
            return True
        forgotten = {"e": DatetimeMS(record["moment"] + record["ttl"] * 1000)}
        self._end(record, {"$set": forgotten, "$unset": dict.fromkeys(producers.UNDER_WAY, "")})
        self._events.reached(Step.DONE)
        return False

    def _abort(self, record: BsonDocument, clock: RunningClock) -> None:
        """Abort an undecided commit, unless another server has advanced the commit."""
        given_up = self._take_over(record, {"state": ABORTING, "due": clock.now() + ABORT_GRACE})
        if given_up is None:
            return
        self._events.reached(Step.ABORTING)
        claims = producers.claims(given_up)
        self._reservations.unreserve(claims, given_up["attempt"])
        self._announce_ready([layout.key(claim.queue) for claim in claims])
        self._events.reached(Step.UNRESERVED)
        with self._client.verb():
            self._stages.unreserve(given_up["publish"], given_up["attempt"])
        if "batch" in given_up:
            nothing_left = dict.fromkeys((*producers.UNDER_WAY, "attempt"), "")
            self._end(given_up, {"$set": {"e": given_up["former"]}, "$unset": nothing_left})
        else:
            with self._client.verb():
                self._client.delete([{"q": producers.same_state_filter(given_up), "limit": 1}])
        self._events.reached(Step.ABORTED)

    def _step(self, record: BsonDocument, change: Callable[[Session], BsonDocument]) -> BsonDocument:
        """Run one step of a commit in a transaction, and return the producer's document after the step."""

        def work(session: Session) -> BsonDocument:
            doc_id = {field: record[field] for field in ("_id", "s", "attempt")}
            open_ones = {**doc_id, "state": {"$in": [PREPARING, DECIDED]}}
            for current in self._client.find(open_ones, session=session):
                if current["turn"] != record["turn"]:
                    return current
                noted = change(session)
                noted["$inc"] = {**noted.get("$inc", {}), "turn": 1}
                changed = self._client.modify({"query": doc_id, "update": noted, "new": True}, session)
                return changed or {}
            raise TransactionAborted

        with self._client.verb():
            return self._client.transaction(work)

    def _take_over(self, record: BsonDocument, noted: BsonDocument) -> BsonDocument | None:
        """Set the fields ``noted`` in the producer's document, and return the new document.

        If another server has executed a step of the commit since ``record`` was read, change nothing and return None.
        """
        step = {"$set": noted, "$inc": {"turn": 1}}
        with self._client.verb():
            return self._client.modify({"query": producers.unchanged_filter(record), "update": step, "new": True})

    def _end(self, record: BsonDocument, step: BsonDocument) -> None:
        with self._client.verb():
            self._client.update([{"q": producers.same_state_filter(record), "u": step}])

    def _find(self, doc_id: BsonDocument) -> BsonDocument:
        with self._client.verb():
            return next(iter(self._client.find(doc_id, committed=True)), {})

    def _announce_ready(self, queues: Sequence[QueueKey]) -> None:
        for key in queues:
            self._claimers.invalidate(key)
            self._announce(key.ref)
