# SPDX-License-Identifier: Apache-2.0
"""Every verb in any order, on a store and on the oracle at once: both must answer alike, to the last field.

One store serves all examples; each example has two fresh projects, whose names differ by a slash only, with two queues
each. Time moves by steps, and to the very moments at which something falls due, lapses or expires.
"""

from collections.abc import Callable, Sequence
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from tests.model.oracle import Oracle
from zq.clock import ManualClock
from zq.errors import ZqError
from zq.model import Claim, DeadLetters, Draft, Lease, Message, Messages, Page, QueueRef, View
from zq.storage import connect

EVERYTHING = View(claimed=True, delayed=True)
UNKNOWN = "unknown"
EXAMPLES = count()

QUEUES = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3])
TTLS = st.sampled_from([1, 5, 60, 300, 3600])
DELAYS = st.sampled_from([0, 0, 0, 1, 5, 60, 400])
LEASES = st.sampled_from([1, 5, 60, 300])
GRACES = st.sampled_from([0, 5, 60])
CLIENTS = st.sampled_from(["alice", "bob"])
BATCHES = st.one_of(
    st.lists(st.tuples(TTLS, DELAYS, CLIENTS), min_size=1, max_size=4),
    st.tuples(st.tuples(TTLS, DELAYS, CLIENTS), st.sampled_from([70, 150])).map(lambda drawn: [drawn[0]] * drawn[1]),
)
LIMITS = st.sampled_from([1, 2, 3, 10, 200, 200])
VIEWS = st.builds(View, st.sampled_from(["", "", "alice"]), st.booleans(), st.booleans())
PICKS = st.integers(0, 40)
RIGHTS = st.sampled_from(["none", "holder", "holder", "any", "unknown"])
STEPS = st.sampled_from([0.001, 0.5, 1, 4.999, 60, 400, 4000])


