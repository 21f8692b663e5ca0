# SPDX-License-Identifier: Apache-2.0
"""Access to a store for a token ring: by the storage API, with claims of a second, and over HTTP."""

import hashlib
import json
import random
from collections.abc import Sequence

from tests.campaign.histories.history import Away, Refused, Unsure
from tests.campaign.histories.token_ring import DEAD, RING, Plan, Token
from tests.servers import Lost, ask, every_message
from zq.clock import StoreClock
from zq.errors import ClaimNotFound, Repeated, Unavailable
from zq.model import (
    ClaimRequest,
    Draft,
    IdempotencyKey,
    Lease,
    ListFilter,
    Message,
    Move,
    QueueRef,
    Release,
    Settlement,
    new_ids,
)
from zq.storage.api import Storage

WINDOW = 600
LIFE = 3600
EVERYTHING = ListFilter(claimed=True, delayed=True)


def body_of(token: Token) -> bytes:
    return json.dumps([token.name, token.hops]).encode()


class StorageRing:
    """An open store with claims of a second."""

    claim_ttl = 1.0

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._clock = StoreClock(storage.now)

    def post(self, queue: str, tokens: Sequence[Token], key: str) -> None:
        now = self._clock.now()
        ids = new_ids(len(tokens), now)
        drafts = [Draft(id, body_of(token), LIFE, 0, "") for id, token in zip(ids, tokens, strict=True)]
        try:
            self._storage.messages.post(ref(queue), drafts, now, idempotency_key=once(key, "post"))
        except Repeated:
            return
        except Unavailable as error:
            raise Unsure from error

    def claim(self, queue: str, limit: int) -> tuple[str, dict[str, Token]]:
        now = self._clock.now()
        (claim,) = new_ids(1, now)
        try:
            taken = self._storage.claims.create(ref(queue), ClaimRequest(Lease(claim, 1, 0), limit), now).claim
        except Unavailable as error:
            raise Unsure from error
        return claim, {message.id: token_of(message) for message in taken.messages} if taken else {}

    def settle(self, queue: str, claim: str, plan: Plan, target: str, key: str) -> set[str]:
        moves = [Move(id, target, body=body_of(token)) for id, token in plan.move]
        settlement = Settlement(
            delete=plan.delete,
            release=[Release(id, delay) for id, delay in plan.release],
            move=[*moves, *(Move(id, DEAD, reason="dropped") for id in plan.bury)],
        )
        try:
            done = self._storage.claims.settle(ref(queue), claim, settlement, self._clock.now(), once(key, claim))
        except ClaimNotFound as error:
            raise Refused from error
        except Repeated as repeated:
            done = repeated.answer
        except Unavailable as error:
            raise Unsure from error
        return set(done.lost)

    def redrive(self) -> None:
        now = self._clock.now()
        ready = self._storage.messages.list(ref(DEAD), 0, 50, ListFilter(), now).items
        self._storage.messages.move(ref(DEAD), [Move(message.id, message.origin) for message in ready], now)

    def listing(self, queue: str) -> list[Token]:
        page = self._storage.messages.list(ref(queue), 0, 100_000, EVERYTHING, self._clock.now())
        return [token_of(message) for message in page.items]


def ref(queue: str) -> QueueRef:
    return QueueRef("acme", queue)


def once(key: str, more: str) -> IdempotencyKey:
    return IdempotencyKey(key, hashlib.sha256(more.encode()).digest(), WINDOW)


def token_of(message: Message) -> Token:
    return Token(*json.loads(message.body))


class HttpRing:
    """Several servers on one store; each request goes to a random one."""

    claim_ttl = 60.0

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        for queue in RING:
            ask(urls[0], "PUT", f"/v2/queues/{queue}", {"_dead_letter_queue": DEAD, "_max_claim_count": 1000})

    def post(self, queue: str, tokens: Sequence[Token], key: str) -> None:
        messages = [{"body": [token.name, token.hops], "ttl": LIFE} for token in tokens]
        self._ask("POST", f"/v2/queues/{queue}/messages", {"messages": messages}, key)

    def claim(self, queue: str, limit: int) -> tuple[str, dict[str, Token]]:
        taken = self._ask("POST", f"/v2/queues/{queue}/claims?limit={limit}", {"ttl": 60, "grace": 60})
        if taken is None:
            return "", {}
        held = {message["href"].split("/")[-1].split("?")[0]: Token(*message["body"]) for message in taken["messages"]}
        return taken["messages"][0]["href"].rpartition("claim_id=")[2], held

    def settle(self, queue: str, claim: str, plan: Plan, target: str, key: str) -> set[str]:
        document = {
            "delete": plan.delete,
            "release": [{"id": id} | ({} if delay is None else {"delay": delay}) for id, delay in plan.release],
            "move": [{"id": id, "queue": target, "body": [token.name, token.hops]} for id, token in plan.move],
            "bury": [{"id": id, "reason": "dropped"} for id in plan.bury],
        }
        return set(self._ask("POST", f"/v2/queues/{queue}/claims/{claim}/settle", document, key)["lost"])

    def redrive(self) -> None:
        self._ask("POST", f"/v2/queues/{DEAD}/redrive", {"limit": 50})

    def listing(self, queue: str) -> list[Token]:
        try:
            everything = every_message(random.choice(self._urls), queue)
        except Lost as error:
            raise Unsure from error
        return [Token(*message["body"]) for message in everything]

    def _ask(self, method: str, path: str, document: object, key: str = "") -> dict | None:
        """Return the response's document, or None if it is empty."""
        headers = {"Idempotency-Key": key} if key else {}
        try:
            answer = ask(random.choice(self._urls), method, path, document, headers=headers)
        except Lost as error:
            raise Away if "refused" in str(error) else Unsure(str(error)) from error
        if answer.status in (502, 503, 504):
            raise Unsure(f"{answer.status} {answer.body!r}")
        assert answer.status < 500, (method, path, answer)
        if answer.status >= 400:
            raise Refused(f"{answer.status} {answer.body!r}")
        return json.loads(answer.body) if answer.body else None
