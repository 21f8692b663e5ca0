# SPDX-License-Identifier: Apache-2.0
"""The workers of a history: producers, claimers, poppers, readers and strangers, in parallel for a bounded time.

Two projects use the same queue names. ``work`` has all kinds of workers and delays; ``log`` has only producers and a
reader, so that messages that a reader misses are noticed. Each worker is a thread; a crew consists of the workers of
one process.
"""

import itertools
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection

from tests.campaign.histories.checker import FINISHER
from tests.campaign.histories.history import Call, Client, New, Seen, Target
from tests.campaign.histories.targets import StorageTarget
from tests.campaign.histories.violations import LINGER
from zq.model import QueueRef
from zq.storage import connect

PROJECTS = ("acme", "umbrella")
# Ttl and grace of the claims of a drain.
GRIP = 60
# Seconds after the end of a claim at which a late consumer returns.
LATENESS = 0.15
# Minimum number of turns of each worker, because a time alone proves nothing on a slow machine.
TURNS = 20
# Seconds within which a process must have opened the store.
START = 90.0
# Seconds within which a worker must have taken its turns.
OVERTIME = 90.0


@dataclass(frozen=True)
class Profile:
    """Ttls, delays and pauses of workers. One value of a tuple is chosen at random; ``pace`` is in seconds."""

    message_ttls: tuple[float, ...]
    claim_ttls: tuple[float, ...]
    delays: tuple[float, ...]
    grace: float
    pace: float
    page: int = 20
    posts: int = 20000
    """Maximum number of messages of a producer."""
    patience: float = LINGER + 5
    """Seconds after the longest delay within which a drain must find all messages; lost calls may have late effects."""
    refused_ttl: float | None = None
    """A message ttl that the target rejects; None if it rejects no ttl."""


# Some claims are long: on a busy machine, claims of a second expire before their renewal.
STORAGE = Profile(message_ttls=(2, 5, 3600, 3600), claim_ttls=(1, 2, 10), delays=(0, 0, 0, 1, 3), grace=1, pace=0.01)
HTTP = Profile(
    message_ttls=(60, 3600), claim_ttls=(60, 300), delays=(0, 0, 0, 1, 3), grace=60, pace=0.02, refused_ttl=1
)
# For a store whose clock runs at ``BRISK_SPEED``; the values are seconds of the test.
BRISK_SPEED = 10
BRISK = Profile(message_ttls=(0.3, 600), claim_ttls=(0.2, 0.3), delays=(0, 0, 0.3), grace=0.1, pace=0.002, patience=1)


def queues(project_suffix: str = "") -> list[QueueRef]:
    """Return the queues of a run; ``project_suffix`` is the end of its project ids."""
    return [QueueRef(project + project_suffix, name) for project in PROJECTS for name in ("work", "log")]


class Shift:
    """The working time: a number of seconds, or until ``end`` is called.

    Each worker takes at least ``TURNS`` turns, if ``OVERTIME`` is sufficient.
    """

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def goes_on(self, turns: int) -> bool:
        late = time.monotonic() - self.until
        return late < 0 or (turns < TURNS and late < OVERTIME)

    def end(self) -> None:
        self.until = time.monotonic()


