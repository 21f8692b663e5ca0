# SPDX-License-Identifier: Apache-2.0
"""Deletions of single messages, many threads' in one command or transaction, whatever their queues.

A command waits for the journal once, which costs more than a handful of deletions. Its reply tells only how many went;
so if they are fewer than asked, each caller has to look for itself. (Updates of claims gain nothing by this: with ten
documents each, the update itself is the cost, and one after the other on the server is slower than side by side.)

Those that leave a record go together in a transaction, since any two of one queue would meet at its counter.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from zq.errors import ClaimNotHeld, MessageClaimed
from zq.model import Outcome
from zq.storage.mongodb import layout
from zq.storage.mongodb.combine import LINGER, Combiner
from zq.storage.mongodb.finishing import Ending, finish
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port, Session

GROUP: Final = 256


class Deletion(NamedTuple):
    """One caller's message (its ``_id``), the claim that it names, and how long the record is kept."""

    key: QueueKey
    place: str
    now: int
    claim: str
    history: int


class Deletions:
    """Deletions of one process."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._line = Combiner[Document, bool](self._delete, lambda _: 1, GROUP, port.timeout)
        self._records: defaultdict[str, Combiner[Deletion, None]] = defaultdict(
            lambda: Combiner(self._finish, lambda _: 1, GROUP, port.timeout, LINGER)
        )

    def delete(self, conditions: Document) -> bool:
        """Delete the one document that fits; False = perhaps there was none."""
        return self._line.ask(conditions)

    def _delete(self, wanted: Sequence[Document]) -> Sequence[bool]:
        statements = [{"q": conditions, "limit": 1, "hint": "_id_"} for conditions in wanted]
        return [self._port.delete(statements) == len(wanted)] * len(wanted)

    def finish(self, deletion: Deletion) -> None:
        """Turn the message into a record, if it is there. Raises ``MessageClaimed``, ``ClaimNotHeld``."""
        self._records[deletion.key.shard if self._port.sharded else ""].ask(deletion)

    def _finish(self, wanted: Sequence[Deletion]) -> Sequence[Exception | None]:
        with self._port.turns.at({deletion.key.finishing for deletion in wanted}):
            return self._port.transaction(partial(self._finish_all, wanted))

    def _finish_all(self, wanted: Sequence[Deletion], session: Session) -> Sequence[Exception | None]:
        now = max(deletion.now for deletion in wanted)  # as if all had read the latest clock
        named: Document = {"_id": {"$in": [one.place for one in wanted]}}
        if self._port.sharded:
            named["s"] = {"$in": [one.key.shard for one in wanted]}
        found = {one["_id"]: one for one in self._port.find(named, fields={"q": 1, "e": 1, "c": 1}, session=session)}
        answers: list[Exception | None] = []
        ending: defaultdict[tuple[QueueKey, int], list[str]] = defaultdict(list)
        for one in wanted:
            message = found.get(one.place)
            refusal = None
            if message and message["q"] == one.key.messages and int(message["e"]) > now:
                refusal = refusal_of(message.get("c", {}), one.claim, now)
                if refusal is None:
                    ending[one.key, one.history].append(found.pop(one.place)["_id"])
            answers.append(refusal)
        for (key, history), places in sorted(ending.items(), key=lambda item: item[0][0].shard):
            finish(self._port, session, key, places, Ending(Outcome.DELETED, now, history))
        return answers


def refusal_of(claim: Document, named: str, now: int) -> MessageClaimed | ClaimNotHeld | None:
    """Why a caller who names a claim, or none, may not delete what is, or was, under a claim; None if it may."""
    held = claim.get("e", 0) > now
    if held and claim["i"] != layout.text(named):
        return MessageClaimed("The message is held by a claim that was not given as claim_id.")
    if named and not held:
        return ClaimNotHeld("The claim given as claim_id does not hold the message.")
    return None