class Holder:
    """A store that can be opened anew, and the clock of its users."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.storage = connect(uri)
        self.clock = ManualClock(self.storage.now())

    def reopen(self) -> None:
        self.storage.close()
        self.storage = connect(self.uri)


class StoreMachine(RuleBasedStateMachine):
    """A store beside its oracle."""

    def __init__(self, holder: Holder) -> None:
        super().__init__()
        self.holder = holder
        self.clock = holder.clock
        self.oracle = Oracle()
        example = next(EXAMPLES)
        projects = (f"p{example}", f"p{example}/")
        self.queues = [QueueRef(project, name) for project in projects for name in ("jobs", "dead")]
        self.watchful = example % 2 == 0
        self.serials = {queue.project: count(1) for queue in self.queues}
        self.ids: list[str] = []
        self.claims: list[str] = []
        self.markers: dict[QueueRef, dict[int, int]] = {queue: {} for queue in self.queues}
        """The store's sequences by the oracle's."""

    @property
    def now(self) -> float:
        return self.clock.now()

    @rule(at=QUEUES, batch=BATCHES)
    def post(self, at: int, batch: Sequence[tuple[int, int, str]]) -> None:
        project = self.queues[at].project
        drafts = [
            Draft(f"{next(self.serials[project]):032x}", b"%d" % at, ttl, delay, client)
            for at, (ttl, delay, client) in enumerate(batch)
        ]
        self.ids += [draft.id for draft in drafts]
        self.agree(self.holder.storage.messages.post, self.oracle.post, self.queues[at], drafts, self.now)

    @rule(at=QUEUES, pick=PICKS, limit=LIMITS, view=VIEWS)
    def page(self, at: int, pick: int, limit: int, view: View) -> None:
        """From the start, or after any marker that the store has given, whatever became of its message."""
        queue = self.queues[at]
        markers = [(0, 0), *self.markers[queue].items()] if pick % 2 else [(0, 0)]
        ours, theirs = markers[-1 - pick % len(markers)]
        told = self.holder.storage.messages.list(queue, theirs, limit, view, self.now)
        assert plain(told) == plain(self.oracle.list(queue, ours, limit, view, self.now))
        assert told.next == (str(told.items[-1].sequence) if told.items else None)
        self.learn(queue, told.items)

    @rule(at=QUEUES, picks=st.lists(PICKS, max_size=4))
    def get(self, at: int, picks: Sequence[int]) -> None:
        ids = [self.pick_id(pick) for pick in picks]
        found = self.agree(self.holder.storage.messages.get, self.oracle.get, self.queues[at], ids, self.now)
        self.learn(self.queues[at], found)

    @rule(at=QUEUES, limit=LIMITS, ttl=LEASES, grace=GRACES, reuse=PICKS)
    def claim(self, at: int, limit: int, ttl: int, grace: int, reuse: int) -> None:
        self.create_claim(at, limit, ttl, grace, reuse, None)

    @rule(
        at=QUEUES,
        limit=st.sampled_from([5, 10, 200]),
        ttl=LEASES,
        grace=GRACES,
        reuse=PICKS,
        most=st.sampled_from([0, 1, 1, 2, 3]),
        life=st.sampled_from([None, 5, 60, 9999]),
    )
    def claim_or_bury(self, at: int, limit: int, ttl: int, grace: int, reuse: int, most: int, life: int | None) -> None:
        """Dead letters go to the other queue of the project."""
        self.create_claim(at, limit, ttl, grace, reuse, DeadLetters(self.queues[at ^ 1], most, life))

    def create_claim(
        self, at: int, limit: int, ttl: int, grace: int, reuse: int, dead_letters: DeadLetters | None
    ) -> None:
        """Now and then under a name that was used before, unless a claim of that name lives."""
        queue = self.queues[at]
        name = self.pick_claim(reuse) if reuse % 4 == 0 else UNKNOWN
        if name == UNKNOWN or any(entry.held(self.now) and entry.claim == name for entry in self.everywhere()):
            name = f"claim.{len(self.claims)}"
            self.claims.append(name)
        lease = Lease(name, ttl, grace)
        claims = self.holder.storage.claims
        self.agree(claims.create, self.oracle.claim, queue, lease, limit, self.now, dead_letters)

    @rule(at=QUEUES, pick=PICKS)
    def claim_get(self, at: int, pick: int) -> None:
        claims, name = self.holder.storage.claims, self.pick_claim(pick)
        self.agree(claims.get, self.oracle.claim_get, self.queues[at], name, self.now)

    @rule(at=QUEUES, pick=PICKS, ttl=LEASES, grace=GRACES)
    def renew(self, at: int, pick: int, ttl: int, grace: int) -> None:
        lease = Lease(self.pick_claim(pick), ttl, grace)
        self.agree(self.holder.storage.claims.renew, self.oracle.renew, self.queues[at], lease, self.now)

    @rule(at=QUEUES, pick=PICKS)
    def release(self, at: int, pick: int) -> None:
        claims, name = self.holder.storage.claims, self.pick_claim(pick)
        self.agree(claims.release, self.oracle.release, self.queues[at], name, self.now)

    @rule(at=QUEUES, pick=PICKS, right=RIGHTS, other=PICKS)
    def delete(self, at: int, pick: int, right: str, other: int) -> None:
        id, queue = self.pick_id(pick), self.queues[at]
        claim = self.right_to(queue, id, right, other)
        self.agree(self.holder.storage.messages.delete, self.oracle.delete, queue, id, self.now, claim)

    @rule(at=QUEUES, picks=st.lists(PICKS, min_size=1, max_size=4), rights=st.none() | st.lists(RIGHTS, max_size=3))
    def delete_many(self, at: int, picks: Sequence[int], rights: Sequence[str] | None) -> None:
        ids, queue = [self.pick_id(pick) for pick in picks], self.queues[at]
        claims = rights and [self.right_to(queue, ids[0], right, picks[-1]) for right in rights]
        messages = self.holder.storage.messages
        self.agree(messages.delete_many, self.oracle.delete_many, queue, ids, self.now, claims)

    @rule(at=QUEUES, limit=LIMITS)
    def pop(self, at: int, limit: int) -> None:
        self.agree(self.holder.storage.messages.pop, self.oracle.pop, self.queues[at], limit, self.now)

    @rule(at=QUEUES, really=PICKS)
    def purge(self, at: int, really: int) -> None:
        if really % 3 == 0:
            self.agree(self.holder.storage.queues.purge, self.oracle.purge, self.queues[at])

    @rule(at=QUEUES, really=PICKS)
    def drop(self, at: int, really: int) -> None:
        if really % 3 == 0:
            self.agree(self.holder.storage.queues.delete, self.oracle.drop, self.queues[at])
            self.markers[self.queues[at]].clear()

    @rule(at=QUEUES)
    def stats(self, at: int) -> None:
        self.agree(self.holder.storage.queues.stats, self.oracle.stats, self.queues[at], self.now)

    @rule()
    def maintain(self) -> None:
        """Gives space back, and nothing that anybody can see changes."""
        assert self.holder.storage.maintain(self.now) >= 0
        self.agree_on_everything()

    @rule(seconds=STEPS)
    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.moments())
    @rule(pick=st.integers(0, 5), offset=st.sampled_from([-0.001, 0, 0, 0.001]))
    def tick_to(self, pick: int, offset: float) -> None:
        """To one of the next moments at which anything changes by itself, or to the millisecond beside it."""
        moments = self.moments()
        self.clock.advance(max(0, round(moments[min(pick, len(moments) - 1)] + offset - self.now, 3)))

    @rule()
    def agree_on_everything(self) -> None:
        """Existence, statistics and every view of every queue; projects with their queues."""
        storage = self.holder.storage
        for queue in self.queues:
            assert (storage.queues.get(queue) is not None) == (queue in self.oracle.queues)
            self.agree(storage.queues.stats, self.oracle.stats, queue, self.now)
            for view in (View(), View(claimed=True), View(delayed=True), EVERYTHING):
                page = self.agree(storage.messages.list, self.oracle.list, queue, 0, 100000, view, self.now)
                self.learn(queue, page.items)
            self.agree(storage.messages.get, self.oracle.get, queue, self.ids[-200:], self.now)
            for claim in self.claims[-3:]:
                self.agree(storage.claims.get, self.oracle.claim_get, queue, claim, self.now)
        for project in {queue.project for queue in self.queues}:
            assert storage.queues.count(project) == sum(queue.project == project for queue in self.oracle.queues)

    @invariant()
    def watch(self) -> None:
        """In every other example somebody looks on all the time: what a store remembers of that must not blind it."""
        if self.watchful:
            messages = self.holder.storage.messages
            self.agree(messages.list, self.oracle.list, self.queues[0], 0, 3, View(), self.now)

    def teardown(self) -> None:
        """The end of an example: the last word, and what the store holds beyond the examples stays small."""
        try:
            self.agree_on_everything()
        finally:
            for queue in self.queues:
                self.holder.storage.queues.delete(queue)

    def agree(self, theirs: Callable, ours: Callable, *arguments: object) -> object:
        """Both verbs with the same arguments: the same answer or the same refusal. The store's answer."""
        told = outcome(theirs, *arguments)
        assert plain(told) == plain(outcome(ours, *arguments))
        return told

    def learn(self, queue: QueueRef, messages: Messages) -> None:
        """Remember the store's sequences: a message keeps its own while it stays in its queue."""
        numbers = {entry.draft.id: entry.sequence for entry in self.oracle.queues.get(queue, [])}
        for message in messages:
            assert self.markers[queue].setdefault(numbers[message.id], message.sequence) == message.sequence

    def everywhere(self) -> list:
        return [entry for entries in self.oracle.queues.values() for entry in entries]

    def moments(self) -> list[float]:
        """What lies ahead, the nearest first."""
        entries = self.everywhere()
        ahead = {moment for entry in entries for moment in (entry.expires, entry.available, entry.ends)}
        return sorted(moment for moment in ahead if moment > self.now)

    def pick_id(self, pick: int) -> str:
        """One of the ids given so far, recent ones first."""
        return self.ids[-1 - pick % len(self.ids)] if self.ids else UNKNOWN

    def pick_claim(self, pick: int) -> str:
        return self.claims[-1 - pick % len(self.claims)] if self.claims else UNKNOWN

    def right_to(self, queue: QueueRef, id: str, right: str, other: int) -> str:
        """A claim to delete a message with."""
        if right == "holder":
            return "".join(entry.claim for entry in self.oracle.named(queue, [id], self.now))
        return {"none": "", "any": self.pick_claim(other), "unknown": UNKNOWN}[right]


class RestartingMachine(StoreMachine):
    """The same with a store that is closed and opened again at any time."""

    @rule(really=PICKS)
    def restart(self, really: int) -> None:
        if really % 2 == 0:
            self.holder.reopen()


def outcome(verb: Callable, *arguments: object) -> object:
    """What a verb answers, or the class of its refusal."""
    try:
        return verb(*arguments)
    except ZqError as refusal:
        return type(refusal)


def plain(answer: object) -> object:
    """An answer without the numbers that are the store's own: sequences give order, and pages know their next."""
    match answer:
        case Message():
            return structs.replace(answer, sequence=0)
        case Page():
            return [plain(message) for message in answer.items], answer.next is None
        case Claim():
            return structs.replace(answer, messages=[plain(message) for message in answer.messages])
        case list():
            return [plain(item) for item in answer]
    return answer
