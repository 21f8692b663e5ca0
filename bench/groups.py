# SPDX-License-Identifier: Apache-2.0
"""Costs of grouped queues (decision 0129): ``python -m bench.groups [--store rocksdb|redis|memory|mongodb]``.

Claims of ten messages from an ungrouped, an ordered and a fair queue, with the same messages of 10,000 groups in turn;
``--each``: messages of each group. With ``--behind N``: posts, claims and deletes of ten messages of other groups in a
queue with a busy group of N waiting messages, and in a queue without it. The command asserts nothing.

Times are microseconds, medians of the rounds; ``here``: processor time of this process, ``store``: that of the store's
own process; ``ratio``: the rate relative to the first queue, by both together, by the store's time, and by elapsed
time.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.sides import STORES, on_store
from zq.model import ClaimRequest, Draft, Grouping, Lease, QueueRef, new_ids
from zq.storage import connect
from zq.storage.api import Storage

TEN: Final = 10
BODY: Final = b'{"some": "' + b"x" * 90 + b'"}'
BATCH: Final = 1000
LONG: Final = 86_400
BUSY: Final = "busy"


class Spent(NamedTuple):
    """Mean microseconds of one call in a round."""

    here: float
    store: float
    elapsed: float

    @property
    def both(self) -> float:
        return self.here + self.store


class Queue:
    """A queue of an open store, and the times of its rounds by verb."""

    def __init__(self, storage: Storage, name: str, grouping: Grouping, pids: Sequence[int] = ()) -> None:
        self.storage, self.ref, self._pids = storage, QueueRef("bench", name), pids
        self.rounds: dict[str, list[Spent]] = {}
        self._at = 0
        storage.queues.create(self.ref, b"{}", grouping)

    def post(self, groups: Sequence[str]) -> None:
        """Post a message of each group."""
        now = self.storage.now()
        drafts = [
            Draft(id, BODY, LONG, 0, "bench", group=group)
            for id, group in zip(new_ids(len(groups), now), groups, strict=True)
        ]
        self.storage.messages.post(self.ref, drafts, now)

    def fill(self, groups: int, each: int) -> None:
        """Post ``each`` messages of each group, in turn."""
        for _ in range(each):
            for first in range(0, groups, BATCH):
                self.post([f"group-{number}" for number in range(first, min(first + BATCH, groups))])

    def busy(self, behind: int) -> None:
        """Post a group whose first message is claimed, with ``behind`` messages after it."""
        self.post([BUSY])
        self.claim()
        for first in range(0, behind, BATCH):
            self.post([BUSY] * min(BATCH, behind - first))

    def claim(self) -> tuple[str, list[str]]:
        """Claim ten messages and return the claim's id and the messages' ids."""
        now = self.storage.now()
        (name,) = new_ids(1, now)
        claim = self.storage.claims.create(self.ref, ClaimRequest(Lease(name, LONG, 60), TEN), now).claim
        assert claim is not None, "The queue ran dry."
        return name, [message.id for message in claim.messages]

    def delete(self, claim: tuple[str, list[str]]) -> None:
        self.storage.messages.delete(self.ref, claim[1], self.storage.now(), [claim[0]])

    def timed(self, verb: str, calls: Sequence[Callable[[], object]]) -> list[object]:
        """Run all calls of a round, record their times and return their results."""
        store, here, began = self._of_store(), time.process_time(), time.perf_counter()
        answers = [call() for call in calls]
        ended, here = time.perf_counter(), time.process_time() - here
        scale = 1e6 / len(calls)
        store = self._of_store() - store
        self.rounds.setdefault(verb, []).append(Spent(here * scale, store * scale, (ended - began) * scale))
        return answers

    def turn(self, calls: int, groups: int) -> None:
        """Run a round of each verb, which leaves the queue as it was."""
        names = [
            [f"group-{number % groups}" for number in range(first, first + TEN)]
            for first in range(self._at, self._at + calls * TEN, TEN)
        ]
        self._at += calls * TEN
        self.timed("post", [lambda some=some: self.post(some) for some in names])
        claims = self.timed("claim", [self.claim] * calls)
        self.timed("delete", [lambda claim=claim: self.delete(claim) for claim in claims])

    def _of_store(self) -> float:
        """Return the processor time of the store's processes in seconds, over all their threads."""
        tasks = [task for pid in self._pids for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def opened(store: str) -> Iterator[tuple[Storage, Sequence[int]]]:
    """Yield an empty store, and the processes of its server."""
    with nullcontext(("memory:", "", ())) if store == "memory" else on_store(store) as (uri, _, pids):
        storage = connect(uri)
        try:
            yield storage, pids
        finally:
            storage.close()


def report(title: str, verb: str, queues: dict[str, Queue]) -> None:
    """Print the rows of a verb."""
    first = next(iter(queues.values())).rounds[verb]
    for name, queue in queues.items():
        its = queue.rounds[verb]
        here, store, elapsed = (median(values) for values in zip(*its, strict=True))
        cells = [f"{figure:.0f}" for figure in (here, store, elapsed)]
        for of in ("both", "store", "elapsed"):
            ratios = [getattr(a, of) / getattr(b, of) for a, b in zip(first, its, strict=True) if getattr(b, of)]
            cells.append(f"{median(ratios):.2f}" if ratios else "")
        print(f"| {title}, {name} | " + " | ".join(cells) + " |", flush=True)


def kinds(arguments: argparse.Namespace, each: int) -> None:
    """Measure claims of the three kinds of queues."""
    with opened(arguments.store) as (storage, pids):
        queues = {str(kind) or "ungrouped": Queue(storage, f"q-{kind}", kind, pids) for kind in Grouping}
        for queue in queues.values():
            queue.fill(arguments.groups, each)
        calls = min(arguments.calls, arguments.groups * each * 3 // 4 // TEN // arguments.rounds)
        for turn in range(arguments.rounds):
            for queue in list(queues.values())[:: -1 if turn % 2 else 1]:
                queue.timed("claim", [queue.claim] * calls)
        report(f"claim of ten, {each} of each group", "claim", queues)


def behind(arguments: argparse.Namespace) -> None:
    """Measure all verbs in a queue with a busy group."""
    with opened(arguments.store) as (storage, pids):
        queues = {
            f"{count:,} behind a busy group": Queue(storage, f"q-{count}", Grouping.ORDERED, pids)
            for count in (0, arguments.behind)
        }
        for queue, count in zip(queues.values(), (0, arguments.behind), strict=True):
            queue.busy(count)
        for turn in range(arguments.rounds):
            for queue in list(queues.values())[:: -1 if turn % 2 else 1]:
                queue.turn(arguments.calls, arguments.groups)
        for verb in ("post", "claim", "delete"):
            report(f"{verb} of ten", verb, queues)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=[*STORES, "memory"], default="rocksdb")
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--each", default="1,20")
    parser.add_argument("--behind", type=int, default=0)
    parser.add_argument("--calls", type=int, default=40, help="calls of a round")
    parser.add_argument("--rounds", type=int, default=16)
    arguments = parser.parse_args()
    print(f"| {arguments.store}, {arguments.groups:,} groups, µs | here | store | elapsed | ratio | store | elapsed |")
    print("|---|" + "--:|" * 6)
    if arguments.behind:
        behind(arguments)
    else:
        for each in arguments.each.split(","):
            kinds(arguments, int(each))


if __name__ == "__main__":
    main()
