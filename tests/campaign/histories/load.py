# SPDX-License-Identifier: Apache-2.0
"""The workers of a history: producers, claimers, poppers, readers and strangers, side by side for a bounded time.

Two projects use the same queue names. ``work`` has all kinds of workers and delays; ``log`` has producers and a reader
alone, so that nothing hides what a reader by markers misses. Each worker is a thread; a crew is what one process runs.
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
# Seconds after its claim's end at which a late holder comes back.
LATENESS = 0.15
# What each worker takes at least, however long it takes: time alone proves nothing on a slow machine.
TURNS = 20
# Seconds in which a process must have opened the store.
START = 90.0
# Seconds in which it must have taken them.
OVERTIME = 90.0


@dataclass(frozen=True)
class Profile:
    """How long things live and how fast workers go. Of the pairs one is taken at random; ``pace`` is in seconds."""

    message_ttls: tuple[float, ...]
    claim_ttls: tuple[float, ...]
    delays: tuple[float, ...]
    grace: float
    pace: float
    page: int = 20
    posts: int = 20000
    """What one producer posts at most, in messages."""
    patience: float = LINGER + 5
    """Seconds beyond the longest delay in which a drain must have met everything, late effects of lost calls too."""
    refused_ttl: float | None = None
    """A message ttl that the target refuses; None if it refuses nothing."""


# Some claims last: on a busy machine those of a second lapse before they are renewed.
STORAGE = Profile(message_ttls=(2, 5, 3600, 3600), claim_ttls=(1, 2, 10), delays=(0, 0, 0, 1, 3), grace=1, pace=0.01)
HTTP = Profile(
    message_ttls=(60, 3600), claim_ttls=(60, 300), delays=(0, 0, 0, 1, 3), grace=60, pace=0.02, refused_ttl=1
)
# For a store whose clock runs at ``BRISK_SPEED``: the seconds are those of the test.
BRISK_SPEED = 10
BRISK = Profile(message_ttls=(0.3, 600), claim_ttls=(0.2, 0.3), delays=(0, 0, 0.3), grace=0.1, pace=0.002, patience=1)


def queues(project_suffix: str = "") -> list[QueueRef]:
    """Those of one run: ``project_suffix`` ends its project ids."""
    return [QueueRef(project + project_suffix, name) for project in PROJECTS for name in ("work", "log")]


class Shift:
    """How long workers work: for so many seconds, or until somebody sets ``until`` (on the monotonic clock) to now.

    However short that is, each worker takes ``TURNS`` turns, if ``OVERTIME`` is enough for them.
    """

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + seconds

    def goes_on(self, turns: int) -> bool:
        late = time.monotonic() - self.until
        return late < 0 or (turns < TURNS and late < OVERTIME)

    def end(self) -> None:
        self.until = time.monotonic()


class Worker(ABC):
    """Takes turns on one queue while its shift goes on."""

    def __init__(self, target: Target, profile: Profile, shift: Shift, queue: QueueRef, number: int) -> None:
        self.calls: list[Call] = []
        self.name = f"{type(self).__name__.lower()}-{queue.project}-{queue.name}-{number}"
        self.client = Client(target, self.name, self.calls)
        self.profile = profile
        self.shift = shift
        self.queue = queue
        self.random = random.Random(self.name)

    def run(self) -> list[Call]:
        """Work; the calls."""
        self.begin()
        turns = 0
        while self.shift.goes_on(turns) and self.turn() is not False:
            turns += 1
            time.sleep(self.random.uniform(0, 2 * self.profile.pace))
        self.finish()
        return self.calls

    def begin(self) -> None:  # noqa: B027 (most have nothing to do)
        """What is to do before the first turn."""

    @abstractmethod
    def turn(self) -> bool | None:
        """One unit of work; False ends it."""

    def finish(self) -> None:  # noqa: B027 (most have nothing to do)
        """What is left to do after the last turn."""


class Producer(Worker):
    """Posts one to five messages at a time, and now and then a batch of which the last message is refused."""

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
    """Posts to a log: nothing is delayed, nothing expires."""

    def message(self) -> New:
        return super().message()._replace(ttl=max(self.profile.message_ttls), delay=0)


class Claimer(Worker):
    """Claims a few messages, then does one of the things that holders do; some come back after their claim's end."""

    def begin(self) -> None:
        self.late: list[tuple[float, str, list[Seen]]] = []
        """Who comes back, when: the moment, the claim and what it held."""

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
        """And come back at once, too late."""
        self.client.release(self.queue, claim)
        if self.random.random() < 0.3:
            self.come_late(claim, held)

    def let_lapse(self, claim: str, held: list[Seen], ttl: float) -> None:
        self.late = sorted([*self.late, (time.monotonic() + ttl + LATENESS, claim, held)])

    def come_late(self, claim: str, held: list[Seen]) -> None:
        """A late holder tries everything; it must not take a message from anyone."""
        doing = self.random.randrange(3)
        if doing == 0:
            self.client.renew(self.queue, claim, max(self.profile.claim_ttls), self.profile.grace)
        elif doing == 1:
            self.client.release(self.queue, claim)
        else:
            self.client.delete(self.queue, held[0], claim)


