# SPDX-License-Identifier: Apache-2.0
"""Transactions of producers in Redis: fences, stages and commits.

A stage holds invisible messages until a commit publishes them. All data of a project is in one cluster slot, so one
script decides a commit. ``transactions.lua`` has the scripts. Times are in milliseconds. The stored values are:

- Stage: the expiry, the total size of the message bodies, and the number of queues. For each queue, the minimum TTL of
  its messages, the length of its name, and the name follow.
- Staged message: the index of its queue in the list of the stage, and the encoded message. Times are relative to the
  publication.
- Producer: the expiry, the numbers of messages that its last batch published and deleted, and the batch number in
  decimal digits.

A large commit is first decided, and then completed in several steps. In between, the commit is *open*. Its messages
are in lists: first the messages to delete, and then the messages to publish. The steps process one list after another.

Before a commit becomes open, the server registers it in the sorted set ``OPEN_KEY``. One script cannot do both,
because ``OPEN_KEY`` is in another cluster slot. If an entry of ``OPEN_KEY`` has no open commit, it is removed after
``STALE_AFTER_MS`` milliseconds.
"""

from collections.abc import Mapping, Sequence
from struct import Struct as Packing
from typing import Final

from msgspec import Struct, msgpack

from zq.errors import ProducerNotFound
from zq.model import (
    MAX_STAGED,
    Bounds,
    Commit,
    CommitResult,
    Draft,
    IdempotencyKey,
    KnownFence,
    KnownProducer,
    KnownStage,
    KnownWork,
    Page,
    QueueRef,
    Seconds,
    UnfinishedCommit,
)
from zq.model.quotas import Work, WorkCount
from zq.storage.capabilities import BOUNDS
from zq.storage.redis import layout, scripts
from zq.storage.redis.client import ReadRequest
from zq.storage.redis.connections import Reply
from zq.storage.redis.layout import OPEN_KEY, Block
from zq.storage.redis.store import Store, checked, encode_ids

STAGE: Final = Packing(">QQI")
STAGED_QUEUE: Final = Packing(">QI")
PRODUCER: Final = Packing(">QQQ")


def min_ttls(stage: bytes) -> dict[str, int]:
    """Return the minimum TTL of the messages for each queue of a stage, in milliseconds by queue name.

    A stage holds messages that are not published yet. ``stage`` is the stage as stored in Redis.
    """
    at, found = STAGE.size, {}
    while at < len(stage):
        min_ttl, length = STAGED_QUEUE.unpack_from(stage, at)
        at += STAGED_QUEUE.size + length
        found[layout.decode_text(stage[at - length : at])] = min_ttl
    return found


def expiry(producer: bytes) -> int:
    return int(PRODUCER.unpack_from(producer)[0])


def committed(producer: bytes, *, replayed: bool = False, is_open: bool = False) -> CommitResult:
    _, published, deleted = PRODUCER.unpack_from(producer)
    return CommitResult(int(producer[PRODUCER.size :]), published, deleted, replayed, is_open)


# Total size in bytes of bodies after which a step ends.
STEP_BYTES: Final = 4 << 20
# Number of open commits that are read together.
MAX_READ_COMMITS: Final = 100
# Maximum number of names that one script lists.
NAMES: Final = 200
# Milliseconds after which an entry without an open commit is stale, because no operation takes that long.
STALE_AFTER_MS: Final = 60_000


class OpenCommit(Struct, array_like=True, frozen=True):
    """The stored form of an open commit, which is decided but not completed."""

    batch: bytes
    claims: list[tuple[bytes, int]]
    stages: list[bytes]

    @property
    def phases(self) -> int:
        """The number of message lists to process."""
        return len(self.claims) + len(self.stages)

    @property
    def packed(self) -> bytes:
        return msgpack.encode(self)


class OpenCommitEntry(Struct, array_like=True, frozen=True):
    """An entry in the sorted set ``OPEN_KEY``: a commit that may be open."""

    project: bytes
    producer: bytes
    batch: bytes