class Worker(ABC):
    """A worker that takes turns on one queue during its shift."""

    def __init__(self, target: Target, profile: Profile, shift: Shift, queue: QueueRef, number: int) -> None:
        self.calls: list[Call] = []
        self.name = f"{type(self).__name__.lower()}-{queue.project}-{queue.name}-{number}"
        self.client = Client(target, self.name, self.calls)
        self.profile = profile
        self.shift = shift
        self.queue = queue
        self.random = random.Random(self.name)

    def run(self) -> list[Call]:
        """Work, and return the calls."""
        self.begin()
        turns = 0
        while self.shift.goes_on(turns) and self.turn() is not False:
            turns += 1
            time.sleep(self.random.uniform(0, 2 * self.profile.pace))
        self.finish()
        return self.calls

    def begin(self) -> None:  # noqa: B027 (most have nothing to do)
        """Prepare the first turn."""

    @abstractmethod
    def turn(self) -> bool | None:
        """Do one unit of work; return False to stop."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """Finish the work after the last turn."""


class Producer(Worker):
    """A producer that posts one to five messages at a time, and sometimes a batch with a rejected last message."""

    def begin(self) -> None:
        self.serials = itertools.count()

    def turn(self) -> bool | None:
        messages = [self.message() for _ in range(self.random.randint(1, 5))]
        if self.profile.refused_ttl is not None and self.random.random() < 0.05:
            messages.append(self.message()._replace(ttl=self.profile.refused_ttl))
        self.client.post(self.queue, messages)
        time.sleep(4 * self.profile.pace)
        serial = int(messages[-1].name.rpartition("/")[2])
        return serial < self.profile.posts

    def message(self) -> New:
        name = f"{self.queue.project}/{self.queue.name}/{self.name}/{next(self.serials)}"
        ttl = self.random.choice(self.profile.message_ttls)
        return New(name, ttl, self.random.choice(self.profile.delays))


class Recorder(Producer):
    """A producer of a log: its messages have no delay and do not expire."""

    def message(self) -> New:
        return super().message()._replace(ttl=max(self.profile.message_ttls), delay=0)


class Claimer(Worker):
    """A consumer that claims a few messages and settles them in different ways, sometimes after the claim's end."""

    def begin(self) -> None:
        self.late: list[tuple[float, str, list[Seen]]] = []
        """Late returns: time, claim, and its messages."""

    def turn(self) -> bool | None:
        while self.late and self.late[0][0] < time.monotonic():
            self.come_late(*self.late.pop(0)[1:])
        ttl = self.random.choice(self.profile.claim_ttls)
        answer = self.client.claim(self.queue, ttl, self.profile.grace, self.random.randint(1, 5))
        if answer and answer[1]:
            doings = (self.delete_all, self.delete_some, self.renew, self.release, self.let_lapse, self.let_lapse)
            self.random.choice(doings)(*answer, ttl)
        return None

    def delete_all(self, claim: str, held: list[Seen], ttl: float) -> None:
        for message in held:
            self.client.delete(self.queue, message, claim)

    def delete_some(self, claim: str, held: list[Seen], ttl: float) -> None:
        self.delete_all(claim, held[1:], ttl)
        self.client.release(self.queue, claim)

    def renew(self, claim: str, held: list[Seen], ttl: float) -> None:
        ttl = self.random.choice(self.profile.claim_ttls)
        self.client.renew(self.queue, claim, ttl, self.profile.grace)
        time.sleep(self.random.uniform(0, 10 * self.profile.pace))
        self.client.renew(self.queue, claim, ttl, self.profile.grace)
        self.delete_some(claim, held, ttl)

    def release(self, claim: str, held: list[Seen], ttl: float) -> None:
        """Release the claim, and sometimes use it again too late."""
        self.client.release(self.queue, claim)
        if self.random.random() < 0.3:
            self.come_late(claim, held)

    def let_lapse(self, claim: str, held: list[Seen], ttl: float) -> None:
        self.late = sorted([*self.late, (time.monotonic() + ttl + LATENESS, claim, held)])

    def come_late(self, claim: str, held: list[Seen]) -> None:
        """Use an expired claim, which must not affect other consumers."""
        doing = self.random.randrange(3)
        if doing == 0:
            self.client.renew(self.queue, claim, max(self.profile.claim_ttls), self.profile.grace)
        elif doing == 1:
            self.client.release(self.queue, claim)
        else:
            self.client.delete(self.queue, held[0], claim)


class Popper(Worker):
    """A consumer that pops slowly, so that messages are left to claim."""

    def turn(self) -> bool | None:
        self.client.pop(self.queue, self.random.randint(1, 3))
        time.sleep(4 * self.profile.pace)
        return None


class Reader(Worker):
    """A reader that walks by markers over all messages, and reads to the end after its time is over."""

    def begin(self) -> None:
        self.marker = ""

    def turn(self) -> bool | None:
        page = self.client.page(self.queue, self.marker, self.profile.page, self.name)
        if page:
            self.marker = page[1]
        return None

    def finish(self) -> None:
        while self.calls and len(self.calls[-1].seen) == self.profile.page:
            self.turn()


class Stranger(Worker):
    """A client that deletes ready messages by id, without a claim or in the other project, which has no effect."""

    def turn(self) -> bool | None:
        page = self.client.page(self.queue, "", self.profile.page)
        if page and page[0]:
            elsewhere = self.queue._replace(project=neighbour(self.queue.project))
            for message in self.random.sample(page[0], min(3, len(page[0]))):
                self.client.delete(elsewhere, message)
            if self.random.random() < 0.3:
                self.client.delete(self.queue, self.random.choice(page[0]))
        time.sleep(4 * self.profile.pace)
        return None


# Workers on each queue ``work``.
CREW = [Producer, Producer, Claimer, Claimer, Claimer, Popper, Popper, Reader, Stranger]
# Workers on each queue ``log``.
SCRIBES = [Recorder, Recorder, Recorder, Reader]


def neighbour(project: str) -> str:
    """Return the other project of the run."""
    one, other = PROJECTS
    return project.replace(one, other) if project.startswith(one) else project.replace(other, one)


