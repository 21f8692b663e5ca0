# SPDX-License-Identifier: Apache-2.0
"""How fast each project may go: requests, messages and bytes a second, and how much of a process at once (tenancy 6).

Each rate is a GCRA bucket: one moment, up to which what was taken is paid for. A request is let in while no bucket is
in debt, and what it turns out to have been is paid afterwards, so that nothing is counted before it is known. Several
processes of one store share a project's rates by telling each other what was asked of them: ``Exchange``.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec
from cachetools import LRUCache

from zq.clock import Clock
from zq.errors import TooManyRequests, Unavailable
from zq.model.documents import DocumentRef
from zq.model.quotas import Quota
from zq.storage.api import DocumentController
from zq.turns import Company

LOG = logging.getLogger(__name__)
# What is counted, under their names in [quota]; in this order wherever three numbers stand.
RATES: Final = ("requests", "messages", "bytes")
# What bytes are counted in, where requests are the draft's usual.
CONTENT: Final = ';qu="content-bytes"'
# Seconds of a rate that may be taken at once.
BURST: Final = 2.0
# How far a bucket may be paid ahead: a burst, and what sums of fractions may be wrong by.
ALLOWED: Final = BURST + 1e-6
# Projects whose buckets one process keeps; one that goes begins with full ones.
MOST_KNOWN: Final = 10_000
# Seconds between two exchanges with other processes.
INTERVAL: Final = 1.0
# Seconds for which what a process told holds.
LIFE: Final = 5.0
# A process tells of projects that ask it for more than this part of their rate: so sixteen that do not tell keep it.
NEAR: Final = 1 / 16
# Heavy requests of a project that one process works on at once.
MAX_HEAVY: Final = 2
# Seconds for which another one waits for its turn.
HEAVY_WAIT: Final = 1.0
# Seconds for which heavy requests rest more because another project has sent a request.
LATELY: Final = 0.1
# The kind of the documents by which processes tell.
KIND: Final = "rate"
# Processes of which one listens.
MOST_PROCESSES: Final = 256

_told: Final = msgspec.json.Decoder(dict[str, tuple[float, float, float]])


class Left(NamedTuple):
    """What is left of a project's scarcest rate: so much of ``name`` now, all of it in ``seconds``."""

    name: str
    rest: int
    seconds: int


class Visits:
    """The projects whose light requests one process has under way, and the two that sent requests last."""

    def __init__(self) -> None:
        self.busy: set[Account] = set()
        """The accounts that have light requests under way."""
        self._last: Account | None = None
        self._last_at = self._other_at = -LATELY

    def note(self, account: "Account", now: float) -> None:
        """Note a request. Threads may overwrite each other's notes, of which the next request makes another one."""
        if self._last is not account:
            self._other_at, self._last = self._last_at, account
        self._last_at = now

    def company(self, account: "Account", now: float) -> Company:
        """Return who is served beside a heavy request of this account."""
        if self.busy:
            return Company.NOW
        latest = self._other_at if self._last is account else self._last_at
        return Company.LATELY if now - latest < LATELY else Company.NONE


