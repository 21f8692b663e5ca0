# SPDX-License-Identifier: Apache-2.0
"""A model of numbered posts on MongoDB, and a search of every interleaving of its steps.

Two servers post to one queue, and a listing follows it or a purge empties it. For each attempt, a server chooses how
it gets its numbers (``zq.storage.mongodb.numbering``):

- *Shared*: the transaction first writes the document of the server's lane. A plain write outside the transaction then
  draws a range of numbers, and notes it as the lane's last range.
- *Exclusive*: the transaction writes the counter itself, and holds it until the transaction ends.

The store is a log of writes with a majority point. A change of the primary cuts the log somewhere behind that point
and ends every open transaction. A reader sees the log up to the majority point. The answer to a commit may be lost, and
a commit or a draw may be carried out after its server has given up.

``search`` returns the first violation of a law that it finds. A ``fault`` is a deliberate mistake in the protocol: a
search that does not find the violation that it causes proves nothing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

# The states of a writer.
IDLE, HELD, DRAWN, INSERTED, SENT, DONE = range(6)
LANES: Final = (0, 1)
# Messages on one page.
PAGE: Final = 2
# A post: its number of messages.
Posts = tuple[int, ...]
# A message: its number, and the writer.
Message = tuple[int, int]


class Entry(NamedTuple):
    """A write in the log.

    ``kind``: a draw "D", the commit of a shared "C" or an exclusive "X" transaction, the touch of a lane "T", the
    decision "G" or the carrying out "P" of a purge.
    """

    kind: str
    lane: int = 0
    group: int = 0
    first: int = 0
    count: int = 0
    post: tuple[int, int] = (0, 0)
    attempt: int = 0


class Open(NamedTuple):
    """An open transaction. It holds the counter if it is exclusive, else the lane."""

    exclusive: bool
    group: int = 0
    first: int = 0
    count: int = 0
    committing: bool = False


class Writer(NamedTuple):
    """A server: the posts that are left, the state of the first of them, and its numbers."""

    todo: Posts
    state: int = IDLE
    first: int = 0
    index: int = -1
    attempt: int = 0


class Range(NamedTuple):
    """The last range of a lane: its first number (0 = there is none), its group and its attempt."""

    first: int = 0
    group: int = 0
    attempt: int = 0


class View(NamedTuple):
    """A reader's view of the queue's document and the lanes: the last number, each lane's last range, its group."""

    last: int
    drawn: tuple[Range, ...]
    committed: tuple[int, ...]


class Wait(NamedTuple):
    """A range to settle, and the index of the touch of its lane in the log; -1 = not touched."""

    lane: int
    range: Range
    index: int = -1


class Reader(NamedTuple):
    """A listing that follows markers.

    - ``page``: the messages of a read that came before the view of the lanes.
    - ``waits``: the ranges to settle, and ``last``: the page's end.
    - ``settled``: for each lane, the last attempt that is known to have ended.
    - ``final``: the number up to which no message can appear any more, as far as the server knows.
    - ``restarts``: how often another server, which remembers nothing, may go on.
    """

    marker: int = 0
    seen: frozenset[Message] = frozenset()
    page: tuple[Message, ...] = ()
    view: View | None = None
    waits: tuple[Wait, ...] = ()
    last: int = 0
    settled: tuple[int, ...] = (0, 0)
    final: int = 0
    restarts: int = 0


class Purge(NamedTuple):
    """A purge, or another change of the queue that waits for open posts: 1 decided, 2 carried out, 3 answered."""

    state: int = 0
    bound: int = 0
    lanes: tuple[int, ...] = LANES


class LateDraw(NamedTuple):
    """A draw whose server has given up, and which may still be carried out."""

    lane: int
    attempt: int
    group: int
    count: int


class State(NamedTuple):
    log: tuple[Entry, ...]
    majority: int
    open: tuple[Open | None, ...]
    writers: tuple[Writer, ...]
    reader: Reader
    purge: Purge
    kills: int
    elections: int
    losses: int
    late: LateDraw | None = None


class Budget(NamedTuple):
    """How many transactions may be killed, primaries changed, draws carried out late, and readers restarted."""

    kills: int = 0
    elections: int = 0
    losses: int = 0
    restarts: int = 0


NO_FAILURES: Final = Budget()


def put(items: tuple, at: int, value: object) -> tuple:
    return (*items[:at], value, *items[at + 1 :])


def last_number(log: tuple[Entry, ...]) -> int:
    return max([one.first + one.count - 1 for one in log if one.kind in "DX"], default=0)


