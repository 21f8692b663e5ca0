# SPDX-License-Identifier: Apache-2.0
"""A store and its oracle: strategies that all machines share, and the comparison of results."""

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from msgspec import structs

from tests.model.entry import Entry
from tests.model.oracle import Oracle
from zq.clock import ManualClock
from zq.conformance.builders import configure
from zq.core.redelivery import AT_ONCE, MAX_CLAIM_COUNT, DeadLetters, Redelivery
from zq.errors import DraftsRepeated, Repeated, ZqError
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimResult,
    Draft,
    EndMessage,
    Fence,
    HistoryEntry,
    Lease,
    ListFilter,
    Message,
    MessageHandle,
    Messages,
    Move,
    Page,
    QueueRef,
    Stats,
)
from zq.model.expiry import Expiry
from zq.storage import connect

EVERYTHING = ListFilter(claimed=True, delayed=True)
FAR = 9_999_999_999.0
UNKNOWN = "unknown"
EXAMPLES = count()

QUEUES = st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3])
TTLS = st.sampled_from([1, 5, 60, 300, 3600])
DELAYS = st.sampled_from([0, 0, 0, 1, 5, 60, 400])
LEASES = st.sampled_from([1, 5, 60, 300])
GRACES = st.sampled_from([0, 5, 60])
CLIENTS = st.sampled_from(["alice", "bob"])
FEW = st.lists(st.tuples(TTLS, DELAYS, CLIENTS), min_size=1, max_size=4)
BATCHES = st.one_of(
    FEW,
    st.tuples(st.tuples(TTLS, DELAYS, CLIENTS), st.sampled_from([70, 150])).map(lambda drawn: [drawn[0]] * drawn[1]),
)
LIMITS = st.sampled_from([1, 2, 3, 10, 200, 200])
VIEWS = st.builds(ListFilter, st.sampled_from(["", "", "alice"]), st.booleans(), st.booleans())
PICKS = st.integers(0, 40)
RIGHTS = st.sampled_from(["none", "holder", "holder", "any", "unknown"])
STEPS = st.sampled_from([0.001, 0.5, 1, 4.999, 5, 30, 60, 400, 4000])
KEPT = st.sampled_from([0, 0, 60, 600, 9000])
"""Seconds for which finished messages stay in the history."""
LATER = st.none() | st.sampled_from([0, 1, 5, 60])
"""The delay of a release."""
WAITS = st.sampled_from(
    [AT_ONCE, AT_ONCE, AT_ONCE, Redelivery(5, cap=60), Redelivery(1, exponential=True, cap=3), Redelivery(60, cap=400)]
)
EXPIRIES = st.sampled_from(
    [Expiry(), Expiry(), Expiry(sweep=False), Expiry(delete_on_read=False), Expiry(delete_queue_size=1)]
)
EPOCHS = st.sampled_from(["none", "none", "none", "none", "last", "last", "old", "ahead"])


class Holder:
    """A store that can be reopened, and the clock of its users."""

    def __init__(self, uri: str, options: Mapping[str, object]) -> None:
        self.uri = uri
        self._options = options
        self.storage = connect(uri, options)
        self.clock = ManualClock(self.storage.now())

    def reopen(self) -> None:
        self.storage.close()
        self.storage = connect(self.uri, self._options)