unpack = msgpack.Decoder(OpenCommit).decode
unpack_entry = msgpack.Decoder(OpenCommitEntry).decode


def register(store: Store, commit: Commit, now: int) -> None:
    """Register a commit that may become open (decided but not completed), so that other servers can complete it."""
    entry = OpenCommitEntry(
        layout.encode_text(commit.project), layout.encode_text(commit.producer), b"%d" % commit.batch
    )
    _schedule(store, b"%d" % now, msgpack.encode(entry), b"", b"")


def find_unfinished_commits(store: Store, now: int) -> Sequence[UnfinishedCommit]:
    """Return up to ``MAX_READ_COMMITS`` open commits of all projects, and remove stale entries of ``OPEN_KEY``."""
    bounds = OPEN_KEY, b"0", b"%d" % (MAX_READ_COMMITS - 1), b"WITHSCORES"
    found = store.client.command(OPEN_KEY, b"ZRANGE", *bounds)
    open_ones = []
    for member, score in zip(found[::2], found[1::2], strict=True):
        entry = unpack_entry(member)
        project = layout.decode_text(entry.project)
        packed, phase = _find_open(store, project, entry.producer)
        if packed is not None and unpack(packed).batch == entry.batch:
            open_ones.append(_describe_open(store, project, entry.producer, packed, phase))
        elif float(score) < now - STALE_AFTER_MS:  # unless another server registers the commit again in between
            _schedule(store, b"0", b"", member, b"%d" % (now - STALE_AFTER_MS))
    return open_ones


def find_open_commits(store: Store, project: str) -> Sequence[UnfinishedCommit]:
    """Return all open commits of the project."""
    key, open_ones = layout.keys(layout.project_ref(project)).open, []
    for producer in store.client.command(key, b"HKEYS", key):
        packed, phase = _find_open(store, project, producer)
        if packed is not None:
            open_ones.append(_describe_open(store, project, producer, packed, phase))
    return open_ones


def continue_commit(store: Store, project: str, producer: str, max_messages: int, now: int) -> bool:
    """Process up to ``max_messages`` messages of a producer's open commit. Return False if the commit is complete."""
    name, whole = layout.encode_text(producer), layout.project_ref(project)
    packed, phase = _find_open(store, project, name)
    if packed is None:
        return False
    commit = unpack(packed)
    more, terms = _slice_arguments(store, project, commit, phase, now)
    numbers = b"%d" % phase, b"%d" % commit.phases, b"%d" % max_messages, b"%d" % STEP_BYTES
    keys = [layout.keys(whole).transactions, layout.open_list_key(project, producer, phase), *more]
    return bool(store.run(scripts.CARRY, whole, b"%d" % now, name, packed, *numbers, *terms, more=keys))


def schedule_targets(store: Store, project: str, lives: Mapping[str, int], now: int) -> list[QueueRef]:
    """Schedule the removal of expired messages from the queues to which a commit publishes. Return the queues.

    ``lives`` has the minimum TTL of the published messages, in milliseconds by queue name.
    """
    targets = [QueueRef(project, name) for name in lives]
    for target in targets:
        store.schedule_expiry(target, now + lives[target.name], now)
    return targets


def _schedule(store: Store, *terms: bytes) -> None:
    store.client.run(scripts.SCHEDULE, (OPEN_KEY,), *terms)


def _slice_arguments(
    store: Store, project: str, commit: OpenCommit, phase: int, now: int
) -> tuple[list[Block], list[bytes]]:
    if phase < len(commit.claims):
        full, history = commit.claims[phase]
        queue = layout.decode_full_name(full)
        return [layout.keys(queue).queue, *store.schedule_history(queue, history, now)], [b"1", b"%d" % history, full]
    lives = min_ttls(commit.stages[phase - len(commit.claims)])
    targets = schedule_targets(store, project, lives, now)
    terms = [b"0", b"%d" % len(targets), *(layout.encode_full_name(target) for target in targets)]
    return [layout.keys(target).queue for target in targets], terms


