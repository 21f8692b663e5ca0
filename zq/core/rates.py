# SPDX-License-Identifier: Apache-2.0
"""Rate limits per project: requests, messages and bytes per second, and concurrent requests (tenancy, section 6).

Each rate is a token bucket, implemented as GCRA: the bucket stores the time at which all past use is paid off. A
request is rejected if a bucket is in debt. Messages and bytes are charged after the request, when their number is
known.

The processes of a deployment share a project's rates. Each process reports its demand, and computes its share of the
rates from all reports; see ``Exchange``.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple

import msgspec
from cachetools import LRUCache

from zq.clock import Clock
from zq.core.reports import Reports
from zq.errors import TooManyRequests, Unavailable
from zq.model.quotas import Quota
from zq.storage.api import DocumentController
from zq.turns import Contention

LOG = logging.getLogger(__name__)
# Names of the rates in [quota], in the order of all tuples with one number per rate.
RATES: Final = ("requests", "messages", "bytes")
# Parameter of the rate-limit header: the unit of the byte rate.
CONTENT: Final = ';qu="content-bytes"'
# Burst size in seconds of a rate.
BURST: Final = 2.0
# Maximum seconds between now and the time stored in a bucket: a burst plus a tolerance for rounding.
ALLOWED: Final = BURST + 1e-6
# Maximum number of projects with buckets in one process. An evicted project starts again with full buckets.
MAX_PROJECTS: Final = 10_000
# Seconds between two exchanges with other processes.
INTERVAL: Final = 1.0
# Seconds for which a process's report is valid.
REPORT_TTL: Final = 5.0
# Fraction of a rate above which a process reports the demand: 16 processes below this fraction stay within the rate.
NEAR_FRACTION: Final = 1 / 16
# Maximum number of concurrent heavy requests of a project in one process.
MAX_HEAVY: Final = 2
# Maximum seconds that a further heavy request waits for a slot.
HEAVY_WAIT: Final = 1.0
# Seconds after another project's request during which heavy requests pause longer.
CONTENTION_SECONDS: Final = 0.1
# Seconds after a second project's request during which the process counts as serving several projects.
RECENT_SECONDS: Final = 1.0
# Kind of the documents that hold the reports of processes.
REPORT_KIND: Final = "rate"

# A process's demand by project, in requests, messages and bytes.
Demands = dict[str, tuple[float, float, float]]


class RemainingRate(NamedTuple):
    """The rate limit that a project is closest to exceeding.

    ``rest`` is the number of units that are left. ``seconds`` is the time until all units are available again.
    """

    name: str
    rest: int
    seconds: int


class RecentProjects:
    """The projects that this process has served recently. They show whether projects compete for this process."""

    def __init__(self) -> None:
        self.busy: set[Account] = set()
        """Accounts with light requests in progress."""
        self._last: Account | None = None
        self._last_at = self._other_at = -RECENT_SECONDS

    def note(self, account: "Account", now: float) -> None:
        """Record a request of a project."""
        # No lock is needed: the next request corrects an overwritten record.
        if self._last is not account:
            self._other_at, self._last = self._last_at, account
        self._last_at = now

    def has_several(self, now: float) -> bool:
        """Return whether requests of several projects arrived within the last ``RECENT_SECONDS``."""
        return now - self._other_at < RECENT_SECONDS

    def contention(self, account: "Account", now: float) -> Contention:
        """Return whether a heavy request (with many messages) of ``account`` would delay other requests.

        ``NOW``: light requests (with few messages) are in progress. ``RECENT``: another project sent a request within
        the last ``CONTENTION_SECONDS``. ``NONE``: otherwise.
        """
        if self.busy:
            return Contention.NOW
        latest = self._other_at if self._last is account else self._last_at
        return Contention.RECENT if now - latest < CONTENTION_SECONDS else Contention.NONE


class Account:
    """The rate limiter of one project in one process: three token buckets and a count of requests in progress."""

    __slots__ = (
        "_busy",
        "_bytes",
        "_full",
        "_heavy",
        "_heavy_slots",
        "_lock",
        "_mean",
        "_messages",
        "_most",
        "_policy",
        "_quota",
        "_rates",
        "_recent_projects",
        "_refusals",
        "_request_count",
        "_requests",
        "_running",
        "_sent",
        "_size",
        "_steps",
    )

    def __init__(self, quota: Quota, threads: int, recent_projects: "RecentProjects | None" = None) -> None:
        self._recent_projects = RecentProjects() if recent_projects is None else recent_projects
        self._busy = self._recent_projects.busy
        self._heavy = 0
        """Number of heavy requests that occupy a slot or wait for one."""
        self._heavy_slots = threading.Semaphore(MAX_HEAVY)
        self._lock = threading.Lock()
        """Acquired without ``with`` on the path of every request, because ``with`` takes twice as long."""
        self._requests, self._messages, self._bytes = 0.0, 0.0, 0.0
        """The token buckets: the monotonic time at which all past use of each rate is paid off."""
        self._request_count = self._refusals = self._sent = self._size = 0
        """Counts since the last call of ``demand``: requests, rejections, and transferred messages and bytes."""
        self._mean = (1.0, 0.0)
        """Mean messages and bytes per admitted request, in the last interval with admitted requests."""
        self._running = 0
        self.configure(quota, threads)

    def configure(self, quota: Quota, threads: int) -> None:
        """Apply a new quota and refill all token buckets.

        Debts are cancelled, because paying off a debt at a lower rate could take years.
        """
        with self._lock:
            self._requests, self._messages, self._bytes = 0.0, 0.0, 0.0
        self._quota = quota
        self._most = max(1, threads * quota.share // 100)
        self._policy = _policy(quota)
        self.set_rates(rates_of(quota))

    @property
    def quota(self) -> Quota:
        return self._quota

    def enter(self, now: float) -> None:
        """Admit a request and count it as in progress until ``leave`` is called. Raises ``TooManyRequests``."""
        limit = now + ALLOWED
        self._lock.acquire()
        try:
            self._request_count += 1
            paid = self._requests
            after = (paid if paid > now else now) + self._steps[0]
            if after > limit or self._messages > limit or self._bytes > limit or self._running >= self._most:
                raise self._reject(after - limit, self._messages - limit, self._bytes - limit)
            self._requests = after
            self._running += 1
            if self._running - self._heavy == 1:
                self._busy.add(self)
            self._recent_projects.note(self, now)
        finally:
            self._lock.release()

    def resume(self) -> None:
        """Count a suspended request, such as a long poll, as in progress again. Call ``leave`` at its end."""
        with self._lock:
            self._running += 1
            self._update_busy()

    def begin_heavy(self, now: Callable[[], float], messages: int, size: int) -> None:
        """Admit a heavy request (with many messages), and charge its estimated cost until ``end_heavy`` is called.

        If ``MAX_HEAVY`` heavy requests of the project are running, wait up to ``HEAVY_WAIT`` seconds. Raises
        ``TooManyRequests`` if none of them ends in this time, or if the project is in debt of messages or bytes.
        """
        with self._lock:
            self._heavy += 1
            self._update_busy()
        has_slot = self._heavy_slots.acquire(timeout=HEAVY_WAIT)
        with self._lock:
            limit = now() + ALLOWED
            late = self._messages - limit, self._bytes - limit
            if has_slot and max(late) <= 0:
                self._charge(now(), messages, size)
                return
            self._heavy -= 1
            self._update_busy()
            if has_slot:
                self._heavy_slots.release()
                raise self._reject(0.0, *late)
            self._refusals += 1
        raise TooManyRequests(
            f"The project may have at most {MAX_HEAVY} concurrent heavy requests in one server process. "
            "Retry the request, or request fewer messages.",
            1,
            "heavy",
        )

    def end_heavy(self, now: float, messages: int, size: int) -> None:
        """End a heavy request, and refund the estimated cost that ``begin_heavy`` charged.

        ``messages`` and ``size`` are the estimate. ``leave`` charges the actual cost.
        """
        with self._lock:
            self._heavy -= 1
            self._update_busy()
            self._charge(now, -messages, -size)
        self._heavy_slots.release()

    def leave(self, now: float, messages: int, size: int) -> None:
        """End or suspend an admitted request. Charge the messages and bytes that the request has transferred."""
        self._lock.acquire()
        try:
            self._running -= 1
            if self._running == self._heavy:
                self._busy.discard(self)
            if messages or size:
                self._charge(now, messages, size)
        finally:
            self._lock.release()

    def spend(self, now: float, messages: int, size: int) -> None:
        """Charge messages and bytes that were sent on an open stream."""
        with self._lock:
            self._charge(now, messages, size)

    def owes(self, now: float) -> float:
        """Return the seconds until the project's debt of messages and bytes is paid off; 0 or less = no debt."""
        return max(self._messages, self._bytes) - now - ALLOWED

    def scarcest_rate(self, now: float) -> RemainingRate | None:
        """Return the rate limit that the project is closest to exceeding, or ``None`` if no rate is limited."""
        debt, scarcest = -1.0, -1
        for rate, paid in enumerate((self._requests, self._messages, self._bytes)):
            if self._rates[rate] and paid - now > debt:
                debt, scarcest = max(0.0, paid - now), rate
        if scarcest < 0:
            return None
        bound = self._rates[scarcest]
        rest = min(int(bound), max(0, int((ALLOWED - debt) * bound)))
        return RemainingRate(RATES[scarcest], rest, max(1, ceil(debt)))

    def headers(self, now: float) -> dict[str, str]:
        """Return the headers of draft-ietf-httpapi-ratelimit-headers-10, in lower case; empty if no rate is limited."""
        soon = now + 1.0
        requests, messages, size = self._requests, self._messages, self._bytes
        if requests > soon or messages > soon or size > soon:
            left = self.scarcest_rate(now)
            return {} if left is None else self._policy | _text(*left)
        # The time in every bucket is at most one second ahead, so a full second of each rate remains.
        if size > requests and size > messages and size > now:
            return self._full[2]
        return self._full[1 if messages > requests and messages > now else 0]

    def demand(self) -> tuple[float, float, float]:
        """Return the requests, messages and bytes that the project has demanded since the previous call of ``demand``.

        A rejected request counts as many messages and bytes as an average admitted request.
        """
        with self._lock:
            requests, refusals = self._request_count, self._refusals
            # Refunded estimates may exceed the costs that were charged since the last call.
            messages, size = max(0, self._sent), max(0, self._size)
            self._request_count = self._refusals = self._sent = self._size = 0
        if granted := requests - refusals:
            self._mean = messages / granted, size / granted
        return requests, messages + refusals * self._mean[0], size + refusals * self._mean[1]

    def set_rates(self, rates: Sequence[float]) -> None:
        """Set this process's share of the project's rates: requests, messages and bytes per second."""
        self._rates = list(rates)
        requests, messages, size = (1 / rate if rate else 0.0 for rate in rates)
        self._steps = requests or -ALLOWED, messages, size
        """Cost in seconds of one request, message and byte."""
        full = [self._policy | _text(name, int(rate), 1) for name, rate in zip(RATES, rates, strict=True)]
        bounded = [pairs for pairs, rate in zip(full, rates, strict=True) if rate]
        self._full = [pairs if rate else (*bounded, {})[0] for pairs, rate in zip(full, rates, strict=True)]
        """Rate-limit headers for each rate that is fully available. An unlimited rate has those of a limited rate."""

    def _update_busy(self) -> None:
        if self._running > self._heavy:
            self._busy.add(self)
        else:
            self._busy.discard(self)

    def _charge(self, now: float, messages: int, size: int) -> None:
        _, message, byte = self._steps
        self._sent += messages
        paid = self._messages
        self._messages = (paid if paid > now else now) + messages * message
        self._size += size
        paid = self._bytes
        self._bytes = (paid if paid > now else now) + size * byte

    def _reject(self, *late: float) -> TooManyRequests:
        self._refusals += 1
        rate = max((1, 2, 0), key=lambda bucket: late[bucket])
        if late[rate] <= 0:
            sentence = f"The project may have at most {self._most} concurrent requests in one server process."
            return TooManyRequests(sentence, 1, "share")
        bound = getattr(self._quota, RATES[rate])
        sentence = f"The project may make at most {bound} requests per second."
        if rate:
            sentence = f"The project may send and receive at most {bound} {RATES[rate]} per second."
        return TooManyRequests(sentence, max(1, ceil(late[rate])), RATES[rate])


