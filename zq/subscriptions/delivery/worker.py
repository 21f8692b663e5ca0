# SPDX-License-Identifier: Apache-2.0
"""The delivery worker.

The worker runs an event loop in its own thread, and accesses the store in other threads. Each subscription has a
delivery queue, which a separate task processes. A subscription therefore has at most one delivery in progress, and an
unresponsive subscriber does not delay other subscribers.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from zq import wire
from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.errors import MessageUnreadable, Unavailable, ZqError
from zq.model import Claim, ClaimRequest, Lease, Message, Move, QueueRef, Release, Settlement, new_ids
from zq.storage.api import Storage
from zq.subscriptions.delivery.confirmations import Confirmations
from zq.subscriptions.delivery.leases import Leases
from zq.subscriptions.delivery.options import DeliveryOptions
from zq.subscriptions.delivery.retries import Outcome, compute_delays, merge_policies
from zq.subscriptions.delivery.threads import Threads
from zq.subscriptions.documents import PROJECTS, SubscriptionDocuments
from zq.subscriptions.fan_out import FanOut
from zq.subscriptions.model import (
    Notice,
    Source,
    Subscription,
    is_log,
    is_notice_queue,
    make_log_ref,
    parse_delivery_queue,
)
from zq.subscriptions.notices import build_notification, build_webhook_body, decode_notice, decrypt_notice
from zq.subscriptions.policy import SubscriptionPolicy

if TYPE_CHECKING:
    from zq.subscriptions.delivery.senders import Senders
import resource
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

T = TypeVar("T")
LOG = logging.getLogger(__name__)
# Visibility timeout of claimed deliveries in seconds. If the worker crashes, they are redelivered after this time.
LEASE: Final = 10
# Seconds between two renewals of a claim.
RENEWAL_INTERVAL: Final = 3.0
# The maximum number of notices per fan-out.
NOTICE_BATCH: Final = 100
# The maximum number of deliveries of a subscription in one claim.
MAX_CLAIMED: Final = 20
# Number of consecutive failures after which the worker pauses a subscription.
MAX_FAILURES: Final = 5
# Length of the first pause, and maximum length of a pause, in seconds. Each further failure doubles the length.
PAUSE: Final = 30.0
MAX_PAUSE: Final = 600.0
# Maximum number of tasks to start per round, so that other threads get processor time.
MAX_STARTS: Final = 50
# Minimum seconds between two rounds of task starts.
MIN_ROUND_SECONDS: Final = 0.05
# Seconds between two scans for queues with work.
SCAN_INTERVAL: Final = 10.0
# Seconds after which the worker retries a queue after an error of the store.
RETRY_INTERVAL: Final = 2.0
# Maximum number of connections of a worker. A project may have a thousand subscriptions, each with one connection.
MAX_CONNECTIONS: Final = 2000
# One of every ``FAILED_FRACTION`` connections is reserved for subscriptions whose last delivery failed.
FAILED_FRACTION: Final = 4
# The maximum number of connections of a project to one host.
MAX_PER_HOST: Final = 20


class ConnectionLimits:
    """The connection limits of one worker. Use them only in the worker's event loop.

    One part of the connections is reserved for subscriptions whose last delivery failed, and the other part is reserved
    for all other subscriptions.

    Reserve a connection before you claim deliveries. Otherwise, the claim could expire while you wait for a connection.
    """

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        limit = _raise_descriptor_limit(limit)
        self._doubtful = asyncio.Semaphore(max(1, limit // FAILED_FRACTION))
        self._proven = asyncio.Semaphore(max(1, limit - limit // FAILED_FRACTION))
        self._hosts: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def reserve(self, project: str, subscriber: str, *, failed: bool) -> AsyncIterator[None]:
        """Reserve a connection to the subscriber's host within an ``async with`` block. Wait until one is free."""
        host = urlsplit(subscriber.removeprefix("trust+")).hostname or ""
        few = self._hosts.setdefault((project, host), asyncio.Semaphore(MAX_PER_HOST))
        async with few, self._doubtful if failed else self._proven:
            yield