def roster(project_suffix: str) -> list[tuple[type[Worker], QueueRef, int]]:
    """Return all workers of a run: class, queue and number."""
    kinds = {"work": CREW, "log": SCRIBES}
    return [(kind, queue, number) for queue in queues(project_suffix) for number, kind in enumerate(kinds[queue.name])]


def labour(
    target: Target, profile: Profile, shift: Shift, share: int = 0, shares: int = 1, project_suffix: str = ""
) -> list[Call]:
    """Run every ``shares``-th worker in its own thread and return their calls."""
    chosen = roster(project_suffix)[share::shares]
    workers = [kind(target, profile, shift, queue, number) for kind, queue, number in chosen]
    with ThreadPoolExecutor(len(workers)) as threads:
        return [call for calls in threads.map(lambda worker: worker.run(), workers) for call in calls]


def prepare(target: Target, project_suffix: str = "") -> None:
    for queue in queues(project_suffix):
        target.prepare(queue, delayed=queue.name == "work")


def clear(target: Target, project_suffix: str) -> None:
    """Remove the queues of a run that was checked."""
    for queue in queues(project_suffix):
        target.remove(queue)


def finish(target: Target, profile: Profile, project_suffix: str = "", quiet: float = 0) -> list[Call]:
    """List all messages of the quiet store, release all claims, and claim until all messages were found.

    ``quiet`` is the number of seconds between releases and claims: a server may overlook another server's release for
    that time.
    """
    calls: list[Call] = []
    client = Client(target, FINISHER, calls)
    listings = {queue: walk(client, queue, profile.page, "first") for queue in queues(project_suffix)}
    for queue, listed in listings.items():
        release_held(client, queue, listed, set())
    time.sleep(quiet)
    for queue, listed in listings.items():
        drain(client, queue, profile, listed)
    return calls


def release_held(client: Client, queue: QueueRef, listed: Sequence[Seen], own: set[str]) -> None:
    """Release all claims of a listing that are not in ``own``."""
    for claim in {message.claim for message in listed if message.claim} - own:
        client.release(queue, claim)


def walk(client: Client, queue: QueueRef, limit: int, which: str) -> list[Seen]:
    """Return the whole listing; repeat a page without a response."""
    listed: list[Seen] = []
    marker, full = "", True
    while full:
        page = client.page(queue, marker, limit, f"{which} listing of {queue.project}/{queue.name}")
        if page:
            listed, marker, full = listed + page[0], page[1], len(page[0]) == limit
    return listed


def drain(client: Client, queue: QueueRef, profile: Profile, listed: Sequence[Seen]) -> None:
    """Claim until all remaining messages were found or the time is over; the rest is stuck.

    A claim with a lost response may take effect after the first listing and hold its messages for minutes. Each further
    listing therefore releases such claims.
    """
    deadline = time.monotonic() + max(profile.delays) + profile.patience
    met: set[str] = set()
    own: set[str] = set()
    for number in itertools.count(1):
        while (answer := client.claim(queue, GRIP, GRIP, 20)) and answer[1]:
            own.add(answer[0])
            met |= {message.name for message in answer[1]}
        if met.issuperset(message.name for message in listed) or time.monotonic() > deadline:
            return
        time.sleep(0.1)
        listed = walk(client, queue, profile.page, f"{number}th further")
        release_held(client, queue, listed, own)


def labour_apart(uri: str, profile: Profile, seconds: float, processes: int, project_suffix: str = "") -> list[Call]:
    """Run ``labour`` in several processes; each opens the store before any of them starts."""
    spawn = get_context("spawn")
    crews = []
    try:
        for share in range(processes):
            ours, theirs = spawn.Pipe()
            args = (theirs, uri, profile, share, processes, project_suffix)
            crew = spawn.Process(target=crew_main, args=args, daemon=True)
            crew.start()
            theirs.close()
            crews.append((crew, ours))
        for _, ours in crews:
            assert report(ours, START) == [], "a crew is ready"
        for _, ours in crews:
            ours.send(seconds)
        return [call for _, ours in crews for call in report(ours, seconds + OVERTIME + 60)]
    finally:
        for crew, ours in crews:
            ours.close()
            crew.join(5)
            crew.kill()
            crew.join()


def crew_main(pipe: Connection, uri: str, profile: Profile, share: int, shares: int, project_suffix: str) -> None:
    """Run the workers of one process of ``labour_apart``."""
    with StorageTarget(connect(uri)) as target:
        pipe.send([])
        pipe.send(labour(target, profile, Shift(pipe.recv()), share, shares, project_suffix))


def report(pipe: Connection, within: float) -> Sequence[Call]:
    assert pipe.poll(within), "a crew hangs"
    calls: Sequence[Call] = pipe.recv()
    return calls