class Account:
    """The account of one project in one process: three buckets, and the number of its requests under way.

    A heavy request (``zq.http.weight``) takes one of ``MAX_HEAVY`` places and pays an estimate before it begins.
    """

    __slots__ = (
        "_asked",
        "_busy",
        "_bytes",
        "_full",
        "_heavy",
        "_lock",
        "_mean",
        "_messages",
        "_most",
        "_places",
        "_policy",
        "_quota",
        "_rates",
        "_refusals",
        "_requests",
        "_running",
        "_sent",
        "_size",
        "_steps",
        "_visits",
    )

    def __init__(self, quota: Quota, threads: int, visits: "Visits | None" = None) -> None:
        self._visits = Visits() if visits is None else visits
        self._busy = self._visits.busy
        self._heavy = 0
        """Requests that wait for a place, or have one."""
        self._places = threading.Semaphore(MAX_HEAVY)
        self._lock = threading.Lock()
        """Taken without ``with`` by what each request goes through: that takes twice as long."""
        self._requests, self._messages, self._bytes = 0.0, 0.0, 0.0
        """The buckets: each a moment."""
        self._asked = self._refusals = self._sent = self._size = 0
        """Requests since it was ``asked``, how many of them were refused, and messages and bytes of the others."""
        self._mean = (1.0, 0.0)
        """Messages and bytes of a request, in the last second that had some."""
        self._running = 0
        self.configure(quota, threads)

    def configure(self, quota: Quota, threads: int) -> None:
        """Bound by these from now on. What was paid ahead at other rates is forgiven: it could take years."""
        with self._lock:
            self._requests, self._messages, self._bytes = 0.0, 0.0, 0.0
        self._quota = quota
        self._most = max(1, threads * quota.share // 100)
        self._policy = _policy(quota)
        self.share(rates_of(quota))

    @property
    def quota(self) -> Quota:
        """By what it is bounded."""
        return self._quota

    def enter(self, now: float) -> None:
        """Let a request in; ``leave`` must follow. Raises ``TooManyRequests``."""
        limit = now + ALLOWED
        self._lock.acquire()
        try:
            self._asked += 1
            paid = self._requests
            after = (paid if paid > now else now) + self._steps[0]
            if after > limit or self._messages > limit or self._bytes > limit or self._running >= self._most:
                raise self._refused(after - limit, self._messages - limit, self._bytes - limit)
            self._requests = after
            self._running += 1
            if self._running - self._heavy == 1:
                self._busy.add(self)
            self._visits.note(self, now)
        finally:
            self._lock.release()

    def resume(self) -> None:
        """A request goes on that was let in before; ``leave`` must follow."""
        with self._lock:
            self._running += 1
            self._note()

    def begin_heavy(self, now: Callable[[], float], messages: int, size: int) -> None:
        """Wait for one of the places of heavy requests, and pay an estimate; ``end_heavy`` must follow.

        Raises ``TooManyRequests`` if there is no place in time, or if the project is in debt by then.
        """
        with self._lock:
            self._heavy += 1
            self._note()
        has_place = self._places.acquire(timeout=HEAVY_WAIT)
        with self._lock:
            limit = now() + ALLOWED
            late = self._messages - limit, self._bytes - limit
            if has_place and max(late) <= 0:
                self._pay(now(), messages, size)
                return
            self._heavy -= 1
            self._note()
            if has_place:
                self._places.release()
                raise self._refused(0.0, *late)
            self._refusals += 1
        raise TooManyRequests(
            f"The project may have {MAX_HEAVY} heavy requests at once in one process of the server.", 1, "heavy"
        )

    def end_heavy(self, now: float, messages: int, size: int) -> None:
        """Free the place, and take back the estimate: ``leave`` pays for what the request was."""
        with self._lock:
            self._heavy -= 1
            self._note()
            self._pay(now, -messages, -size)
        self._places.release()

    def leave(self, now: float, messages: int, size: int) -> None:
        """A request is over, or waits without a thread; it was about so many messages and bytes."""
        self._lock.acquire()
        try:
            self._running -= 1
            if self._running == self._heavy:
                self._busy.discard(self)
            if messages or size:
                self._pay(now, messages, size)
        finally:
            self._lock.release()

    def spend(self, now: float, messages: int, size: int) -> None:
        """Pay for messages and bytes that a stream sends: its request is over."""
        with self._lock:
            self._pay(now, messages, size)

    def owes(self, now: float) -> float:
        """Return the seconds until the project has paid for the messages and bytes that it used beyond its burst."""
        return max(self._messages, self._bytes) - now - ALLOWED

    def left(self, now: float) -> Left | None:
        """What is left of the rate of which the smallest part is left; None if nothing is bounded."""
        debt, scarcest = -1.0, -1
        for rate, paid in enumerate((self._requests, self._messages, self._bytes)):
            if self._rates[rate] and paid - now > debt:
                debt, scarcest = max(0.0, paid - now), rate
        if scarcest < 0:
            return None
        bound = self._rates[scarcest]
        rest = min(int(bound), max(0, int((ALLOWED - debt) * bound)))
        return Left(RATES[scarcest], rest, max(1, ceil(debt)))

    def headers(self, now: float) -> dict[str, str]:
        """What is left, as answers say it: headers of draft-ietf-httpapi-ratelimit-headers-10, lower case; none if
        nothing is bounded."""
        soon = now + 1.0
        requests, messages, size = self._requests, self._messages, self._bytes
        if requests > soon or messages > soon or size > soon:
            left = self.left(now)
            return {} if left is None else self._policy | _text(*left)
        # A second or less is paid ahead of any: all that the rates allow in one is left.
        if size > requests and size > messages and size > now:
            return self._full[2]
        return self._full[1 if messages > requests and messages > now else 0]

    def asked(self) -> tuple[float, float, float]:
        """Return the demand for each rate since the last call, refused requests included.

        A refused request counts as many messages and bytes as an admitted one on average.
        """
        with self._lock:
            asked, refusals = self._asked, self._refusals
            # Refunds of estimates may exceed the payments since the last call.
            messages, size = max(0, self._sent), max(0, self._size)
            self._asked = self._refusals = self._sent = self._size = 0
        if granted := asked - refusals:
            self._mean = messages / granted, size / granted
        return asked, messages + refusals * self._mean[0], size + refusals * self._mean[1]

    def share(self, rates: Sequence[float]) -> None:
        """Apply these rates from now on: the part of the project's that other processes leave."""
        self._rates = list(rates)
        requests, messages, size = (1 / rate if rate else 0.0 for rate in rates)
        self._steps = requests or -ALLOWED, messages, size
        """For how long one of each is paid."""
        full = [self._policy | _text(name, int(rate), 1) for name, rate in zip(RATES, rates, strict=True)]
        bounded = [pairs for pairs, rate in zip(full, rates, strict=True) if rate]
        self._full = [pairs if rate else (*bounded, {})[0] for pairs, rate in zip(full, rates, strict=True)]
        """What is told while all of a rate is left; of one without a bound, the first that has one."""

    def _note(self) -> None:
        """Note whether light requests of the project are under way; under the lock."""
        if self._running > self._heavy:
            self._busy.add(self)
        else:
            self._busy.discard(self)

    def _pay(self, now: float, messages: int, size: int) -> None:
        _, message, byte = self._steps
        self._sent += messages
        paid = self._messages
        self._messages = (paid if paid > now else now) + messages * message
        self._size += size
        paid = self._bytes
        self._bytes = (paid if paid > now else now) + size * byte

    def _refused(self, *late: float) -> TooManyRequests:
        """``late``: seconds until each bucket lets one in."""
        self._refusals += 1
        rate = max((1, 2, 0), key=lambda bucket: late[bucket])
        if late[rate] <= 0:
            sentence = f"The project may have {self._most} requests at once in one process of the server."
            return TooManyRequests(sentence, 1, "share")
        bound = getattr(self._quota, RATES[rate])
        sentence = f"The project may make {bound} requests a second."
        if rate:
            sentence = f"The project may send and receive {bound} {RATES[rate]} a second."
        return TooManyRequests(sentence, max(1, ceil(late[rate])), RATES[rate])


class Rates:
    """The accounts of all projects that come to one process. ``threads``: how many requests it works on at once."""

    def __init__(self, threads: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self.now = monotonic
        self._accounts: LRUCache[str, Account] = LRUCache(MOST_KNOWN)
        self.visits = Visits()
        self._lock = threading.Lock()

    def account(self, project: str, quota: Quota) -> Account:
        """The project's; bounded by ``quota``."""
        with self._lock:
            account = self._accounts.get(project)
            if account is None:
                self._accounts[project] = account = Account(quota, self._threads, self.visits)
        if account.quota is not quota and account.quota != quota:
            account.configure(quota, self._threads)
        return account

    def accounts(self) -> Mapping[str, Account]:
        """All of them, by project."""
        with self._lock:
            return dict(self._accounts)


class Exchange:
    """Tells the other processes of a store what is asked of this one, and divides rates by what they tell."""

    def __init__(self, rates: Rates, documents: DocumentController, clock: Clock) -> None:
        self._rates = rates
        self._documents = documents
        self._clock = clock
        self._ref = DocumentRef("", KIND, uuid4().hex)
        self._heard = 0.0
        self._divided: set[str] = set()

    def start(self) -> None:
        """Do so each second, from a thread of its own."""
        threading.Thread(target=self._run, name="zq-rates", daemon=True).start()

    def round(self) -> None:
        """One exchange. Nothing is written or read while no project comes near its rates. Raises ``Unavailable``."""
        accounts = self._rates.accounts()
        asked = {project: account.asked() for project, account in accounts.items()}
        near = {project: told for project, told in asked.items() if _is_near(told, accounts[project].quota)}
        others = self._exchange(near) if near else []
        for project in self._divided - near.keys():
            if project in accounts:
                accounts[project].share(rates_of(accounts[project].quota))
        self._divided = set(near)
        for project in near:
            demands = [told[project] for told in others if project in told]
            rates = rates_of(accounts[project].quota)
            accounts[project].share([divided(rate, (told[i] for told in demands)) for i, rate in enumerate(rates)])

    def _exchange(self, near: Mapping[str, tuple[float, float, float]]) -> list[dict[str, tuple[float, float, float]]]:
        """Tell, and hear what the others tell."""
        now = self._clock.now()
        self._documents.put(self._ref, msgspec.json.encode(near), now, expires=now + LIFE)
        page = self._documents.list("", KIND, "", "", MOST_PROCESSES, now)
        return [_told.decode(document.value) for document in page.items if document.ref != self._ref]

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            try:
                self.round()
            except (Unavailable, msgspec.MsgspecError) as absence:
                LOG.debug("Rates are not divided among processes now: %s", absence)


def divided(limit: float, demands: Iterable[float]) -> float:
    """The max-min fair share of one that wants without end, among others that want so much ("water filling")."""
    left, sharing = limit, sorted(demands)
    for at, demand in enumerate(sharing):
        share = left / (len(sharing) - at + 1)
        if demand >= share:
            return share
        left -= demand
    return left


def _policy(quota: Quota) -> dict[str, str]:
    rates = (("requests", quota.requests, ""), ("messages", quota.messages, ""), ("bytes", quota.bytes, CONTENT))
    return {"ratelimit-policy": ", ".join(f'"{name}";q={bound};w=1{unit}' for name, bound, unit in rates if bound)}


def _text(name: str, rest: int, seconds: int) -> dict[str, str]:
    return {"ratelimit": f'"{name}";r={rest};t={seconds}'}


def rates_of(quota: Quota) -> tuple[float, float, float]:
    return float(quota.requests), float(quota.messages), float(quota.bytes)


def _is_near(asked: Sequence[float], quota: Quota) -> bool:
    return any(rate and told > rate * NEAR for told, rate in zip(asked, rates_of(quota), strict=True))
