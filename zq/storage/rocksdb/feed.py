# SPDX-License-Identifier: Apache-2.0
"""Tells what is published in followed projects, in the order of the log and never before it is settled."""

from zq.storage.rocksdb.log import Log
from zq.topics import Batch, Listener


class Feed:
    """Batches stand in line from the step in which they are published; whoever has settled his own tells all up to it.

    All that lies before it in the log was written before it, and so is settled too.
    """

    def __init__(self) -> None:
        self.listener: Listener | None = None
        self._followed: set[str] = set()

    def follow(self, project: str) -> None:
        self._followed.add(project)

    def unfollow(self, project: str) -> None:
        self._followed.discard(project)

    def line_up(self, log: Log, last: int, news: Batch | None) -> None:
        """To be told once everything up to ``last`` is settled. The caller holds the log's lock."""
        if log.project in self._followed:
            log.line.append((last, news))

    def tell(self, log: Log, last: int) -> None:
        """Everything up to ``last`` is settled."""
        if not log.line:
            return
        with log.telling:
            while log.line and log.line[0][0] <= last:
                self._tell(log.project, log.line.popleft()[1])

    def lose(self, log: Log) -> None:
        """What stands in line may never be told."""
        self._tell(log.project, None)

    def _tell(self, project: str, news: Batch | None) -> None:
        listener = self.listener
        if listener is not None and project in self._followed:
            listener(project, news, news.sequence - 1 if news else 0)
