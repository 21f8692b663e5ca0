# SPDX-License-Identifier: Apache-2.0
"""A model of numbered posts on MongoDB, and a search of every interleaving of its steps.

Two servers post to one or two queues. Concurrently, a listing follows the queues and consumers remove messages, or a
purge empties the first queue, or the queue's metadata are changed. For each attempt, a server chooses how it gets its
numbers (``zq.storage.mongodb.numbering``):

- *Shared*: the transaction first writes the document of the server's lane. A plain write outside the transaction then
  draws a range of numbers in each queue of the group, and notes it as the lane's last range.
- *Exclusive*: the transaction writes the counters itself, and holds them until the transaction ends. Moves and commits
  are such transactions, too.

The store is a log of writes with a majority point. A change of the primary cuts the log somewhere behind that point and
ends every open transaction. A reader sees the log up to the majority point. The reply to a commit may be lost, and a
commit or a draw may be applied after its server has timed out.

``search`` returns the first violation of a law that it finds. A ``fault`` is a deliberate mistake in the protocol: a
search that does not find the violation that it causes proves nothing.
"""

from collections.abc import Iterator
from enum import Enum
from itertools import takewhile
from typing import Final, NamedTuple

# The states of a writer.
IDLE, HELD, DRAWN, INSERTED, SENT, DONE = range(6)
LANES: Final = (0, 1)
# Messages on one page.
PAGE: Final = 2
# Difference between a delayed message's position in the order of claims and its number.
DELAY: Final = 2
# A number that no page reaches.
UNLIMITED: Final = 1 << 30
# A post: its number of messages in each queue.
Post = tuple[int, ...]
Posts = tuple[Post, ...]
# A message: its number, and the writer.
Message = tuple[int, int]
# The position of a message in a listing: its available-at and its number.
Position = tuple[int, int]


class Part(NamedTuple):
    """A range of numbers in a queue."""

    queue: int
    first: int
    count: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Entry(NamedTuple):
    """A write in the log.

    ``kind``: "D" a draw; "C" the commit of a shared and "X" of an exclusive transaction; "T" the touch of a lane; "G"
    the decision and "P" the execution of a purge up to the number ``parts[0].first``; "M" a change of the metadata; "R"
    the removal of a message by a consumer.
    """

    kind: str
    lane: int = 0
    group: int = 0
    parts: tuple[Part, ...] = ()
    post: tuple[int, int] = (0, 0)
    attempt: int = 0


class Open(NamedTuple):
    """An open transaction, which holds the counters of its queues if it is exclusive, otherwise the lane."""

    exclusive: bool
    group: int = 0
    parts: tuple[Part, ...] = ()
    committing: bool = False


class Writer(NamedTuple):
    """A server: its remaining posts, the state of the first of them, and its numbers.

    ``is_expected``: whether the metadata that the server has read are those that the post expects.
    """

    todo: Posts
    state: int = IDLE
    parts: tuple[Part, ...] = ()
    index: int = -1
    attempt: int = 0
    is_expected: bool = True


class Range(NamedTuple):
    """The last range of a lane in a queue: its first number (0 = there is none), its group and its attempt."""

    first: int = 0
    group: int = 0
    attempt: int = 0


class View(NamedTuple):
    """A view of a queue's document and the lanes: the last number, each lane's last range, its group."""

    last: int
    drawn: tuple[Range, ...]
    committed: tuple[int, ...]


class Wait(NamedTuple):
    """A range to settle, and the index of the touch of its lane in the log; -1 = not touched."""

    queue: int
    lane: int
    range: Range
    index: int = -1


class Page(NamedTuple):
    """A page that was returned: the markers before and after it, and the last number that its view includes."""

    begin: Position
    end: Position
    last: int


class Followed(NamedTuple):
    """The state of a listing in one queue.

    - ``final``: the number up to which no message can appear any more, according to the server.
    """

    pages: tuple[Page, ...] = ()
    seen: frozenset[Message] = frozenset()
    final: int = 0

    @property
    def marker(self) -> Position:
        return self.pages[-1].end if self.pages else (0, 0)


