# SPDX-License-Identifier: Apache-2.0
"""Messages by the storage verbs, producers over HTTP that record acknowledgements, and retries of requests."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, Self, TypeVar

from tests.servers import CLIENT, Lost, ask, every_message
from zq.errors import Unavailable
from zq.model import Draft, ListFilter, QueueRef, new_ids
from zq.storage.api import Storage
from zq.storage.object.objects import Objects, ObjectStoreRejection

Some = TypeVar("Some", bound=Objects)
P = ParamSpec("P")
T = TypeVar("T")
QUEUE = QueueRef("acme", "jobs")
EVERYTHING = ListFilter(claimed=True, delayed=True)
# Number of messages of one post.
BATCH = 5


def post(storage: Storage, *bodies: str) -> None:
    """Post the bodies in one request."""
    now = storage.now()
    drafts = [
        Draft(id, json.dumps(body).encode(), 3600, 0, CLIENT)
        for id, body in zip(new_ids(len(bodies), now), bodies, strict=True)
    ]
    storage.messages.post(QUEUE, drafts, now)


def bodies(storage: Storage) -> list[str]:
    """Return all bodies in the queue, in order."""
    found: list[str] = []
    marker = 0
    while True:
        page = storage.messages.list(QUEUE, marker, 100, EVERYTHING, storage.now())
        if not page.items:
            return found
        found += [json.loads(message.body) for message in page.items]
        marker = int(page.next or 0)


class Producers:
    """Threads that post to one server while the context is active."""

    def __init__(self, url: str, name: str, threads: int = 4) -> None:
        self.acknowledged: list[str] = []
        self._url = url
        self._name = name
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        sent = 0
        while not self._ending.is_set():
            posted = [f"{self._name}-{number}-{sent + each}" for each in range(BATCH)]
            document = {"messages": [{"body": body, "ttl": 3600} for body in posted]}
            sent += BATCH
            with suppress(Lost):
                if ask(self._url, "POST", "/v2/queues/jobs/messages", document).status == 201:
                    self.acknowledged += posted


def listed(url: str) -> list[str]:
    """Return the bodies in the queue of a server."""
    return [message["body"] for message in every_message(url, "jobs")]


def patient(objects: Some, within: float = 60.0) -> Some:
    """Make the objects retry requests that fail, because Swift returns 503 on a busy machine."""
    for verb in ("get", "exists", "put", "delete"):
        setattr(objects, verb, _again(getattr(objects, verb), within))
    return objects


def _again(verb: Callable[P, T], within: float) -> Callable[P, T]:
    def asked(*args: P.args, **kwargs: P.kwargs) -> T:
        deadline = time.monotonic() + within
        while True:
            try:
                return verb(*args, **kwargs)
            except ObjectStoreRejection:
                raise
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    return asked