def _describe_open(store: Store, project: str, name: bytes, packed: bytes, phase: int) -> UnfinishedCommit:
    producer = layout.decode_text(name)
    block = layout.project_keys(project, f"open:{phase}:{producer}")[0]
    left = store.client.read_pipelined(
        [ReadRequest(block, (b"LLEN", block)), ReadRequest(block, (b"LINDEX", block, b"0"))]
    )
    progress = f"{unpack(packed).batch.decode()} {phase} {left[0]} {len(left[1] or b'')}"
    return UnfinishedCommit(project, producer, progress)


def _find_open(store: Store, project: str, producer: bytes) -> tuple[bytes | None, int]:
    keys = layout.keys(layout.project_ref(project))
    packed, phase = store.client.read_pipelined(
        [ReadRequest(key, (b"HGET", key, producer)) for key in (keys.open, keys.phase)]
    )
    return packed, int(phase or 0)


# Expected message count of a stage without a check; its messages do not count.
UNCOUNTED_STAGE: Final = -2
RESTAGED: Final = [b"restaged"]
LARGE: Final = [b"large"]


class Attempt:
    """An attempt to execute a commit request. ``moment`` is the time of the request in milliseconds."""

    def __init__(self, store: Store, commit: Commit, moment: int, bounds: Bounds) -> None:
        self._store = store
        self._commit = commit
        self._moment = moment
        self._bounds = bounds
        self._whole = layout.project_ref(commit.project)
        self._held = list(dict.fromkeys(commit.settle))
        self._names = list(dict.fromkeys(commit.publish))
        """Names of the stages to publish, including the existing stages of ``Commit.beside``."""
        self._lists = list(dict.fromkeys((item.queue, item.history) for item in self._held))
        """Lists of messages to delete, as (queue, history retention in seconds)."""

    def run(self) -> CommitResult:
        """Commit and return the result. The commit may still be open: decided, but not completed."""
        ends = self._moment + self._commit.ttl * 1000
        self._store.schedule_expiry(self._whole, ends, self._moment)
        may_open = False
        while True:
            packed = self._read_stages()
            reply = self._run(packed, ends, self._open_form(packed) if may_open else None)
            if reply == LARGE:
                register(self._store, self._commit, self._moment)
                may_open = True
            elif reply != RESTAGED:
                return self._answer(reply)

    def _answer(self, reply: Reply) -> CommitResult:
        done = checked(reply)
        return committed(done[2:], replayed=done[:1] == b"\1", is_open=done[1:2] == b"\1")

    def _run(self, packed: Sequence[bytes], ends: int, to_open: OpenCommit | None) -> Reply:
        commit, targets = self._commit, self._schedule_targets(packed)
        fence = (layout.encode_text(commit.fence.name), commit.fence.epoch) if commit.fence else (b"", 0)
        sizes = (fence[1], len(self._names), len(self._held), len(targets))
        bounds = (self._bounds.step, self._bounds.max_messages, STEP_BYTES, len(self._lists))
        terms = [
            b"%d" % self._moment,
            layout.encode_text(commit.producer),
            b"%d" % commit.batch,
            b"%d" % ends,
            fence[0],
        ]
        terms += [b"%d" % number for number in (*sizes, *bounds)]
        terms.append(to_open.packed if to_open is not None else b"")
        for name, stage in zip(self._names, packed, strict=True):
            count = UNCOUNTED_STAGE if name in commit.beside else commit.expected.get(name, -1)
            terms += [layout.encode_text(name), stage, b"%d" % count]
        terms += [part for queue, history in self._lists for part in (b"%d" % history, layout.encode_full_name(queue))]
        numbers = {place: b"%d" % number for number, place in enumerate(self._lists)}
        for item in self._held:
            terms += [layout.encode_text(item.claim), numbers[item.queue, item.history]]
        terms += [layout.encode_full_name(target) for target in targets]
        more = [layout.keys(self._whole).transactions]
        more += [layout.stage_key(commit.project, name) for name in self._names]
        for queue, history in self._lists:
            more += [layout.keys(queue).queue, *self._store.schedule_history(queue, history, self._moment)]
        more += [layout.keys(target).queue for target in targets]
        if to_open is not None:
            more += [layout.open_list_key(commit.project, commit.producer, number) for number in range(to_open.phases)]
        return self._store.run(scripts.COMMIT, self._whole, *terms, more=more)

    def _open_form(self, packed: Sequence[bytes]) -> OpenCommit:
        claims = [(layout.encode_full_name(queue), history) for queue, history in self._lists]
        return OpenCommit(b"%d" % self._commit.batch, claims, list(packed))

    def _read_stages(self) -> list[bytes]:
        """Read the stages to publish from Redis, and set ``_names`` to their names in the same order.

        If a required stage is missing, its value is b"". Missing optional stages are omitted.
        """
        publish, beside = dict.fromkeys(self._commit.publish), dict.fromkeys(self._commit.beside)
        if not publish:
            return []
        keys = layout.keys(self._whole)
        names = [layout.encode_text(name) for name in (*publish, *beside)]
        packed = self._store.client.command(keys.stages, b"HMGET", keys.stages, *names)
        found = dict(zip((*publish, *beside), packed, strict=True))
        self._names = [*publish, *(name for name in beside if found[name])]
        return [found[name] or b"" for name in self._names]

    def _schedule_targets(self, packed: Sequence[bytes]) -> list[QueueRef]:
        lives: dict[str, int] = {}
        for stage in packed:
            for name, min_ttl in min_ttls(stage).items():
                lives[name] = min(min_ttl, lives.get(name, min_ttl))
        return schedule_targets(self._store, self._commit.project, lives, self._moment)


