# SPDX-License-Identifier: Apache-2.0
"""Clients that hammer a server which may be killed at any moment, and remember what they were told.

Each records acknowledged effects, and apart from them those whose answer was lost: such a thing may have happened
or not, but never by half. Nothing is asked again with the same content, the reader's pages excepted.
"""

import itertools
import threading
from abc import ABC, abstractmethod
from typing import Any

from tests.servers import Answer, Lost, ask


class Traffic:
    """All clients of one run; a context manager that starts them and joins them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.over = threading.Event()
        self.acknowledged = 0
        self.producers: list[Producer] = []
        self.claimers: list[Claimer] = []
        self.poppers: list[Popper] = []
        self.reader: Reader | None = None

    def __enter__(self) -> "Traffic":
        for client in self._clients():
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for client in self._clients():
            client.join(60)
            assert not client.is_alive()

    def _clients(self) -> "list[Client]":
        return [*self.producers, *self.claimers, *self.poppers, *([self.reader] if self.reader else [])]


class Client(threading.Thread, ABC):
    """One thread that takes turns until the traffic is over."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self.traffic = traffic

    def run(self) -> None:
        while not self.traffic.over.is_set() and self.turn() is not False:
            pass

    @abstractmethod
    def turn(self) -> bool | None:
        """One unit of work; False ends the thread."""

    def ask(self, method: str, path: str, document: object = None) -> Answer | None:
        """The answer; None if it was lost or the store was away, after a moment that lets the server come back."""
        try:
            answer = ask(self.traffic.url, method, path, document)
        except Lost:
            self.traffic.over.wait(0.05)
            return None
        if answer.status == 503:
            return None
        assert answer.status < 400, (method, path, answer)
        self.traffic.acknowledged += 1
        return answer


class Producer(Client):
    """Posts one to five messages at a time, with bodies ``<name>-<number>``."""

    def __init__(self, traffic: Traffic, name: str) -> None:
        super().__init__(traffic)
        self.name = name
        self.numbers = itertools.count()
        self.acknowledged: list[list[str]] = []
        self.unanswered: list[list[str]] = []

    def turn(self) -> None:
        first = next(self.numbers)
        post = [f"{self.name}-{first}", *(f"{self.name}-{next(self.numbers)}" for _ in range(first % 5))]
        document = {"messages": [{"body": body, "ttl": 3600} for body in post]}
        answer = self.ask("POST", "/v2/queues/posts/messages", document)
        (self.unanswered if answer is None else self.acknowledged).append(post)


class Claimer(Client):
    """Claims four messages for longer than any test, and deletes some of them one by one."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic)
        self.claims: dict[str, set[str]] = {}
        self.deleted: set[str] = set()
        self.unsure: set[str] = set()

    def turn(self) -> bool | None:
        answer = self.ask("POST", "/v2/queues/work/claims?limit=4", {"ttl": 3600, "grace": 60})
        if answer is None:
            return None
        if answer.status == 204:
            return False
        claim = answer.headers["location"].split("/")[-1]
        messages = [message["href"].split("/")[-1].split("?")[0] for message in answer.document["messages"]]
        self.claims[claim] = set(messages)
        for message in messages[: len(self.claims) % 5]:
            gone = self.ask("DELETE", f"/v2/queues/work/messages/{message}?claim_id={claim}")
            (self.unsure if gone is None else self.deleted).add(message)
        return None


class Popper(Client):
    """Pops; an answer that was lost may have taken ``LIMIT`` messages with it."""

    LIMIT = 3

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic)
        self.popped: list[str] = []
        self.unanswered = 0

    def turn(self) -> bool | None:
        answer = self.ask("DELETE", f"/v2/queues/pops/messages?pop={self.LIMIT}")
        if answer is None:
            self.unanswered += 1
            return None
        self.popped += [message["body"] for message in answer.document["messages"]]
        return bool(answer.document["messages"])


class Reader(Client):
    """Follows the markers of the producers' queue from its start, and asks for a lost page again."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic)
        self.seen: list[Any] = []
        self.path = "/v2/queues/posts/messages?limit=20&echo=true&include_claimed=true&include_delayed=true"

    def turn(self) -> bool | None:
        answer = self.ask("GET", self.path)
        if answer is None:
            return None
        if not answer.document["messages"]:
            self.traffic.over.wait(0.02)
            return None
        self.seen += [message["body"] for message in answer.document["messages"]]
        self.path = answer.document["links"][0]["href"]
        return None

    def finish(self) -> None:
        """Read on to the end, after the traffic."""
        while True:
            before = len(self.seen)
            self.turn()
            if len(self.seen) == before:
                return
