# SPDX-License-Identifier: Apache-2.0
"""One attempt at a commit: a script that does it, or decides it."""

from collections.abc import Sequence
from typing import Final

from zq.errors import CommitTooLarge
from zq.model import Bounds, Commit, Committed, QueueRef
from zq.storage.redis import layout, opened, scripts, stages
from zq.storage.redis.layout import Block
from zq.storage.redis.lines import Reply
from zq.storage.redis.opened import CAPACITY, Open
from zq.storage.redis.refusals import checked
from zq.storage.redis.store import Store

RESTAGED: Final = [b"restaged"]
LARGE: Final = [b"large"]


class Attempt:
    """A commit at its moment, in ms."""

    def __init__(self, store: Store, commit: Commit, moment: int, bounds: Bounds) -> None:
        self._store = store
        self._commit = commit
        self._moment = moment
        self._bounds = bounds
        self._whole = layout.whole(commit.project)
        self._held = list(dict.fromkeys(commit.settle))
        self._names = list(dict.fromkeys(commit.publish))
        self._lists = list(dict.fromkeys((item.queue, item.history) for item in self._held))
        """What is to be deleted: a list for each queue, and for each time that its history is kept."""

    def run(self) -> Committed:
        """The commit, done or open. Raises as the verb does."""
        ends = self._moment + self._commit.ttl * 1000
        self._store.expect(self._whole, ends, self._moment)
        may_open = False
        while True:
            packed = self._staged()
            reply = self._run(packed, ends, self._open(packed) if may_open else None)
            if reply == LARGE:
                opened.announce(self._store, self._commit, self._moment)
                may_open = True
            elif reply != RESTAGED:
                return self._told(reply)

    def _told(self, reply: Reply) -> Committed:
        if isinstance(reply, list) and reply[0] == b"much":
            most = f"{self._bounds.most} messages together; this one has {int(reply[1])}"
            raise CommitTooLarge(f"A commit may publish and delete {most}.")
        told = checked(reply)
        return stages.committed(told[2:], replayed=told[:1] == b"\1", is_open=told[1:2] == b"\1")

    def _run(self, packed: Sequence[bytes], ends: int, to_open: Open | None) -> Reply:
        commit, targets = self._commit, self._targets(packed)
        fence = (layout.text(commit.fence.name), commit.fence.epoch) if commit.fence else (b"", 0)
        sizes = (fence[1], len(self._names), len(self._held), len(targets))
        bounds = (self._bounds.step, self._bounds.most, CAPACITY, len(self._lists))
        terms = [b"%d" % self._moment, layout.text(commit.producer), b"%d" % commit.batch, b"%d" % ends, fence[0]]
        terms += [b"%d" % number for number in (*sizes, *bounds)]
        terms.append(to_open.packed if to_open is not None else b"")
        for name, stage in zip(self._names, packed, strict=True):
            terms += [layout.text(name), stage, b"%d" % commit.expected.get(name, -1)]
        terms += [b"%d" % history for _, history in self._lists]
        numbers = {place: b"%d" % number for number, place in enumerate(self._lists)}
        for item in self._held:
            terms += [layout.text(item.claim), numbers[item.queue, item.history]]
        terms += [layout.full(target) for target in targets]
        more = [layout.keys(self._whole).transactions]
        more += [layout.content(commit.project, name) for name in self._names]
        more += [block for queue, history in self._lists for block in self._claimed(queue, history)]
        more += [layout.keys(target).target for target in targets]
        if to_open is not None:
            more += [layout.opened(commit.project, commit.producer, number) for number in range(to_open.phases)]
        return self._store.run(scripts.COMMIT, self._whole, *terms, more=more)

    def _open(self, packed: Sequence[bytes]) -> Open:
        """What is to be kept of the commit, if it is decided only."""
        claims = [(layout.full(queue), history) for queue, history in self._lists]
        return Open(b"%d" % self._commit.batch, claims, list(packed))

    def _claimed(self, queue: QueueRef, history: int) -> list[Block]:
        return [layout.keys(queue).target, *self._store.history(queue, history, self._moment)]

    def _staged(self) -> list[bytes]:
        """What is kept of each stage; b"" for one that is not there."""
        if not self._names:
            return []
        keys = layout.keys(self._whole)
        names = [layout.text(name) for name in self._names]
        found = self._store.port.command(keys.anchor, b"HMGET", keys.stages, *names)
        return [stage or b"" for stage in found]

    def _targets(self, packed: Sequence[bytes]) -> list[QueueRef]:
        """The queues that the stages hold messages for; the sweeper knows when these will expire."""
        lives: dict[str, int] = {}
        for stage in packed:
            for name, least in stages.least_lives(stage).items():
                lives[name] = min(least, lives.get(name, least))
        return opened.expect(self._store, self._commit.project, lives, self._moment)
