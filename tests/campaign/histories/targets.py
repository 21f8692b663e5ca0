# SPDX-License-Identifier: Apache-2.0
"""Access to a store for the workers of a history: by the storage API, and over HTTP to several servers.

The storage API accepts ttls of a second or two, so that claims and messages expire during a test. HTTP, with a minimum
ttl of a minute, covers the servers, which can be killed.
"""

import contextlib
import itertools
import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.campaign.histories.history import Away, New, Refused, Seen, Unsure
from tests.servers import CLIENT
from zq.clock import StoreClock
from zq.errors import ClaimNotFound, ClaimNotHeld, MessageClaimed, Unavailable
from zq.model import (
    ClaimRequest,
    Draft,
    HandleOutcome,
    Lease,
    ListFilter,
    Message,
    MessageHandle,
    QueueRef,
    Seconds,
    new_ids,
)
from zq.model.expiry import Expiry
from zq.serving.maintenance import Upkeep
from zq.serving.maintenance.throttle import LatencyMonitor
from zq.storage.api import Storage

SWEEP_INTERVAL = 0.5
# Seconds after which a response counts as lost.
TIMEOUT = 20.0
EVERYTHING = ListFilter(claimed=True, delayed=True)


class FastClock(StoreClock):
    """A clock that runs ``speed`` times as fast as real time, so that ttls of whole seconds end in a short test."""

    def __init__(self, speed: int) -> None:
        super().__init__(time.time)
        self._speed = speed
        self._began = time.time()

    def now(self) -> Seconds:
        return round(self._began + self._speed * (time.time() - self._began), 3)

    def refresh(self) -> None:
        """Do nothing, because the clock follows no store."""


class StorageTarget:
    """An open store with a server's clock and maintenance; closing it closes the store.

    ``speed`` is the number of the store's seconds in a second of the test, which is the unit of all ttls and delays.
    """

    def __init__(self, storage: Storage, speed: int = 1) -> None:
        self._storage = storage
        self._speed = speed
        self._clock = StoreClock(storage.now) if speed == 1 else FastClock(speed)
        self._upkeep = Upkeep(storage, self._clock, Expiry(sweep_interval=SWEEP_INTERVAL), LatencyMonitor())
        self._upkeep.start()
        self._turns = itertools.count()
        self._given: dict[str, dict[str, MessageHandle]] = {}
        """Handles of the messages of each claim, by id."""

    def __enter__(self) -> "StorageTarget":
        return self

    def __exit__(self, *_: object) -> None:
        self._upkeep.stop()
        self._storage.close()

    def prepare(self, queue: QueueRef, *, delayed: bool) -> None:
        self._storage.queues.create(queue, b"{}")

    def remove(self, queue: QueueRef) -> None:
        self._storage.queues.delete(queue)

    def post(self, queue: QueueRef, messages: Sequence[New]) -> None:
        now = self._clock.now()
        ids = new_ids(len(messages), now)
        drafts = [
            Draft(id, json.dumps(new.name).encode(), self._whole(new.ttl), self._whole(new.delay), CLIENT)
            for id, new in zip(ids, messages, strict=True)
        ]
        with answers():
            self._storage.messages.post(queue, drafts, now)

    def claim(self, queue: QueueRef, ttl: float, grace: float, limit: int) -> tuple[str, list[Seen]]:
        now = self._clock.now()
        (claim,) = new_ids(1, now)
        with answers():
            request = ClaimRequest(self._lease(claim, ttl, grace), limit)
            taken = self._storage.claims.create(queue, request, now).claim
        if taken:
            self._given[claim] = {one.id: MessageHandle(one.id, claim, one.claim_count) for one in taken.messages}
        return (claim, seen(taken.messages)) if taken else ("", [])

    def renew(self, queue: QueueRef, claim: str, ttl: float, grace: float) -> None:
        with answers():
            self._storage.claims.renew(queue, self._lease(claim, ttl, grace), self._clock.now())

    def release(self, queue: QueueRef, claim: str) -> None:
        with answers():
            self._storage.claims.release(queue, claim, self._clock.now())

    def delete(self, queue: QueueRef, message: str, claim: str) -> None:
        """Delete a message, every other time by the handle of the claim."""
        handle, now = self._given.get(claim, {}).get(message), self._clock.now()
        with answers():
            if handle is not None and next(self._turns) % 2:
                [handled] = self._storage.claims.handle(queue, [handle], now)
                if handled in (HandleOutcome.LOST, HandleOutcome.EXPIRED):
                    raise Refused(handled.value)
            else:
                self._storage.messages.delete(queue, [message], now, [claim] if claim else [])

    def pop(self, queue: QueueRef, limit: int) -> list[Seen]:
        with answers():
            return seen(self._storage.messages.pop(queue, limit, self._clock.now()))

    def page(self, queue: QueueRef, marker: str, limit: int, *, free: bool) -> tuple[list[Seen], str]:
        view = ListFilter() if free else EVERYTHING
        with answers():
            page = self._storage.messages.list(queue, int(marker or 0), limit, view, self._clock.now())
        return seen(page.items), page.next or marker

    def _lease(self, claim: str, ttl: float, grace: float) -> Lease:
        return Lease(claim, self._whole(ttl), self._whole(grace))

    def _whole(self, seconds: float) -> int:
        """Return the duration in the store's seconds."""
        return round(seconds * self._speed)


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """Translate a driver's errors into the errors of a history."""
    try:
        yield
    except (ClaimNotFound, ClaimNotHeld, MessageClaimed) as error:
        raise Refused(repr(error)) from error
    except Unavailable as error:
        raise Unsure(repr(error)) from error


