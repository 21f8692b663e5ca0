# SPDX-License-Identifier: Apache-2.0
"""Small writes of many threads in few commands: what waits in this process goes together, whatever the queues.

Each command waits for the journal once, which costs more than a handful of documents. A reply tells only how many
documents fitted in all statements together; so if it is fewer than asked, each caller has to look for itself.
"""

from collections.abc import Sequence
from typing import NamedTuple

from zq.storage.mongodb.combine import LINGER, Combiner
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.port import Port

GROUP = 512
"""Documents in one command."""


class Write(NamedTuple):
    """Statements, and how many documents they are to fit."""

    statements: Sequence[Document]
    expected: int


class Writes:
    """Writes of one process."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._updates = Combiner[Write, bool](self._update, _weight, GROUP, port.timeout, LINGER)
        self._deletions = Combiner[Write, bool](self._delete, _weight, GROUP, port.timeout, LINGER)

    def update(self, statements: Sequence[Document], expected: int) -> bool:
        """Update; False = perhaps not all."""
        return self._updates.ask(Write(statements, expected))

    def delete_one(self, conditions: Document) -> bool:
        """Delete the document that fits; False = perhaps there was none."""
        return self._deletions.ask(Write([{"q": conditions, "limit": 1, "hint": "_id_"}], 1))

    def _update(self, writes: Sequence[Write]) -> Sequence[bool]:
        return [self._port.update(_statements(writes)) == _weights(writes)] * len(writes)

    def _delete(self, writes: Sequence[Write]) -> Sequence[bool]:
        return [self._port.delete(_statements(writes)) == _weights(writes)] * len(writes)


def _weight(write: Write) -> int:
    return write.expected


def _weights(writes: Sequence[Write]) -> int:
    return sum(write.expected for write in writes)


def _statements(writes: Sequence[Write]) -> list[Document]:
    return [statement for write in writes for statement in write.statements]
