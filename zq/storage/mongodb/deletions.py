# SPDX-License-Identifier: Apache-2.0
"""Deletions of single messages, many threads' in one command, whatever their queues.

A command waits for the journal once, which costs more than a handful of deletions. Its reply tells only how many went;
so if they are fewer than asked, each caller has to look for itself. (Updates of claims gain nothing by this: with ten
documents each, the update itself is the cost, and one after the other on the server is slower than side by side.)
"""

from collections.abc import Sequence

from zq.storage.mongodb.combine import Combiner
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.port import Port

GROUP = 256


class Deletions:
    """Deletions of one process."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._line = Combiner[Document, bool](self._delete, lambda _: 1, GROUP, port.timeout)

    def delete(self, conditions: Document) -> bool:
        """Delete the one document that fits; False = perhaps there was none."""
        return self._line.ask(conditions)

    def _delete(self, wanted: Sequence[Document]) -> Sequence[bool]:
        statements = [{"q": conditions, "limit": 1, "hint": "_id_"} for conditions in wanted]
        return [self._port.delete(statements) == len(wanted)] * len(wanted)
