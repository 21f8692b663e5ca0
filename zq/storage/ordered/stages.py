# SPDX-License-Identifier: Apache-2.0
"""The stored form of stages, fences and open commits.

- A stage is a set of messages that a producer has stored and that a commit publishes.
- A fence issues increasing epochs, so that a replaced process can no longer commit.
- An open commit is recorded but not completed.

A caller that changes or checks a stage, fence or producer holds its lock.

An open commit is one entry in ``default`` with the prefix ``COMMIT``. The entry has the remaining work:

- The sequences of messages to delete, by queue. They are also in ``QueueState.reserved``, so that no other operation
  changes these messages.
- The stages to publish. They no longer have entries in ``stages``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, msgpack

from zq.errors import Fenced, StageFull
from zq.model import CommitResult, Draft, Fence, KnownFence, KnownProducer, KnownStage, KnownWork, QueueRef
from zq.model.quotas import Work
from zq.storage.ordered import due, layout
from zq.storage.ordered.layout import ADVANCED, COMMIT, Batch, Stage, StagedMessage
from zq.storage.ordered.store import Readable, Store, Write


def prefix(project: str, stage: str) -> bytes:
    """Return the key of a stage without the expiry at its end."""
    return layout.name_prefix(layout.project_prefix(project), stage)


def stage_lock(prefix: bytes) -> bytes:
    return b"stage " + prefix


def find(store: Store, prefix: bytes, now: int) -> tuple[bytes, Stage] | None:
    """Return the key and the record of the unexpired stage, or None. ``prefix`` is the key without the expiry."""
    found = due.find_live(store, "stages", prefix, now)
    return None if found is None else (found[0], layout.decode_stage(found[1]))


def find_or_create(
    store: Store, new_number: Callable[[], int], prefix: bytes, now: int, expires: int
) -> tuple[bytes, Stage]:
    """Return the key and the record of the stage under ``prefix``, or of a new stage that is not stored yet.

    An expired stage is ignored.
    """
    return find(store, prefix, now) or (prefix + layout.number.pack(expires), Stage(new_number()))


def append_writes(
    key: bytes, stage: Stage, queue: str, drafts: Sequence[Draft], limits: tuple[int, int]
) -> list[Write]:
    """Return the writes that append drafts to the stage.

    Raises ``StageFull`` if the stage would exceed ``limits``: the maximum size in bytes and the maximum message count.
    """
    size = stage.size + sum(draft.size for draft in drafts)
    grown = Stage(stage.number, stage.count + len(drafts), size)
    if size > limits[0] or grown.count > limits[1]:
        raise StageFull
    writes = due.writes("stages", key, layout.encode(grown), due.parse_expiry(key), layout.number.pack(stage.number))
    for index, draft in enumerate(drafts, stage.count):
        writes.append(("staged", layout.pair.pack(stage.number, index), layout.encode(StagedMessage(queue, draft))))
    return writes


def messages(store: Readable, stage: Stage) -> Iterator[StagedMessage]:
    bounds = layout.number.pack(stage.number), layout.number.pack(stage.number + 1)
    return (layout.decode_staged(value) for _, value in store.scan("staged", *bounds))


def decode_message(value: bytes) -> StagedMessage:
    return layout.decode_staged(value)


def removal_writes(key: bytes, stage: Stage) -> list[Write]:
    """Return the writes that remove a stage. Active expiry removes its messages later."""
    dropped = layout.PENDING_NUMBER + layout.number.pack(stage.number)
    return [*due.removals("stages", key, due.parse_expiry(key)), ("default", dropped, b"")]


def removal_writes_by_prefix(store: Store, prefix: bytes) -> list[Write]:
    """Return the writes that remove the stages with this key prefix, including expired ones."""
    found = store.scan("stages", prefix, layout.prefix_end(prefix))
    return [write for key, value in found for write in removal_writes(key, layout.decode_stage(value))]


def fence_locks(project: str, fence: Fence | None) -> list[bytes]:
    return [] if fence is None else [fence_lock(project, fence.name)]


def fence_lock(project: str, fence: str) -> bytes:
    return b"fence " + _fence_key(project, fence)


def check_fence(store: Store, project: str, fence: Fence | None) -> None:
    """Raise ``Fenced`` unless the fence's epoch is the last one issued."""
    if fence is not None and fence.epoch != _last_epoch(store, _fence_key(project, fence.name)):
        raise Fenced


def advance_fence(store: Store, project: str, fence: str, now: int) -> int:
    """Issue and return the next epoch of a fence, and store ``now`` as the time of issue."""
    key = _fence_key(project, fence)
    epoch = _last_epoch(store, key) + 1
    store.write([("fences", key, layout.number.pack(epoch)), ("default", ADVANCED + key, layout.number.pack(now))])
    return epoch


def _fence_key(project: str, fence: str) -> bytes:
    return layout.queue_key(QueueRef(project, fence))


def _last_epoch(store: Store, key: bytes) -> int:
    return int.from_bytes(store.get("fences", key) or b"")