class Reader(NamedTuple):
    """A listing that follows markers in each queue, and now reads ``queue``.

    - ``page``: the messages of a read that came before the view of the lanes.
    - ``waits``: the ranges to settle, and ``last``: the last number of the page after them.
    - ``settled``: for each lane, the last attempt that is known to have ended.
    - ``restarts``: the number of times that another server, which has no such state, may continue.
    - ``began``: the messages behind the marker when the listing began, if consumers may remove them.
    - ``has_ended``: whether the listing has returned an empty page.
    """

    followed: tuple[Followed, ...]
    queue: int = 0
    page: tuple[Message, ...] = ()
    view: View | None = None
    waits: tuple[Wait, ...] = ()
    last: int = 0
    settled: tuple[int, ...] = (0, 0)
    restarts: int = 0
    began: frozenset[Message] = frozenset()
    has_ended: bool = False


class Change(NamedTuple):
    """A purge or a change of the metadata, which waits for open posts.

    ``state``: 1 decided, 2 viewed, 3 executed, 4 answered. ``bound``: the last number at the decision, or the length of
    the log at the answer to a change of the metadata.
    """

    state: int = 0
    bound: int = 0
    waits: tuple[Wait, ...] = ()


class LateDraw(NamedTuple):
    """A draw whose server has timed out, and which may still be applied."""

    lane: int
    attempt: int
    group: int
    queue: int
    count: int


class State(NamedTuple):
    log: tuple[Entry, ...]
    majority: int
    open: tuple[Open | None, ...]
    writers: tuple[Writer, ...]
    reader: Reader
    change: Change
    kills: int
    elections: int
    losses: int
    pops: int
    late: LateDraw | None = None


class Budget(NamedTuple):
    """Remaining numbers of failures and other events.

    Killed transactions, changes of the primary, late draws, restarts of readers, and removals by consumers.
    """

    kills: int = 0
    elections: int = 0
    losses: int = 0
    restarts: int = 0
    pops: int = 0


class Beside(Enum):
    """An operation that runs concurrently with the posts."""

    LISTING = "a listing in the order of numbers"
    READY = "a listing of ready messages, in the order of claims"
    PURGE = "a purge"
    METADATA = "a change of the metadata"


NO_FAILURES: Final = Budget()


def put(items: tuple, at: int, value: object) -> tuple:
    return (*items[:at], value, *items[at + 1 :])


def last_number(log: tuple[Entry, ...], queue: int) -> int:
    return max([part.last for one in log if one.kind in "DX" for part in one.parts if part.queue == queue], default=0)


def view_of(log: tuple[Entry, ...], queue: int) -> View:
    drawn, committed = [Range()] * 2, [0] * 2
    for one in log:
        # A draw without a group is not recorded.
        if one.kind == "D" and one.group and one.parts[0].queue == queue:
            drawn[one.lane] = Range(one.parts[0].first, one.group, one.attempt)
        elif one.kind == "C":
            committed[one.lane] = one.group
    return View(last_number(log, queue), tuple(drawn), tuple(committed))


def is_open(view: View, lane: int) -> bool:
    return view.drawn[lane].first > 0 and view.committed[lane] < view.drawn[lane].group


def stored(log: tuple[Entry, ...], queue: int) -> list[Message]:
    """Return the messages that the log leaves in the queue, by number."""
    living: list[Message] = []
    for one in log:
        for part in one.parts:
            if part.queue == queue and one.kind in "CX":
                living += [(number, one.lane) for number in range(part.first, part.last + 1)]
            elif part.queue == queue and one.kind == "P":
                living = [message for message in living if message[0] > part.first]
            elif part.queue == queue and one.kind == "R":
                living = [message for message in living if message[0] != part.first]
    return sorted(living)