def seen(messages: Sequence[Message]) -> list[Seen]:
    return [Seen(json.loads(message.body), message.id, message.claim, message.claim_count) for message in messages]


class HttpTarget:
    """Several servers on one store; each call goes to a random one. Threads have their own connections."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._hosts = [urlsplit(url).netloc for url in urls]
        self._own = threading.local()
        self._opened: list[HTTPConnection] = []

    def __enter__(self) -> "HttpTarget":
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._opened:
            connection.close()

    def prepare(self, queue: QueueRef, *, delayed: bool) -> None:
        self._ask(queue, "PUT", "", {"_default_message_delay": 1} if delayed else {})

    def remove(self, queue: QueueRef) -> None:
        self._ask(queue, "DELETE", "")

    def post(self, queue: QueueRef, messages: Sequence[New]) -> None:
        posted = [{"body": new.name, "ttl": new.ttl, "delay": new.delay} for new in messages]
        self._ask(queue, "POST", "/messages", {"messages": posted})

    def claim(self, queue: QueueRef, ttl: float, grace: float, limit: int) -> tuple[str, list[Seen]]:
        document = self._ask(queue, "POST", f"/claims?limit={limit}", {"ttl": ttl, "grace": grace})
        messages = shown(document["messages"]) if document else []
        return (messages[0].claim, messages) if messages else ("", [])

    def renew(self, queue: QueueRef, claim: str, ttl: float, grace: float) -> None:
        self._ask(queue, "PATCH", f"/claims/{claim}", {"ttl": ttl, "grace": grace})

    def release(self, queue: QueueRef, claim: str) -> None:
        self._ask(queue, "DELETE", f"/claims/{claim}")

    def delete(self, queue: QueueRef, message: str, claim: str) -> None:
        self._ask(queue, "DELETE", f"/messages/{message}" + (f"?claim_id={claim}" if claim else ""))

    def pop(self, queue: QueueRef, limit: int) -> list[Seen]:
        popped = self._ask(queue, "DELETE", f"/messages?pop={limit}")["messages"]
        return [Seen(message["body"], message["id"]) for message in popped]

    def page(self, queue: QueueRef, marker: str, limit: int, *, free: bool) -> tuple[list[Seen], str]:
        everything = "" if free else "&include_claimed=true&include_delayed=true"
        after = f"&marker={marker}" if marker else ""
        document = self._ask(queue, "GET", f"/messages?limit={limit}&echo=true{everything}{after}")
        messages = shown(document["messages"])
        if not messages:
            return [], marker
        following = parse_qs(urlsplit(document["links"][0]["href"]).query)
        return messages, following["marker"][0]

    def _ask(self, queue: QueueRef, method: str, path: str, document: object = None) -> Any:
        """Return the response's document, or None if it is empty."""
        status, body = self._exchange(queue, method, path, document)
        if status in (502, 503, 504):
            raise Unsure(f"{status} {body!r}")
        assert status < 500, (method, queue, path, status, body)
        if status >= 400:
            raise Refused(f"{status} {body!r}")
        return json.loads(body) if body else None

    def _exchange(self, queue: QueueRef, method: str, path: str, document: object) -> tuple[int, bytes]:
        connection = self._connection(random.choice(self._hosts))
        headers = {"Client-ID": CLIENT, "X-Project-ID": queue.project}
        body = None if document is None else json.dumps(document)
        try:
            connection.request(method, f"/v2/queues/{queue.name}{path}", body, headers)
            reply: HTTPResponse = connection.getresponse()
            return reply.status, reply.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise Away if isinstance(error, ConnectionRefusedError) else Unsure(repr(error)) from error

    def _connection(self, host: str) -> HTTPConnection:
        """Return this thread's connection to a server; a closed one reopens automatically."""
        own = self._own.__dict__.setdefault("connections", {})
        if host not in own:
            own[host] = HTTPConnection(host, timeout=TIMEOUT)
            self._opened.append(own[host])
        return own[host]


def shown(messages: list[Any]) -> list[Seen]:
    """Return the messages of a listing or a claim, with id and claim from their hrefs."""
    found = []
    for message in messages:
        href = urlsplit(message["href"])
        claim = parse_qs(href.query).get("claim_id", [""])[0]
        found.append(Seen(message["body"], href.path.rpartition("/")[2], claim))
    return found