class Popper(Worker):
    """Pops, at leisure, so that something is left to claim."""

    def turn(self) -> bool | None:
        self.client.pop(self.queue, self.random.randint(1, 3))
        time.sleep(4 * self.profile.pace)
        return None


class Reader(Worker):
    """Walks by markers, everything shown, and reads on to the end when its time is over."""

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
    """Looks at what is free and deletes it by id in the other project, which must do nothing, or under no claim."""

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


# On each queue ``work``.
CREW = [Producer, Producer, Claimer, Claimer, Claimer, Popper, Popper, Reader, Stranger]
# On each queue ``log``.
SCRIBES = [Recorder, Recorder, Recorder, Reader]


def neighbour(project: str) -> str:
    """The other project of the same run."""
    one, other = PROJECTS
    return project.replace(one, other) if project.startswith(one) else project.replace(other, one)


def roster(project_suffix: str) -> list[tuple[type[Worker], QueueRef, int]]:
    """All workers of a run: what they are, where, and their numbers."""
    kinds = {"work": CREW, "log": SCRIBES}
    return [(kind, queue, number) for queue in queues(project_suffix) for number, kind in enumerate(kinds[queue.name])]


def labour(
    target: Target, profile: Profile, shift: Shift, share: int = 0, shares: int = 1, project_suffix: str = ""
) -> list[Call]:
    """Let every ``shares``-th worker work in a thread of its own; their calls."""
    chosen = roster(project_suffix)[share::shares]
    workers = [kind(target, profile, shift, queue, number) for kind, queue, number in chosen]
    with ThreadPoolExecutor(len(workers)) as threads:
        return [call for calls in threads.map(lambda worker: worker.run(), workers) for call in calls]


def prepare(target: Target, project_suffix: str = "") -> None:
    for queue in queues(project_suffix):
        target.prepare(queue, delayed=queue.name == "work")


def clear(target: Target, project_suffix: str) -> None:
    """Remove what is left of a run that was checked."""
    for queue in queues(project_suffix):
        target.remove(queue)


def finish(target: Target, profile: Profile, project_suffix: str = "", quiet: float = 0) -> list[Call]:
    """On the quiet store: list everything, release every claim that a listing shows, and claim until all was met.

    ``quiet`` seconds lie between the releases and the claims: so long a server may overlook what another one released.
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
    """Give back what a listing shows in the hands of any claim but one's ``own``."""
    for claim in {message.claim for message in listed if message.claim} - own:
        client.release(queue, claim)


def walk(client: Client, queue: QueueRef, limit: int, which: str) -> list[Seen]:
    """The whole listing; a page without an answer is asked for again."""
    listed: list[Seen] = []
    marker, full = "", True
    while full:
        page = client.page(queue, marker, limit, f"{which} listing of {queue.project}/{queue.name}")
        if page:
            listed, marker, full = listed + page[0], page[1], len(page[0]) == limit
    return listed


def drain(client: Client, queue: QueueRef, profile: Profile, listed: Sequence[Seen]) -> None:
    """Claim until all were met that are still there, or until patience ends: the rest is stuck.

    A claim whose answer was lost may take effect after the first listing and hold what it took for minutes. So each
    further listing releases what it shows in such hands.
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
    """``labour`` for so long, shared by processes, each with the store opened for itself before any begins."""
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
    """What a process of ``labour_apart`` does."""
    with StorageTarget(connect(uri)) as target:
        pipe.send([])
        pipe.send(labour(target, profile, Shift(pipe.recv()), share, shares, project_suffix))


def report(pipe: Connection, within: float) -> Sequence[Call]:
    assert pipe.poll(within), "a crew hangs"
    calls: Sequence[Call] = pipe.recv()
    return calls