def _raise_descriptor_limit(extra: int) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return extra
    raised = soft + extra if hard == resource.RLIM_INFINITY else min(soft + extra, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(raised - soft, min(extra, soft // 4))


class DeliveryState:
    """The delivery state of one subscription in this worker."""

    __slots__ = ("claim_limit", "failures", "next", "subscriber", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        """The monotonic time at which the pause ends."""
        self.claim_limit = 1
        """The maximum number of deliveries in the next claim."""
        self.next = 0.0
        """The monotonic time from which the rate limit allows the next delivery."""
        self.subscriber = ""
        """The subscriber's URI when the subscription was last read."""

    def record(self, delivered: bool) -> None:
        """Record the outcome of a delivery. After ``MAX_FAILURES`` consecutive failures, pause the subscription.

        Each further failure doubles the next pause, up to ``MAX_PAUSE`` seconds. A success resets the count.
        """
        if delivered:
            self.failures, self.until, self.claim_limit = 0, 0.0, min(2 * self.claim_limit, MAX_CLAIMED)
            return
        self.failures, self.claim_limit = self.failures + 1, 1
        if self.failures >= MAX_FAILURES:
            self.until = time.monotonic() + min(PAUSE * 2 ** (self.failures - MAX_FAILURES), MAX_PAUSE)


class DeliveryWorker:
    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        subscriptions: SubscriptionDocuments,
        policy: SubscriptionPolicy,
        sealing: Sealing,
        options: DeliveryOptions,
        leases: Leases,
        confirmations: Confirmations,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._subscriptions = subscriptions
        self._policy = policy
        self._sealing = sealing
        self._fan_outs = FanOut(storage, clock, subscriptions, policy)
        self._options = options
        self._leases = leases
        self._confirmations = confirmations
        self._threads = Threads(options.threads, "zq-delivery-store")
        self._due: dict[QueueRef, float] = {}
        self._running: dict[QueueRef, asyncio.Task[None]] = {}
        self._logs: dict[str, Callable[[], None]] = {}
        """The functions that unsubscribe the worker from topic logs, by project."""
        self._health: dict[QueueRef, DeliveryState] = {}
        self._senders: Senders | None = None
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._woken = asyncio.Event()
        """Set when the schedule or the set of running tasks changes, or the worker stops."""
        self._thread = threading.Thread(target=self._work, name="zq-delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def notify(self, queue: QueueRef) -> None:
        """Schedule a check of a queue that may have new messages. Thread-safe."""
        at = parse_delivery_queue(queue)
        if (at or is_notice_queue(queue) or is_log(queue)) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._schedule, queue, 0.0)
            if at and at[0].kind == "topic" and queue.project not in self._logs:
                self._loop.call_soon_threadsafe(self._schedule, make_log_ref(queue.project), 0.0)

    def stop(self, within: float = 10.0) -> None:
        """Stop the worker, and wait up to ``within`` seconds. Unfinished deliveries are redelivered."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._finish)
            self._thread.join(within)

    def _finish(self) -> None:
        self._ending.set()
        self._woken.set()

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._run())
        except Exception:  # the outermost frame of this thread
            LOG.critical("The delivery worker stopped because of an unexpected error.", exc_info=True)
        finally:
            self._threads.shutdown()
            self._loop.close()

    async def _run(self) -> None:
        self._connection_limits = ConnectionLimits()
        scanned = 0.0
        while not self._ending.is_set():
            now = time.monotonic()
            if now >= scanned + SCAN_INTERVAL:
                scanned = now
                await self._scan()
            due = [queue for queue, at in self._due.items() if at <= now and queue not in self._running]
            for queue in sorted(due, key=self._rank)[:MAX_STARTS]:
                del self._due[queue]
                self._running[queue] = self._loop.create_task(self._process(queue))
            await self._wait_until(scanned + SCAN_INTERVAL)
        await self._drain()
        if self._senders is not None:
            await self._senders.close()
        await self._call_store(self._leases.release_all)

    async def _wait_until(self, until: float) -> None:
        await asyncio.sleep(MIN_ROUND_SECONDS)
        self._woken.clear()
        if self._ending.is_set():
            return
        soon = min((at for queue, at in self._due.items() if queue not in self._running), default=until)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), max(0.0, min(soon, until) - time.monotonic()))

    def _rank(self, queue: QueueRef) -> tuple[int, float]:
        """Return the sort key for the order of processing. Subscriptions whose last delivery failed come last."""
        health = self._health.get(queue)
        if health is None:
            return 1 if parse_delivery_queue(queue) else 0, self._due[queue]
        return 2 if health.failures else 0 if health.claim_limit > 1 else 1, self._due[queue]

    async def _drain(self) -> None:
        if self._running:
            _, left = await asyncio.wait(self._running.values(), timeout=5)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _schedule(self, queue: QueueRef, seconds: float) -> None:
        health = self._health.get(queue)
        at = max(time.monotonic() + seconds, health.until if health else 0.0)
        self._due[queue] = min(at, self._due.get(queue, at))
        self._woken.set()

    async def _call_store(self, call: Callable[..., T], *arguments: Any) -> T:
        return await self._loop.run_in_executor(self._threads, call, *arguments)

    async def _scan(self) -> None:
        try:
            for queue in await self._call_store(self._all_queues):
                if queue not in self._due and queue not in self._running:
                    self._schedule(queue, 0.0)
        except Unavailable as absence:
            LOG.warning("Cannot list pending deliveries: %s", absence)

    def _all_queues(self) -> list[QueueRef]:
        now, after = self._clock.now(), ""
        found: list[QueueRef] = []
        while True:
            page = self._storage.documents.list("", PROJECTS, "", after, NOTICE_BATCH, now)
            for document in page.items:
                found += self._fan_outs.list_work(document.ref.name)
            if page.next is None or len(page.items) < NOTICE_BATCH:
                return found
            after = page.next

    async def _process(self, queue: QueueRef) -> None:
        try:
            if is_log(queue):
                await self._follow(queue)
                return
            if not await self._has_work(queue):
                return
            if is_notice_queue(queue):
                await self._fan_out(queue)
            elif await self._call_store(self._leases.acquire, queue):
                await self._deliver(queue)
            else:
                self._schedule(queue, self._leases.seconds_left(queue))
                return
            if await self._has_work(queue):
                self._schedule(queue, 0.0)
        except ZqError as failure:
            LOG.warning("Deliveries of project %s failed and will be retried: %s", queue.project, failure)
            self._schedule(queue, RETRY_INTERVAL)
        except Exception:
            LOG.critical("A delivery failed because of an unexpected error.", exc_info=True)
            self._schedule(queue, PAUSE)
        finally:
            self._running.pop(queue, None)
            self._woken.set()

    async def _has_work(self, queue: QueueRef) -> bool:
        ready = await self._call_store(self._storage.queues.ready, queue, 1, self._clock.now())
        if ready.next is not None and not ready.count:
            self._schedule(queue, max(0.01, ready.next - self._clock.now()))
        return bool(ready.count)

    def _claim(self, queue: QueueRef, limit: int) -> Claim | None:
        now = self._clock.now()
        lease = Lease(new_ids(1, now)[0], LEASE, 0)
        return self._storage.claims.create(queue, ClaimRequest(lease, limit, max_bytes=4 << 20), now).claim

    async def _fan_out(self, queue: QueueRef) -> None:
        while not self._ending.is_set():
            claim = await self._call_store(self._claim, queue, NOTICE_BATCH)
            if claim is None:
                return
            reached = await self._call_store(self._fan_outs.fan_out, queue, claim)
            for pending in reached:
                self._schedule(pending, 0.0)

    async def _follow(self, log: QueueRef) -> None:
        """Copy new messages of a project's topics to delivery queues, and schedule their delivery."""
        if log.project not in self._logs:
            self._logs[log.project] = await self._call_store(
                self._storage.topics.subscribe, log.project, lambda _batch, _before: self.notify(log)
            )
        while not self._ending.is_set():
            if not await self._call_store(self._leases.acquire, log):
                self._schedule(log, self._leases.seconds_left(log))
                return
            followed = await self._call_store(self._fan_outs.follow, log.project)
            if followed is None:
                await self._call_store(self._logs.pop(log.project))
                return
            for pending in followed.pending:
                self._schedule(pending, 0.0)
            if not followed.has_more:
                return

    async def _deliver(self, queue: QueueRef) -> None:
        at = parse_delivery_queue(queue)
        if at is None:
            return
        source, id = at
        health = self._health.setdefault(queue, DeliveryState())
        if not health.subscriber:
            await self._read_subscription(source, id, health)
        while not self._ending.is_set() and health.until <= time.monotonic():
            async with self._connection_limits.reserve(source.project, health.subscriber, failed=health.failures > 0):
                if self._ending.is_set() or not await self._call_store(self._leases.acquire, queue):
                    return
                claim = await self._call_store(self._claim, queue, health.claim_limit)
                if claim is None:
                    return
                async with self._keep_renewed(queue, claim):
                    await self._deliver_claimed(queue, source, id, claim, health)

    async def _read_subscription(self, source: Source, id: str, health: DeliveryState) -> Subscription | None:
        one = (await self._call_store(self._subscriptions.get, source)).find(id)
        health.subscriber = one.subscriber if one else ""
        return one

    @asynccontextmanager
    async def _keep_renewed(self, queue: QueueRef, claim: Claim) -> AsyncIterator[None]:
        async def renew() -> None:
            while True:
                await asyncio.sleep(RENEWAL_INTERVAL)
                try:
                    lease = Lease(claim.id, LEASE, 0)
                    await self._call_store(self._storage.claims.renew, queue, lease, self._clock.now())
                    await self._call_store(self._leases.acquire, queue)
                except ZqError as failure:
                    LOG.debug("A claim of deliveries was not renewed: %s", failure)

        renewing = self._loop.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()

    async def _deliver_claimed(
        self, queue: QueueRef, source: Source, id: str, claim: Claim, health: DeliveryState
    ) -> None:
        # Claim first: a subscription that was read before the claim could lack a confirmation.
        one = await self._read_subscription(source, id, health)
        done: list[str] = []
        again: list[Release] = []
        dead: list[Move] = []
        for message in claim.messages:
            if health.until > time.monotonic() or self._ending.is_set():
                again.append(Release(message.id, 0))
                continue
            notice = decode_notice(message.body)
            if one is None or not one.receives(notice, self._policy.confirm):
                done.append(message.id)
                continue
            outcome = await self._attempt(source, one, notice, health)
            health.record(outcome.delivered)
            if outcome.delivered:
                done.append(message.id)
            else:
                await self._handle_failure(source, one, message, outcome, again, dead)
        settlement = Settlement(delete=done, release=again, move=dead)
        await self._call_store(self._storage.claims.settle, queue, claim.id, settlement, self._clock.now())

    async def _handle_failure(
        self,
        source: Source,
        subscription: Subscription,
        message: Message,
        outcome: Outcome,
        again: list[Release],
        dead: list[Move],
    ) -> None:
        queues = await self._call_store(self._retry_policy, source)
        pauses = compute_delays(merge_policies(subscription.options.get("_retry_policy"), queues))
        tried = message.claim_count
        if tried <= len(pauses) and not outcome.is_final:
            again.append(Release(message.id, pauses[tried - 1]))
            return
        LOG.warning(
            "A delivery of project %s to subscription %s failed permanently: %s",
            source.project,
            subscription.id,
            outcome.why,
        )
        dead.append(Move(message.id, source.dead_letter_queue(subscription.id).name, reason=outcome.why[:200]))

    def _retry_policy(self, source: Source) -> Any:
        if source.kind != "queue":
            return None
        stored = self._storage.queues.get(QueueRef(source.project, source.name))
        return wire.json_object(stored.metadata).get("_retry_policy") if stored else None

    async def _attempt(
        self, source: Source, subscription: Subscription, notice: Notice, health: DeliveryState
    ) -> Outcome:
        if self._options.rate:
            await asyncio.sleep(max(0.0, health.next - time.monotonic()))
            health.next = time.monotonic() + 1 / self._options.rate
        is_mail = subscription.subscriber.startswith("mailto:")
        if notice.confirmation:
            if is_mail:
                return await self._send_confirmation_mail(source, subscription, notice)
            document = await self._call_store(self._confirmations.document, source, subscription, notice)
        else:
            try:
                opened = decrypt_notice(self._sealing, source.project, notice)
                document = build_notification(opened, is_mail=is_mail)
            except MessageUnreadable:
                return Outcome(False, why="the message cannot be decrypted", is_final=True)
        if is_mail:
            return await self._get_senders().mail(subscription, document.decode())
        secrets = self._policy.secrets(subscription, self._clock.now())
        template = None if notice.confirmation else subscription.options.get("post_data")
        return await self._get_senders().post(
            subscription, notice.message, build_webhook_body(document, template), secrets, notice.hops + 1
        )

    def _get_senders(self) -> "Senders":
        if self._senders is None:
            from zq.subscriptions.delivery.senders import Senders

            options = self._options
            self._senders = Senders(options.targets, options.mail, options.agent, options.trusts)
        return self._senders

    async def _send_confirmation_mail(self, source: Source, subscription: Subscription, notice: Notice) -> Outcome:
        letter = await self._call_store(self._confirmations.letter, source, subscription, notice)
        if letter is None:
            return Outcome(False, why="[notification] external_confirmation_url is not set", is_final=True)
        return await self._get_senders().mail(subscription, letter.text, letter.subject, letter.sender)