class Model:
    """The protocol.

    Args:
        fault: A deliberate mistake; "" = none.
        beside: The concurrent operation.
        budget: The remaining numbers of failures.
        posts: The posts of each server.
        exclusive: The servers that may also post in exclusive mode.
        delayed: The servers whose messages are delayed.
    """

    def __init__(
        self,
        fault: str = "",
        *,
        beside: Beside = Beside.LISTING,
        budget: Budget = NO_FAILURES,
        posts: tuple[Posts, Posts] = (((2,),), ((1,), (1,))),
        exclusive: tuple[int, ...] = (),
        delayed: tuple[int, ...] = (),
    ) -> None:
        self._fault = fault
        self._beside = beside
        self._budget = budget
        self._posts = posts
        self._exclusive = exclusive
        self._delayed = delayed
        self._queues = range(len(posts[0][0]))

    def start(self) -> State:
        writers = tuple(Writer(todo) for todo in self._posts)
        kills, elections, losses, restarts, pops = self._budget
        reader = Reader((Followed(),) * len(self._queues), restarts=restarts)
        return State((), 0, (None, None), writers, reader, Change(), kills, elections, losses, pops)

    def steps(self, s: State) -> Iterator[State]:
        for lane in LANES:
            yield from self._write(s, lane)
            transaction = s.open[lane]
            if transaction and s.kills:
                yield s._replace(open=put(s.open, lane, None), kills=s.kills - 1)
            if transaction and transaction.committing:
                yield self._committed(s, lane)
        yield from self._change(s) if self._beside in (Beside.PURGE, Beside.METADATA) else self._read(s)
        if s.majority < len(s.log):
            yield s._replace(majority=s.majority + 1)
        if s.elections:
            for end in range(s.majority, len(s.log) + 1):
                yield self._elect(s, end)
        if s.pops:
            for number, _ in stored(s.log, 0)[:1]:
                removal = Entry("R", parts=(Part(0, number, 1),))
                yield s._replace(log=(*s.log, removal), pops=s.pops - 1)
        if s.late and not self._is_held(s, s.late.queue):
            late, done = s.late, s._replace(late=None)
            if self._is_newest(s, late.lane, late.queue, late.attempt):
                part = Part(late.queue, last_number(s.log, late.queue) + 1, late.count)
                done = done._replace(log=(*s.log, Entry("D", late.lane, late.group, (part,), attempt=late.attempt)))
            yield done

    def violation(self, s: State) -> str:
        commits = [one for one in s.log if one.kind in "CX"]
        stored_parts = [(one.post, part.queue) for one in commits for part in one.parts]
        if len(set(stored_parts)) < len(stored_parts):
            return "a post is stored twice"
        numbers = [
            (part.queue, number) for one in commits for part in one.parts for number in range(part.first, part.last + 1)
        ]
        if len(set(numbers)) < len(numbers):
            return "two messages have one number"
        visible = [(one.post, part.queue) for one in s.log[: s.majority] if one.kind in "CX" for part in one.parts]
        for lane, number in {post for post, _ in visible}:
            queues = [queue for queue, count in enumerate(self._posts[lane][-number]) if count]
            if any(((lane, number), queue) not in visible for queue in queues):
                return "a post is visible in one of its queues only"
        if s.change.state == 4:
            return self._violation_after_answer(s)
        for queue, (followed, messages) in enumerate(zip(s.reader.followed, self._visible(s), strict=True)):
            for message in messages:
                place = self._position(message)
                is_behind = any(one.begin < place <= one.end and message[0] <= one.last for one in followed.pages)
                if is_behind and message not in followed.seen:
                    return f"message {message[0]} appears behind the marker {followed.marker[0]}"
            if s.reader.has_ended and queue == s.reader.queue and s.reader.began & set(messages):
                return "a listing ends before a message that was there all the time"
        return ""

    def _violation_after_answer(self, s: State) -> str:
        if self._beside is Beside.PURGE and any(number <= s.change.bound for number, _ in stored(s.log, 0)):
            return "a message appears after the answer to the purge that removed it"
        # Every post expects the former metadata.
        if self._beside is Beside.METADATA and any(one.kind in "CX" for one in s.log[s.change.bound :]):
            return "a post that expects the former metadata appears after the answer to their change"
        return ""

    def _visible(self, s: State) -> list[list[Message]]:
        return [stored(s.log[: s.majority], queue) for queue in self._queues]

    def _position(self, message: Message) -> Position:
        number, lane = message
        is_later = self._beside is Beside.READY and lane in self._delayed
        return (number + DELAY if is_later else number, number)

    def _elect(self, s: State, end: int) -> State:
        """Return the state in which the next primary has the log up to ``end``."""
        writers = tuple(
            w._replace(state=SENT, index=-1) if w.state == DONE and w.index >= end else w for w in s.writers
        )
        waits, changes = (
            tuple(wait._replace(index=wait.index if wait.index < end else -1) for wait in waits)
            for waits in (s.reader.waits, s.change.waits)
        )
        bound = min(s.change.bound, end) if self._beside is Beside.METADATA else s.change.bound
        change = s.change._replace(waits=changes, bound=bound)
        reader, elections = s.reader._replace(waits=waits), s.elections - 1
        cut = {"log": s.log[:end], "open": (None, None), "elections": elections}
        return s._replace(**cut, writers=writers, reader=reader, change=change)

    def _writer(self, s: State, lane: int, **changes: object) -> State:
        return s._replace(writers=put(s.writers, lane, s.writers[lane]._replace(**changes)))

    def _opened(self, s: State, lane: int, transaction: Open | None) -> State:
        return s._replace(open=put(s.open, lane, transaction))

    def _is_held(self, s: State, queue: int) -> bool:
        """Return whether an exclusive transaction holds the queue's counter."""
        if self._fault == "draws beside a held counter":
            return False
        return any(one and one.exclusive and any(part.queue == queue for part in one.parts) for one in s.open)

    def _is_as_expected(self, s: State) -> bool:
        return not any(one.kind == "M" for one in s.log)

    def _write(self, s: State, lane: int) -> Iterator[State]:
        w = s.writers[lane]
        early = self._fault == "draws before it holds the lane"
        if w.state == IDLE and w.todo:
            yield from self._draw(s, lane) if early else self._hold(s, lane)
            if lane in self._exclusive and not s.open[lane]:
                yield from self._advance(s, lane)
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
            yield self._writer(s, lane, state=DONE, index=at[0]) if at else self._writer(s, lane, state=IDLE, parts=())
        elif w.state == DONE and w.index < s.majority:
            yield self._writer(s, lane, state=IDLE, todo=w.todo[1:], parts=(), index=-1)

    def _advance(self, s: State, lane: int) -> Iterator[State]:
        """Advance the counters in the transaction, and hold them."""
        wanted = [(queue, count) for queue, count in enumerate(s.writers[lane].todo[0]) if count]
        if any(self._is_held(s, queue) for queue, _ in wanted):
            return
        is_expected = self._is_as_expected(s) or self._fault == "posts in exclusive mode by cached metadata"
        parts = tuple(Part(queue, last_number(s.log, queue) + 1, count) for queue, count in wanted)
        advanced = self._opened(s, lane, Open(True, 0, parts))
        yield self._writer(advanced, lane, state=DRAWN, parts=parts, is_expected=is_expected)

    def _hold(self, s: State, lane: int) -> Iterator[State]:
        if s.open[lane] is None:
            opened = self._opened(s, lane, Open(False, view_of(s.log, 0).committed[lane] + 1))
            attempt = s.writers[lane].attempt + 1
            yield self._writer(opened, lane, state=HELD, attempt=attempt, is_expected=self._is_as_expected(s))

    def _draw(self, s: State, lane: int) -> Iterator[State]:
        """Draw in the next queue by a plain write, which is applied even if the transaction has ended."""
        w, group = s.writers[lane], view_of(s.log, 0).committed[lane] + 1
        drawn = {part.queue for part in w.parts}
        queue, *rest = (queue for queue, count in enumerate(w.todo[0]) if count and queue not in drawn)
        if self._is_held(s, queue):
            return
        part = Part(queue, last_number(s.log, queue) + 1, w.todo[0][queue])
        is_noted = not drawn or self._fault != "notes the range in the first queue only"
        draw = Entry("D", lane, group if is_noted else 0, (part,), attempt=w.attempt)
        by_draw = self._is_as_expected(s) or (self._fault == "judges by the metadata before the draw" and w.is_expected)
        yield self._writer(
            s._replace(log=(*s.log, draw)),
            lane,
            state=HELD if rest else DRAWN,
            parts=(*w.parts, part),
            is_expected=by_draw if queue == 0 else w.is_expected,
        )
        if s.losses and not s.late and w.state == HELD:  # no reply: end the transaction and begin again
            late = LateDraw(lane, w.attempt, group, queue, part.count)
            lost = self._opened(s._replace(late=late, losses=s.losses - 1), lane, None)
            yield self._writer(lost, lane, state=IDLE, parts=())

    def _is_newest(self, s: State, lane: int, queue: int, attempt: int) -> bool:
        """Return whether no later attempt of the lane has drawn in the queue; otherwise a draw has no effect."""
        view = view_of(s.log, queue)
        return self._fault == "a late draw counts" or view.drawn[lane].attempt < attempt

    def _insert(self, s: State, lane: int) -> Iterator[State]:
        w, transaction = s.writers[lane], s.open[lane]
        if transaction is None:
            yield self._writer(s, lane, state=IDLE, parts=())
        elif not w.is_expected:  # refused
            yield self._writer(self._opened(s, lane, None), lane, state=IDLE, todo=w.todo[1:], parts=())
        else:
            filled = transaction._replace(parts=w.parts)
            yield self._writer(self._opened(s, lane, filled), lane, state=INSERTED)

    def _committed(self, s: State, lane: int) -> State:
        transaction = s.open[lane]
        kind = "X" if transaction.exclusive else "C"
        post = (lane, len(s.writers[lane].todo))
        parts = [transaction.parts]
        if self._fault == "commits each queue by itself":
            parts = [(part,) for part in transaction.parts]
        entries = [Entry(kind, lane, transaction.group, its, post) for its in parts]
        return self._opened(s._replace(log=(*s.log, *entries)), lane, None)

    def _lane_is_held(self, s: State, lane: int) -> bool:
        transaction = s.open[lane]
        return transaction is not None and not transaction.exclusive

    def _read(self, s: State) -> Iterator[State]:
        r, durable = s.reader, s.log[: s.majority]
        if r.restarts and not r.waits:
            forgotten = tuple(one._replace(final=0) for one in r.followed)
            yield s._replace(reader=Reader(forgotten, restarts=r.restarts - 1))
        if r.has_ended:
            return
        if r.waits:
            for log, waits, settled in self._settle(s, r.waits):
                yield s._replace(log=log, reader=r._replace(waits=waits, settled=self._remember(r.settled, settled)))
        elif r.last:
            yield self._accepted(s, self._page(s, durable, r.last), r.last)
        elif r.view is not None:
            yield from self._read_page(s, self._page(s, durable, r.view.last), r.view)
        elif r.page:  # the read of the queue's document, after the page
            yield from self._look(s, durable)
        else:
            for queue in self._queues:
                began = s._replace(reader=r._replace(queue=queue))
                if page := self._page(began, durable, UNLIMITED):
                    there = frozenset(stored(durable, queue)) if self._budget.pops else frozenset()
                    there -= began.reader.followed[queue].seen
                    yield s._replace(reader=r._replace(queue=queue, page=tuple(page), began=there))

    def _look(self, s: State, durable: tuple[Entry, ...]) -> Iterator[State]:
        """Accept the page that was read without a view, or read a view."""
        r = s.reader
        followed = r.followed[r.queue]
        view = view_of(s.log if self._fault == "reads lanes that are not durable" else durable, r.queue)
        is_final = r.page[-1][0] <= followed.final and self._beside is Beside.LISTING
        if self._fault == "reads the lanes after the messages":
            yield from self._read_page(s, list(r.page), view)
        elif is_final or not any(one.first for one in view.drawn) or self._fault == "never waits":
            yield self._accepted(s, list(r.page), 0)
        else:
            first = min([one.range.first for one in self._unsettled(r.settled, view, r.queue)], default=view.last + 1)
            final = view.last if self._fault == "takes the last number for final" else first - 1
            known = followed._replace(final=max(followed.final, final))
            yield s._replace(reader=r._replace(page=(), view=view, followed=put(r.followed, r.queue, known)))

    def _page(self, s: State, log: tuple[Entry, ...], last: int) -> list[Message]:
        """Return the next page of the reader's queue, which ends before the first number above ``last``."""
        if self._fault == "reads messages that came after the view":
            last = UNLIMITED
        marker = s.reader.followed[s.reader.queue].marker
        behind = [message for message in stored(log, s.reader.queue) if self._position(message) > marker]
        page = sorted(behind, key=self._position)[:PAGE]
        return list(takewhile(lambda message: message[0] <= last, page))

    def _read_page(self, s: State, page: list[Message], view: View) -> Iterator[State]:
        r = s.reader
        if not page:
            yield self._accepted(s, page, 0)
            return
        last = view.last if self._beside is Beside.READY else page[-1][0]
        needed = last
        if self._fault == "a page of ready messages waits only for lower numbers":
            needed = page[-1][0]
        waits = tuple(one for one in self._unsettled(r.settled, view, r.queue) if one.range.first <= needed)
        if waits:
            yield s._replace(reader=r._replace(waits=waits, last=last, view=None, page=()))
        else:
            yield self._accepted(s, page, last)

    def _unsettled(self, settled: tuple[int, ...], view: View, queue: int) -> list[Wait]:
        """Return the open ranges of the view, except those of attempts that are known to have ended."""
        return [
            Wait(queue, lane, one)
            for lane, one in enumerate(view.drawn)
            if is_open(view, lane) and not self._is_settled(settled[lane], one)
        ]

    def _is_settled(self, settled: int, one: Range) -> bool:
        if self._fault == "remembers settled lanes by first number":
            return settled == one.first
        return settled >= (one.group if self._fault == "remembers settled lanes by group" else one.attempt)

    def _settle(
        self, s: State, waits: tuple[Wait, ...]
    ) -> Iterator[tuple[tuple[Entry, ...], tuple[Wait, ...], Wait | None]]:
        """Settle the first range: by a view, or by a touch, which succeeds if no transaction holds the lane.

        Yield the log, the ranges that are left, and the range if its attempt is known to have ended.
        """
        wait, *rest = waits
        durable = s.log if self._fault == "settles by a view that is not durable" else s.log[: s.majority]
        view = view_of(durable, wait.queue)
        if not is_open(view, wait.lane) or view.drawn[wait.lane] != wait.range:
            yield s.log, tuple(rest), None
        if wait.index < 0:
            if not self._lane_is_held(s, wait.lane) or self._fault == "does not wait for the lane":
                yield (*s.log, Entry("T", wait.lane)), (wait._replace(index=len(s.log)), *rest), None
        elif wait.index < s.majority or self._fault == "reads before the touch is durable":
            yield s.log, tuple(rest), wait

    def _remember(self, settled: tuple[int, ...], wait: Wait | None) -> tuple[int, ...]:
        if wait is None:
            return settled
        kept = wait.range.attempt
        if self._fault == "remembers settled lanes by group":
            kept = wait.range.group
        elif self._fault == "remembers settled lanes by first number":
            kept = wait.range.first
        return put(settled, wait.lane, kept)

    def _accepted(self, s: State, page: list[Message], last: int) -> State:
        """Return the page to the client. ``last``: the last number of its view; 0 = it was read without a view."""
        r = s.reader
        followed, answered = r.followed[r.queue], r._replace(page=(), view=None, last=0, began=frozenset())
        if page:
            end, last = self._position(page[-1]), max([last, *(number for number, _ in page)])
            if self._beside is Beside.READY:
                pages = (*followed.pages, Page(followed.marker, end, last))
            else:  # in the order of numbers, all pages count as one
                pages = (Page((0, 0), end, end[0]),)
            known = followed._replace(pages=pages, seen=followed.seen | frozenset(page))
            answered = answered._replace(followed=put(r.followed, r.queue, known))
        elif self._fault == "takes a consumed page for the end":
            answered = answered._replace(has_ended=True, began=r.began)
        return s._replace(reader=answered)

    def _change(self, s: State) -> Iterator[State]:
        """Decide a purge or a change of the metadata, wait for open posts, and answer."""
        c = s.change
        kind = "G" if self._beside is Beside.PURGE else "M"
        decided = [index for index, one in enumerate(s.log) if one.kind == kind]
        forgetful = self._fault == "a purge goes on though its decision was lost"
        if c.state == 0 or (c.state < 4 and not decided and not forgetful):  # not yet decided, or lost
            bound = last_number(s.log, 0)
            if not self._is_held(s, 0):
                yield s._replace(log=(*s.log, Entry(kind, parts=(Part(0, bound, 0),))), change=Change(1, bound))
        elif c.state == 1 and not forgetful and decided[-1] >= s.majority:
            return
        elif c.state == 1:
            waits = tuple(self._unsettled((0, 0), view_of(s.log[: s.majority], 0), 0))
            if self._fault == "a change does not wait for the lanes":
                waits = ()
            yield s._replace(change=c._replace(state=2, waits=waits))
        elif c.state == 2 and c.waits:
            for log, waits, _ in self._settle(s, c.waits):
                yield s._replace(log=log, change=c._replace(waits=waits))
        elif c.state == 2 and self._beside is Beside.METADATA:
            yield s._replace(change=Change(4, len(s.log)))
        elif c.state == 2:
            removal = Entry("P", parts=(Part(0, c.bound, 0),))
            yield s._replace(log=(*s.log, removal), change=c._replace(state=3))
        elif c.state == 3 and any(one.kind == "P" for one in s.log[: s.majority]):
            yield s._replace(change=c._replace(state=4))
        elif c.state == 3 and not any(one.kind == "P" for one in s.log):  # lost: execute it again
            yield s._replace(change=c._replace(state=2))


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