class Pair(RuleBasedStateMachine):
    """A store and its oracle, with two new projects of two queues each."""

    def __init__(self, holder: Holder) -> None:
        super().__init__()
        self.holder = holder
        self.clock = holder.clock
        configure(holder.storage, Expiry())
        self.oracle = Oracle()
        example = next(EXAMPLES)
        projects = (f"p{example}", f"p{example}/")
        self.queues = [QueueRef(project, name) for project in projects for name in ("jobs", "dead")]
        self.serials = {queue.project: count(1) for queue in self.queues}
        self.ids: list[str] = []
        self.claims: list[str] = []
        self.handles: list[MessageHandle] = []
        """Handles that were returned, the latest last."""
        self.markers: dict[QueueRef, dict[int, int]] = {queue: {} for queue in self.queues}
        """The store's sequences by those of the oracle."""
        self.places: dict[QueueRef, dict[int, int]] = {queue: {} for queue in self.queues}
        """The store's history positions by those of the oracle."""

    @property
    def now(self) -> float:
        return self.clock.now()

    def drafts(self, at: int, batch: Sequence[tuple[int, int, str]]) -> list[Draft]:
        """Return messages with new ids for a queue."""
        serials = self.serials[self.queues[at].project]
        drafts = [
            Draft(f"{next(serials):032x}", b"%d" % index, ttl, delay, client, f"MD5:{index}" if delay else "", kept)
            for index, (ttl, delay, client) in enumerate(batch)
            for kept in [b'{"n": %d}' % index if client == "bob" else b""]
        ]
        self.ids += [draft.id for draft in drafts]
        return drafts

    def new_claim(self) -> str:
        self.claims.append(f"claim.{len(self.claims)}")
        return self.claims[-1]

    def supply(self, at: int, batch: Sequence[tuple[int, int, str]], ttl: int = 0, wait: Redelivery = AT_ONCE) -> None:
        """Post messages, and claim the ready ones if a ``ttl`` is given."""
        storage, queue = self.holder.storage, self.queues[at]
        self.agree(storage.messages.post, self.oracle.post, queue, self.drafts(at, batch), self.now)
        if ttl:
            lease = Lease(self.new_claim(), ttl, 5)
            self.agree(
                storage.claims.create, self.oracle.claim, queue, ClaimRequest(lease, 10, wait.delays()), self.now
            )

    def agree_on_claim(self, queue: QueueRef, request: ClaimRequest, dead: DeadLetters | None) -> None:
        """Claim messages once, and move those that were claimed too often to the dead-letter queue."""
        storage, now = self.holder.storage, self.now
        request = structs.replace(request, max_claims=dead and dead.max_claims)
        made = self.agree(storage.claims.create, self.oracle.claim, queue, request, now)
        if dead is not None and isinstance(made, ClaimResult) and made.spent:
            moves = [Move(id, dead.queue.name, dead.ttl, reason=MAX_CLAIM_COUNT) for id in made.spent]
            self.agree(storage.messages.move, self.oracle.move, queue, moves, now, dead.history)

    def agree(self, theirs: Callable, ours: Callable, *arguments: object) -> object:
        """Call both verbs with the same arguments, assert that result or error agree, and return the store's."""
        told = outcome(theirs, *arguments)
        assert plain(told) == plain(outcome(ours, *arguments))
        return told

    def learn(self, queue: QueueRef, messages: Messages) -> None:
        """Record the store's sequences; a message keeps its sequence while it stays in its queue."""
        numbers = {entry.draft.id: entry.sequence for entry in self.oracle.queues.get(queue, [])}
        for message in messages:
            assert self.markers[queue].setdefault(numbers[message.id], message.sequence) == message.sequence

    def learn_records(self, queue: QueueRef, told: Sequence[HistoryEntry], ours: Sequence[HistoryEntry]) -> None:
        """Record sequences and positions of entries that are otherwise equal."""
        for theirs, own in zip(told, ours, strict=True):
            numbers = [(self.markers, own.message.sequence, theirs.message.sequence)]
            if own.outcome:
                numbers.append((self.places, own.position, theirs.position))
            for known, mine, number in numbers:
                assert known[queue].setdefault(mine, number) == number

    def marker(self, known: dict[int, int], pick: int) -> tuple[int, int]:
        """Return the start, or any number that the store has returned, as the oracle's and the store's number."""
        numbers = [(0, 0), *known.items()] if pick % 2 else [(0, 0)]
        return numbers[-1 - pick % len(numbers)]

    def everywhere(self) -> list[Entry]:
        return [entry for entries in self.oracle.queues.values() for entry in entries]

    def moments(self) -> list[float]:
        """Return all future times of changes, in order."""
        ahead = {moment for entry in self.everywhere() for moment in (entry.expires, entry.available, entry.ends)}
        return sorted(moment for moment in ahead | self.oracle.ends() if moment > self.now)

    def pick_id(self, pick: int, queue: QueueRef | None = None) -> str:
        """Return an id, preferably a recent one; mostly one of a live message of the queue, if a queue is given."""
        living = self.oracle.living(queue, self.now) if queue and pick % 3 else []
        if living:
            return living[pick % len(living)].draft.id
        return self.ids[-1 - pick % len(self.ids)] if self.ids else UNKNOWN

    def pick_claim(self, pick: int) -> str:
        return self.claims[-1 - pick % len(self.claims)] if self.claims else UNKNOWN

    def live(self, project: str = "") -> list[tuple[QueueRef, str]]:
        """Return every live claim that has messages."""
        queues = [queue for queue in self.oracle.queues if project in ("", queue.project)]
        pairs = ((queue, entry) for queue in queues for entry in self.oracle.living(queue, self.now))
        return sorted({(queue, entry.claim) for queue, entry in pairs if entry.held(self.now)})

    def pick_held(self, at: int, pick: int, project: str = "") -> tuple[QueueRef, str]:
        """Return a queue and a claim, mostly a live one."""
        live = self.live(project)
        return live[pick % len(live)] if live and pick % 8 else (self.queues[at], self.pick_claim(pick))

    def pick_fence(self, project: str, epoch: str) -> Fence | None:
        last = self.oracle.fences.get((project, "job"), 0)
        number = {"last": last, "old": last - 1, "ahead": last + 1}.get(epoch, 0)
        return Fence("job", number) if number > 0 else None


def outcome(verb: Callable, *arguments: object) -> object:
    """Return the result of a verb, the first result if it is a repeat, or the class and message of its error."""
    try:
        return verb(*arguments)
    except Repeated as told:
        return Repeated, told.answer
    except DraftsRepeated as some:
        return DraftsRepeated, {id: told.answer for id, told in some.first.items()}
    except ZqError as refusal:
        return type(refusal), str(refusal)


def plain(answer: object) -> object:
    """Return a result without the numbers that the store chooses.

    Sequences only define the order, and pages contain their next marker.
    """
    match answer:
        case Message():
            return structs.replace(answer, sequence=0)
        case EndMessage():
            return structs.replace(answer, sequence=0)
        case Stats():
            return structs.replace(answer, oldest=plain(answer.oldest), newest=plain(answer.newest), entered=None)
        case HistoryEntry():
            return structs.replace(answer, message=plain(answer.message), position=0)
        case Page():
            return [plain(item) for item in answer.items], answer.next is None
        case ClaimResult():
            return structs.replace(answer, claim=plain(answer.claim))
        case Claim():
            return structs.replace(answer, messages=[plain(message) for message in answer.messages])
        case list():
            return [plain(item) for item in answer]
        case tuple():
            return tuple(plain(item) for item in answer)
    return answer