class TransactionController:
    """The Redis implementation of ``zq.storage.capabilities.TransactionController``."""

    min_slice = 40

    def __init__(self, store: Store) -> None:
        self._store = store

    def advance_fence(self, project: str, name: str, now: Seconds) -> int:
        whole, terms = layout.project_ref(project), (b"%d" % layout.ms(now), layout.encode_text(name))
        self._store.register_project(project)
        return int(self._store.run(scripts.FENCE, whole, *terms, more=[layout.keys(whole).transactions]))

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        ttl: int,
        max_bytes: int,
        idempotency_key: IdempotencyKey | None = None,
        max_messages: int = MAX_STAGED,
    ) -> None:
        moment, keys = layout.ms(now), layout.keys(queue)
        expires = moment + ttl * 1000
        self._store.schedule_expiry(layout.project_ref(project), expires, moment)
        min_ttl_ms = min(draft.ttl for draft in drafts) * 1000
        terms = [
            b"%d" % moment,
            layout.encode_text(stage),
            keys.name,
            *(b"%d" % term for term in (expires, max_bytes, max_messages, min_ttl_ms)),
        ]
        more = [keys.transactions, layout.stage_key(project, stage)]
        if idempotency_key is not None:
            answers, remembered = self._store.schedule_idempotency_key(queue, idempotency_key, moment)
            more.append(answers)
            terms += [*remembered, encode_ids(drafts)]
        packed = [layout.encode_draft(draft, 0) for draft in drafts]
        checked(self._store.run(scripts.STAGE, queue, *terms, *packed, more=more), idempotency_key)

    def drop_stage(self, project: str, stage: str) -> None:
        whole = layout.project_ref(project)
        more = [layout.keys(whole).transactions, layout.stage_key(project, stage)]
        self._store.run(scripts.STAGE_DROP, whole, layout.encode_text(stage), more=more)

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> CommitResult:
        return Attempt(self._store, commit, layout.ms(now), bounds).run()

    def continue_commit(self, project: str, producer: str, max_messages: int, now: Seconds) -> bool:
        return continue_commit(self._store, project, producer, max_messages, layout.ms(now))

    def find_unfinished_commits(self, now: Seconds, project: str | None = None) -> Sequence[UnfinishedCommit]:
        if project is not None:
            return find_open_commits(self._store, project)
        return find_unfinished_commits(self._store, layout.ms(now))

    def is_idle(self, project: str, now: Seconds) -> bool:
        # The stages are read first, because a single script turns the stages of a large commit into an open commit.
        is_staging = self.count(project, Work.STAGE, "", now).total > 0
        key = layout.keys(layout.project_ref(project)).open
        return not is_staging and not self._store.client.command(key, b"HLEN", key)

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        keys, title = layout.keys(layout.project_ref(project)), layout.encode_text(name)
        if work is Work.FENCE:
            key = keys.fences[0]
            requests = [ReadRequest(key, (b"HLEN", key)), ReadRequest(key, (b"HEXISTS", key, title))]
            count, known = self._store.client.read_pipelined(requests)
            return WorkCount(int(count), bool(known))
        key, moment = keys.staging if work is Work.STAGE else keys.producing, layout.ms(now)
        requests = [
            ReadRequest(key, (b"ZCOUNT", key, b"(%d" % moment, b"+inf")),
            ReadRequest(key, (b"ZSCORE", key, title)),
        ]
        count, ends = self._store.client.read_pipelined(requests)
        return WorkCount(int(count), ends is not None and float(ends) > moment)

    def list(self, project: str, work: Work, after: str, limit: int, now: Seconds) -> Page[KnownWork]:
        whole, kind = layout.project_ref(project), layout.encode_text(work.value[0])
        behind, end = b"(" + kind + layout.encode_text(after), b"(" + bytes([kind[0] + 1])
        found: list[KnownWork] = []
        while len(found) < limit:
            terms = b"%d" % layout.ms(now), kind, behind, end, b"%d" % min(limit - len(found), NAMES)
            last, *reply = self._store.run(scripts.WORK_LIST, whole, *terms, more=[layout.keys(whole).transactions])
            found += self._decode_work(project, work, reply)
            if not last:
                break
            behind = b"(" + last
        return Page(found, found[-1].name if found else None)

    def _decode_work(self, project: str, work: Work, reply: Sequence[bytes]) -> Sequence[KnownWork]:
        names = [layout.decode_text(name) for name in reply[::4]]
        rows = list(zip(names, reply[1::4], reply[2::4], reply[3::4], strict=True))
        if work is Work.FENCE:
            return [KnownFence(name, int(epoch), _moment(at)) for name, epoch, at, _ in rows]
        if work is Work.PRODUCER:
            return [
                KnownProducer(
                    name, committed(it, is_open=bool(opened)), _moment(at), None if opened else expiry(it) / 1000
                )
                for name, it, at, opened in rows
            ]
        keys = [layout.stage_key(project, name)[0] for name in names]
        counts = self._store.client.read_pipelined([ReadRequest(key, (b"LLEN", key)) for key in keys])
        kept = [STAGE.unpack_from(stage) for _, stage, _, _ in rows]
        stages = zip(names, counts, kept, strict=True)
        return [KnownStage(name, int(count), size, expires / 1000) for name, count, (expires, size, _) in stages]

    def last(self, project: str, producer: str, now: Seconds) -> CommitResult:
        keys, name = layout.keys(layout.project_ref(project)), layout.encode_text(producer)
        kept = self._store.client.read_pipelined(
            [ReadRequest(key, (b"HGET", key, name)) for key in (keys.open, keys.producers)]
        )
        if kept[1] is None or expiry(kept[1]) <= layout.ms(now):
            raise ProducerNotFound
        return committed(kept[1], is_open=kept[0] is not None)


def _moment(stored: bytes) -> Seconds | None:
    return int(stored) / 1000 if stored else None
