# SPDX-License-Identifier: Apache-2.0
"""Known keys: what a request that is to have its effect once was answered, stored in the transaction of the effect.

There is no state of "running": two with the same key write the same document, so one of them is run again and finds it.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from zq.errors import KeyReused, Repeated
from zq.model import Once
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port, Session

Answer = TypeVar("Answer")
BEFORE_ALL: Final = 0
"""As a sequence: the key goes with its queue, whenever that is deleted."""


class Attempt(NamedTuple):
    """A request under a key, at its moment (milliseconds)."""

    key: QueueKey
    once: Once
    now: int

    @property
    def place(self) -> str:
        """``_id`` of its key."""
        return self.key.named("o", self.once.key)


class Keyed(Protocol):
    """A request that may have a key by which it is known again."""

    @property
    def attempts(self) -> Sequence[Attempt]:
        """One, if it has."""
        ...


Request = TypeVar("Request", bound=Keyed)


def unless_known(
    port: Port,
    session: Session,
    requests: Sequence[Request],
    answer: type[Any],
    effect: Callable[[Sequence[Request]], Sequence[Answer]],
) -> list[Answer | Exception]:
    """Do ``effect`` for the requests whose key is not known, if there are any; what each is told or raised."""
    known = recall(port, session, [one for request in requests for one in request.attempts], answer)
    refused = [next((known[one.place] for one in each.attempts if one.place in known), None) for each in requests]
    fresh = [request for request, refusal in zip(requests, refused, strict=True) if refusal is None]
    answers = iter(effect(fresh) if fresh else ())
    return [next(answers) if refusal is None else refusal for refusal in refused]


def recall(
    port: Port, session: Session, attempts: Sequence[Attempt], answer: type[Answer]
) -> dict[str, Repeated | KeyReused]:
    """What is to be raised to those whose key is known, by ``place``. ``answer``: the type of what ``remember`` got."""
    if not attempts:
        return {}
    named: Document = {"_id": {"$in": [attempt.place for attempt in attempts]}}
    if port.sharded:
        named["s"] = {"$in": [attempt.key.shard for attempt in attempts]}
    found = {known["_id"]: known for known in port.find(named, hint="_id_", session=session)}
    return {
        attempt.place: _verdict(found[attempt.place], attempt.once, answer)
        for attempt in attempts
        if attempt.place in found and int(found[attempt.place]["e"]) > attempt.now
    }


def remember(port: Port, session: Session, answers: Sequence[tuple[Attempt, Any, int]]) -> None:
    """Remember what each is answered, and the sequence up to which a removal of its queue takes the key along."""
    port.update(
        [
            {
                "q": {"_id": attempt.place, "s": attempt.key.shard},
                "u": {
                    "s": attempt.key.shard,
                    "q": attempt.key.known,
                    "k": sequence,
                    "e": DatetimeMS(attempt.now + attempt.once.window * 1000),
                    "h": Binary(attempt.once.digest),
                    "b": json.dumps(msgspec.to_builtins(answer)),  # pure ASCII, so lone surrogates come back
                },
                "upsert": True,
            }
            for attempt, answer, sequence in answers
        ],
        session,
    )


def _verdict(known: Document, once: Once, answer: type[Any]) -> Repeated | KeyReused:
    if bytes(known["h"]) != once.digest:
        return KeyReused("The Idempotency-Key was given before, to another request.")
    return Repeated(msgspec.convert(json.loads(known["b"]), answer))