class ReservedMessages(Struct, array_like=True):
    """The messages of one queue that an open commit (recorded but not completed) will delete.

    ``history`` is the queue's history retention in seconds.
    """

    number: int
    history: int
    sequences: list[int]


class UnpublishedRange(Struct, array_like=True):
    """The messages of a stage that an open commit (recorded but not completed) has not published yet.

    The indexes of these messages in the stage are ``at <= index < end``.
    """

    number: int
    at: int
    end: int
    size: int = 0


class OpenCommit(Struct, array_like=True):
    """A commit that is recorded but not completed.

    ``published`` and ``deleted`` count all its messages. ``rests`` and ``reserved`` have the remaining messages.
    """

    batch: int
    published: int
    deleted: int
    reserved: list[ReservedMessages]
    rests: list[UnpublishedRange]


decode_commit = msgpack.Decoder(OpenCommit).decode


def find_commit(store: Store, producer: bytes) -> OpenCommit | None:
    value = store.get("default", COMMIT + producer)
    return None if value is None else decode_commit(value)


def scan_commits(store: Readable, project: str | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield (producer, stored entry) for each open commit, which is recorded but not completed.

    ``producer`` is the key of the producer's record in ``producers``, without the expiry. If ``project`` is None, yield
    the commits of all projects.
    """
    prefix = COMMIT if project is None else COMMIT + layout.project_prefix(project)
    for key, value in store.scan("default", prefix, layout.prefix_end(prefix)):
        yield key[len(COMMIT) :], value


def commit_write(producer: bytes, commit: OpenCommit) -> Write:
    """Return the write that updates the entry of an open commit, or removes the entry if no work remains.

    An open commit is recorded but not completed.
    """
    left = commit.reserved or commit.rests
    return "default", COMMIT + producer, layout.encode(commit) if left else None


def build_result(store: Store, producer: bytes, batch: Batch) -> CommitResult:
    is_open = find_commit(store, producer) is not None
    return CommitResult(batch.batch, batch.published, batch.deleted, open=is_open)


def list_work(store: Store, project: str, work: Work, after: str, now: int) -> Iterator[KnownWork]:
    """Yield the project's fences, live stages or live producers with names above ``after``, sorted by name."""
    prefix = layout.project_prefix(project)
    ends = work is not Work.FENCE
    behind = (
        layout.prefix_end(layout.name_prefix(prefix, after))
        if ends
        else layout.queue_key(QueueRef(project, after)) + b"\0"
    )
    for key, value in store.scan(work.value, behind if after else prefix, layout.prefix_end(prefix)):
        if not ends or due.parse_expiry(key) > now:
            name = key[len(prefix) : -9 if ends else None].decode("utf-8", "surrogatepass")
            yield _describe(store, work, name, key, value)


def _describe(store: Store, work: Work, name: str, key: bytes, value: bytes) -> KnownWork:
    if work is Work.STAGE:
        stage = layout.decode_stage(value)
        return KnownStage(name, stage.count, stage.size, due.parse_expiry(key) / 1000)
    if work is Work.FENCE:
        advanced = store.get("default", ADVANCED + key)
        return KnownFence(name, int.from_bytes(value), None if advanced is None else int.from_bytes(advanced) / 1000)
    batch = layout.decode_batch(value)
    last = build_result(store, key[:-8], batch)
    return KnownProducer(name, last, batch.decided / 1000 or None, None if last.open else due.parse_expiry(key) / 1000)


def usage(store: Store, project: str) -> tuple[int, int]:
    """Return the number of staged messages in the project, and the total size of their bodies in bytes.

    The count includes messages that a recorded but incomplete commit has not published yet.
    """
    prefix = layout.project_prefix(project)
    found = [layout.decode_stage(value) for _, value in store.scan("stages", prefix, layout.prefix_end(prefix))]
    opened = (decode_commit(value) for _, value in scan_commits(store, project))
    rests = [rest for commit in opened for rest in commit.rests]
    count = sum(stage.count for stage in found) + sum(rest.end - rest.at for rest in rests)
    return count, sum(stage.size for stage in found) + sum(max(0, rest.size) for rest in rests)


def list_names(store: Store, project: str, work: Work, now: int) -> set[str]:
    """Return the names of the project's fences, live stages or live producers."""
    prefix = layout.project_prefix(project)
    keys = [key[len(prefix) :] for key, _ in store.scan(work.value, prefix, layout.prefix_end(prefix))]
    if work is not Work.FENCE:
        keys = [key[:-9] for key in keys if due.parse_expiry(key) > now]
    return {key.decode("utf-8", "surrogatepass") for key in keys}


def find_reserved(store: Store) -> dict[int, set[int]]:
    """Return the sequences of the messages that open commits will delete, by queue number.

    An open commit is recorded but not completed.
    """
    found: defaultdict[int, set[int]] = defaultdict(set)
    for _, value in scan_commits(store):
        for part in decode_commit(value).reserved:
            found[part.number].update(part.sequences)
    return found