class Rates:
    """The rate limiters of all projects in one process, which handles ``threads`` requests concurrently."""

    def __init__(self, threads: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self.now = monotonic
        self._accounts: LRUCache[str, Account] = LRUCache(MAX_PROJECTS)
        self.recent_projects = RecentProjects()
        self._lock = threading.Lock()

    def account(self, project: str, quota: Quota) -> Account:
        """Return the project's rate limiter, configured with ``quota``."""
        with self._lock:
            account = self._accounts.get(project)
            if account is None:
                self._accounts[project] = account = Account(quota, self._threads, self.recent_projects)
        if account.quota is not quota and account.quota != quota:
            account.configure(quota, self._threads)
        return account

    def accounts(self) -> Mapping[str, Account]:
        """Return the rate limiters by project."""
        with self._lock:
            return dict(self._accounts)


class Exchange:
    """A background task that divides each project's rates among the processes of a deployment.

    The share of a process depends on the demand that the processes report.
    """

    def __init__(self, rates: Rates, documents: DocumentController, clock: Clock) -> None:
        self._rates = rates
        self._reports = Reports(documents, REPORT_KIND, REPORT_TTL, Demands)
        self._clock = clock
        self._divided: set[str] = set()

    def start(self) -> None:
        threading.Thread(target=self._run, name="zq-rates", daemon=True).start()

    def exchange_reports(self) -> None:
        """Publish this process's demand, read the reports of the other processes, and divide the rates."""
        accounts = self._rates.accounts()
        demands = {project: account.demand() for project, account in accounts.items()}
        near = {project: demand for project, demand in demands.items() if _is_near(demand, accounts[project].quota)}
        others = self._exchange(near) if near else []
        for project in self._divided - near.keys():
            if project in accounts:
                accounts[project].set_rates(rates_of(accounts[project].quota))
        self._divided = set(near)
        for project in near:
            reported = [report[project] for report in others if project in report]
            rates = rates_of(accounts[project].quota)
            accounts[project].set_rates(
                [fair_share(rate, (each[i] for each in reported)) for i, rate in enumerate(rates)]
            )

    def _exchange(self, near: Demands) -> list[Demands]:
        now = self._clock.now()
        self._reports.publish(msgspec.json.encode(near), now)
        return self._reports.read_others(now)

    def _run(self) -> None:
        while True:
            time.sleep(INTERVAL)
            try:
                self.exchange_reports()
            except (Unavailable, msgspec.MsgspecError) as absence:
                LOG.debug("Rates are currently not divided among processes: %s", absence)


def fair_share(limit: float, demands: Iterable[float]) -> float:
    """Return the max-min fair share of ``limit`` for this process.

    ``demands`` are the demands of the other processes. The demand of this process counts as unlimited.
    """
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


def _is_near(demand: Sequence[float], quota: Quota) -> bool:
    return any(rate and each > rate * NEAR_FRACTION for each, rate in zip(demand, rates_of(quota), strict=True))