def view_of(log: tuple[Entry, ...]) -> View:
    drawn, committed = [Range()] * 2, [0] * 2
    for one in log:
        if one.kind == "D":
            drawn[one.lane] = Range(one.first, one.group, one.attempt)
        elif one.kind == "C":
            committed[one.lane] = one.group
    return View(last_number(log), tuple(drawn), tuple(committed))


def stored(log: tuple[Entry, ...]) -> list[Message]:
    """Return the messages that the log leaves, by number."""
    living: list[Message] = []
    for one in log:
        if one.kind in "CX":
            living += [(one.first + at, one.lane) for at in range(one.count)]
        elif one.kind == "P":
            living = [message for message in living if message[0] > one.first]
    return sorted(living)


class Model:
    """The protocol.

    Args:
        fault: A deliberate mistake; "" = none.
        purges: Search a purge instead of a listing.
        budget: What may fail.
        posts: The posts of each server.
        exclusive: The servers that may also post in exclusive mode.
    """

    def __init__(
        self,
        fault: str = "",
        *,
        purges: bool = False,
        budget: Budget = NO_FAILURES,
        posts: tuple[Posts, Posts] = ((2,), (1, 1)),
        exclusive: tuple[int, ...] = (),
    ) -> None:
        self._fault = fault
        self._purges = purges
        self._budget = budget
        self._posts = posts
        self._exclusive = exclusive

    def start(self) -> State:
        writers = tuple(Writer(todo) for todo in self._posts)
        kills, elections, losses, restarts = self._budget
        return State((), 0, (None, None), writers, Reader(restarts=restarts), Purge(), kills, elections, losses)

    def steps(self, s: State) -> Iterator[State]:
        for lane in LANES:
            yield from self._write(s, lane)
            transaction = s.open[lane]
            if transaction and s.kills:
                yield s._replace(open=put(s.open, lane, None), kills=s.kills - 1)
            if transaction and transaction.committing:
                yield self._committed(s, lane)
        yield from self._purge(s) if self._purges else self._read(s)
        if s.majority < len(s.log):
            yield s._replace(majority=s.majority + 1)
        if s.elections:
            for end in range(s.majority, len(s.log) + 1):
                yield self._elect(s, end)
        if s.late and not self._counter_is_held(s):
            late, done = s.late, s._replace(late=None)
            if self._is_newest(s, late.lane, late.attempt):
                first = last_number(s.log) + 1
                draw = Entry("D", late.lane, late.group, first, late.count, attempt=late.attempt)
                done = done._replace(log=(*s.log, draw))
            yield done

    def violation(self, s: State) -> str:
        commits = [one for one in s.log if one.kind in "CX"]
        if len({one.post for one in commits}) < len(commits):
            return "a post is stored twice"
        numbers = [one.first + at for one in commits for at in range(one.count)]
        if len(set(numbers)) < len(numbers):
            return "two messages have one number"
        if s.purge.state == 3 and any(number <= s.purge.bound for number, _ in stored(s.log)):
            return "a message appears after the answer to the purge that removed it"
        for message in stored(s.log[: s.majority]):
            if message[0] <= s.reader.marker and message not in s.reader.seen:
                return f"message {message[0]} appears behind the marker {s.reader.marker}"
        return ""

    def _elect(self, s: State, end: int) -> State:
        """The next primary has the log up to ``end``."""
        writers = tuple(
            w._replace(state=SENT, index=-1) if w.state == DONE and w.index >= end else w for w in s.writers
        )
        waits = tuple(wait._replace(index=wait.index if wait.index < end else -1) for wait in s.reader.waits)
        reader = s.reader._replace(waits=waits)
        elections = s.elections - 1
        return s._replace(log=s.log[:end], open=(None, None), writers=writers, reader=reader, elections=elections)

    def _writer(self, s: State, lane: int, **changes: object) -> State:
        return s._replace(writers=put(s.writers, lane, s.writers[lane]._replace(**changes)))

    def _opened(self, s: State, lane: int, transaction: Open | None) -> State:
        return s._replace(open=put(s.open, lane, transaction))

    def _counter_is_held(self, s: State) -> bool:
        if self._fault == "draws beside a held counter":
            return False
        return any(one is not None and one.exclusive for one in s.open)

    def _write(self, s: State, lane: int) -> Iterator[State]:
        w = s.writers[lane]
        early = self._fault == "draws before it holds the lane"
        if w.state == IDLE and w.todo:
            yield from self._draw(s, lane) if early else self._hold(s, lane)
            if lane in self._exclusive and not s.open[lane] and not self._counter_is_held(s):
                first = last_number(s.log) + 1
                advanced = self._opened(s, lane, Open(True, 0, first, w.todo[0]))
                yield self._writer(advanced, lane, state=DRAWN, first=first)
        elif w.state == HELD:
            yield from self._insert(s, lane) if early else self._draw(s, lane)
        elif w.state == DRAWN:
            yield from self._hold(s, lane) if early and not s.open[lane] else self._insert(s, lane)
        elif w.state == INSERTED and s.open[lane] is None:  # killed
            yield self._writer(s, lane, state=SENT)
        elif w.state == INSERTED:
            done = self._committed(s, lane)
            yield self._writer(done, lane, state=DONE, index=len(done.log) - 1)
            yield self._writer(done, lane, state=SENT)
            later = self._opened(s, lane, s.open[lane]._replace(committing=True))
            yield self._writer(later, lane, state=SENT)
        elif w.state == SENT and (s.open[lane] is None or self._fault == "looks while the transaction is open"):
            at = [index for index, one in enumerate(s.log) if one.post == (lane, len(w.todo))]
            yield self._writer(s, lane, state=DONE, index=at[0]) if at else self._writer(s, lane, state=IDLE)
        elif w.state == DONE and w.index < s.majority:
            yield self._writer(s, lane, state=IDLE, todo=w.todo[1:], index=-1)

    def _hold(self, s: State, lane: int) -> Iterator[State]:
        if s.open[lane] is None:
            opened = self._opened(s, lane, Open(False, view_of(s.log).committed[lane] + 1))
            yield self._writer(opened, lane, state=HELD, attempt=s.writers[lane].attempt + 1)

    def _draw(self, s: State, lane: int) -> Iterator[State]:
        """Draw numbers by a plain write, which is carried out whether or not the transaction still lives."""
        if self._counter_is_held(s):
            return
        w, group = s.writers[lane], view_of(s.log).committed[lane] + 1
        first, count = last_number(s.log) + 1, w.todo[0]
        draw = Entry("D", lane, group, first, count, attempt=w.attempt)
        yield self._writer(s._replace(log=(*s.log, draw)), lane, state=DRAWN, first=first)
        if s.losses and not s.late and w.state == HELD:  # no answer: end the transaction, and begin again
            late = LateDraw(lane, w.attempt, group, count)
            lost = self._opened(s._replace(late=late, losses=s.losses - 1), lane, None)
            yield self._writer(lost, lane, state=IDLE)

    def _is_newest(self, s: State, lane: int, attempt: int) -> bool:
        """Whether no later attempt of the lane has drawn; otherwise, a draw changes nothing."""
        drawn = [one.attempt for one in s.log if one.kind == "D" and one.lane == lane]
        return self._fault == "a late draw counts" or not drawn or max(drawn) < attempt

    def _insert(self, s: State, lane: int) -> Iterator[State]:
        w, transaction = s.writers[lane], s.open[lane]
        if transaction is None:
            yield self._writer(s, lane, state=IDLE)
        else:
            filled = transaction._replace(first=w.first, count=w.todo[0])
            yield self._writer(self._opened(s, lane, filled), lane, state=INSERTED)

    def _committed(self, s: State, lane: int) -> State:
        transaction = s.open[lane]
        kind = "X" if transaction.exclusive else "C"
        post = (lane, len(s.writers[lane].todo))
        entry = Entry(kind, lane, transaction.group, transaction.first, transaction.count, post)
        return self._opened(s._replace(log=(*s.log, entry)), lane, None)

    def _lane_is_held(self, s: State, lane: int) -> bool:
        transaction = s.open[lane]
        return transaction is not None and not transaction.exclusive

    def _read(self, s: State) -> Iterator[State]:
        r, durable = s.reader, s.log[: s.majority]
        if r.restarts and not r.waits:
            yield s._replace(reader=Reader(r.marker, r.seen, restarts=r.restarts - 1))
        if r.waits:
            yield from self._settle(s)
        elif r.last:
            yield self._accepted(s, self._page(durable, r.marker, r.last))
        elif r.view is not None:
            yield from self._read_page(s, self._page(durable, r.marker, r.view.last), r.view)
        elif r.page:  # the read of the queue's document, after the page
            yield from self._look(s, durable)
        elif page := self._page(durable, r.marker, 1 << 30):
            yield s._replace(reader=r._replace(page=tuple(page)))

    def _look(self, s: State, durable: tuple[Entry, ...]) -> Iterator[State]:
        """Accept the page that was read without a view, or read a view."""
        r = s.reader
        view = view_of(s.log if self._fault == "reads lanes that are not durable" else durable)
        if self._fault == "reads the lanes after the messages":
            yield from self._read_page(s, list(r.page), view)
        elif r.page[-1][0] <= r.final or not any(one.first for one in view.drawn) or self._fault == "never waits":
            yield self._accepted(s, list(r.page))
        else:
            first = min([one.range.first for one in self._unsettled(s, view)], default=view.last + 1)
            final = view.last if self._fault == "takes the last number for final" else first - 1
            yield s._replace(reader=r._replace(page=(), view=view, final=max(r.final, final)))

    def _page(self, log: tuple[Entry, ...], marker: int, last: int) -> list[Message]:
        if self._fault == "reads messages that came after the view":
            last = 1 << 30
        return [message for message in stored(log) if marker < message[0] <= last][:PAGE]

    def _read_page(self, s: State, page: list[Message], view: View) -> Iterator[State]:
        if not page:
            yield s._replace(reader=s.reader._replace(view=None))
            return
        last = page[-1][0]
        waits = tuple(one for one in self._unsettled(s, view) if one.range.first <= last)
        if waits:
            yield s._replace(reader=s.reader._replace(waits=waits, last=last, view=None, page=()))
        else:
            yield self._accepted(s, page)

    def _unsettled(self, s: State, view: View) -> list[Wait]:
        """The open ranges of the view, but for those of attempts that are known to have ended."""
        return [
            Wait(lane, one)
            for lane, one in enumerate(view.drawn)
            if self._is_open(view, lane) and s.reader.settled[lane] < self._remembered(one)
        ]

    def _is_open(self, view: View, lane: int) -> bool:
        return view.drawn[lane].first > 0 and view.committed[lane] < view.drawn[lane].group

    def _remembered(self, one: Range) -> int:
        return one.group if self._fault == "remembers settled lanes by group" else one.attempt

    def _settle(self, s: State) -> Iterator[State]:
        """Settle the first range: by a view, or by a touch, which succeeds if no transaction holds the lane."""
        (lane, one, index), *rest = s.reader.waits
        done = s._replace(reader=s.reader._replace(waits=tuple(rest)))
        view = view_of(s.log if self._fault == "settles by a view that is not durable" else s.log[: s.majority])
        if not self._is_open(view, lane) or view.drawn[lane] != one:
            yield done
        if index < 0:
            if not self._lane_is_held(s, lane) or self._fault == "does not wait for the lane":
                waits = (Wait(lane, one, len(s.log)), *rest)
                yield s._replace(log=(*s.log, Entry("T", lane)), reader=s.reader._replace(waits=waits))
        elif index < s.majority or self._fault == "reads before the touch is durable":
            settled = put(s.reader.settled, lane, self._remembered(one))
            yield done._replace(reader=done.reader._replace(settled=settled))

    def _accepted(self, s: State, page: list[Message]) -> State:
        seen = s.reader.seen | frozenset(page)
        last = page[-1][0] if page else s.reader.marker
        return s._replace(reader=s.reader._replace(marker=last, seen=seen, page=(), view=None, last=0))

    def _purge(self, s: State) -> Iterator[State]:
        p = s.purge
        decided = [index for index, one in enumerate(s.log) if one.kind == "G"]
        forgetful = self._fault == "a purge goes on though its decision was lost"
        if p.state == 0 or (p.state < 3 and not decided and not forgetful):  # not yet decided, or lost
            bound = last_number(s.log)
            if not self._counter_is_held(s):
                yield s._replace(log=(*s.log, Entry("G", first=bound)), purge=Purge(1, bound))
        elif p.state == 1 and not forgetful and decided[-1] >= s.majority:
            return
        elif p.state == 1 and p.lanes and self._fault != "a purge does not wait for the lanes":
            if not self._lane_is_held(s, p.lanes[0]):
                yield s._replace(purge=p._replace(lanes=p.lanes[1:]))
        elif p.state == 1:
            yield s._replace(log=(*s.log, Entry("P", first=p.bound)), purge=p._replace(state=2))
        elif p.state == 2 and any(one.kind == "P" for one in s.log[: s.majority]):
            yield s._replace(purge=p._replace(state=3))
        elif p.state == 2 and not any(one.kind == "P" for one in s.log):  # lost: carry it out again
            yield s._replace(purge=p._replace(state=1))


class Found(NamedTuple):
    """The result of a search: the first violation or "", the number of states, and whether all were searched."""

    violation: str
    states: int
    is_complete: bool


def search(model: Model, max_states: int) -> Found:
    """Search the states of the model depth first."""
    todo, known = [model.start()], set[State]()
    while todo and len(known) < max_states:
        s = todo.pop()
        if s not in known:
            known.add(s)
            if violation := model.violation(s):
                return Found(violation, len(known), is_complete=False)
            todo += model.steps(s)
    return Found("", len(known), is_complete=not todo)
