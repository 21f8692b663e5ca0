# SPDX-License-Identifier: Apache-2.0
"""The use cases: every rule, default and limit of zq lives here, once."""

from zq.broker.claims import Claims
from zq.broker.history import History
from zq.broker.lifetimes import Lifetimes, Patterns
from zq.broker.messages import Messages
from zq.broker.metadata import Book
from zq.broker.publishing import Publishing, Readers
from zq.broker.queues import Queues
from zq.broker.settling import Settling
from zq.broker.streams import Streams
from zq.broker.tails import Tails
from zq.broker.topics import Topics
from zq.broker.transactions import Transactions
from zq.broker.waiting import Waiters
from zq.broker.watch import UNWATCHED, Watch
from zq.clock import Clock
from zq.errors import Unavailable
from zq.limits import DEFAULT_KEEP, MAX_DRIFT, MAX_UNCERTAINTY, Limits
from zq.storage.api import Storage
from zq.topics import Keep

DEFAULT_LIMITS = Limits()


class Broker:
    """The use cases on one store. ``checksum`` and ``delete_with_claim_id`` are options of contract 16.

    ``keep``: how much of a project's log of topics is kept. ``watch`` is told what they did.
    ``patience``: seconds that the caller of a large commit waits for its end.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits = DEFAULT_LIMITS,
        *,
        checksum: bool = False,
        delete_with_claim_id: bool = False,
        max_waiters: int = 40,
        max_streams: int = 16,
        keep: Keep = DEFAULT_KEEP,
        queue_ttl: Patterns = (),
        watch: Watch = UNWATCHED,
        patience: float = 5.0,
    ) -> None:
        self.lifetimes = Lifetimes(limits.default_message_ttl, queue_ttl)
        book = Book(limits, storage, lifetimes=self.lifetimes)
        self.storage = storage
        self._clock = clock
        self.limits = limits
        self.queues = Queues(storage, clock, limits, book)
        self.messages = Messages(storage, clock, limits, book, checksum, delete_with_claim_id, watch)
        self.claims = Claims(storage, clock, limits, book, watch)
        self.settling = Settling(storage, clock, limits, book, checksum, watch)
        self.history = History(storage, clock, limits, book, watch)
        self.transactions = Transactions(storage, clock, limits, book, watch, patience)
        self.topics = Topics(storage, clock, limits, self.lifetimes)
        self.waiters = Waiters(storage, clock, limits, max_waiters, watch)
        self._tails = Tails(storage)
        self.streams = Streams(storage, clock, self._tails, max_streams, watch)
        readers = Readers(self._tails, self.waiters)
        self.publishing = Publishing(storage, clock, limits, self.topics, readers, keep, watch, checksum=checksum)

    def end_waiting(self) -> None:
        """Answer all who wait and end all streams, for the server ends. May be called twice."""
        self.waiters.close()
        self.streams.close()

    def check_ready(self) -> None:
        """Raise ``Unavailable`` with what is wrong: the store does not answer, its clock and ours disagree, or the way
        to it is too slow to know its time."""
        self.storage.ping()
        drift, uncertainty = self._clock.drift(), self._clock.uncertainty()
        if abs(drift) > MAX_DRIFT:
            raise Unavailable(f"This server's clock and the store's are {abs(drift):.0f} seconds apart.")
        if uncertainty > MAX_UNCERTAINTY:
            raise Unavailable(
                f"The store's time is known to {1000 * uncertainty:.0f} ms only, half of what the quickest of its last "
                f"answers took; {1000 * MAX_UNCERTAINTY:.0f} ms are allowed."
            )

    def store_answers(self) -> bool:
        """Whether the store can read and write now."""
        try:
            self.storage.ping()
        except Unavailable:
            return False
        return True
