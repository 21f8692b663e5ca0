# SPDX-License-Identifier: Apache-2.0
"""Update and delete commands that concurrent requests share, without a transaction and across queues."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.group_commit import FAULTS
from zq.storage.mongodb.layout import BsonDocument

# Maximum number of messages in one command or transaction.
CAPACITY: Final = 256
# Maximum number of commands or transactions at a time. With one, a request may wait for two journal commits; with more,
# fewer requests share a command. Requests per second on a busy machine (claims of 10 and deletions, 16 connections,
# 8 queues), and processor time, relative to separate commands: 0.83 and 0.79 with one, 0.99 and 0.85 with two, 1.11 and
# 0.89 with three.
PARALLEL: Final = 2


class CountedStatements(NamedTuple):
    """The statements of one request, and the number of documents that the statements should write."""

    statements: Sequence[BsonDocument]
    expected: int


class SharedCommands:
    """A batcher that combines the update or delete statements of concurrent requests into one command.

    A retried command may be executed twice, so a repeated statement must change nothing.
    """

    def __init__(self, client: StoreClient, send: Callable[[Sequence[BsonDocument]], int]) -> None:
        """Create the batcher. ``send`` executes statements and returns the number of written documents."""
        self._send = send
        self._groups = GroupCommit[CountedStatements, bool](
            self._execute,
            weigh=lambda request: request.expected,
            capacity=CAPACITY,
            timeout=client.timeout,
            parallel=PARALLEL,
            one_by_one_after=FAULTS,
        )

    def submit(self, statements: Sequence[BsonDocument], expected: int) -> bool:
        """Execute the statements, and return whether they have certainly written the expected number of documents.

        MongoDB reports only the total number of documents for all requests of a command. If this number is too low, all
        these requests return False, and each caller must check its own documents.
        """
        return self._groups.submit(CountedStatements(statements, expected))

    def _execute(self, requests: Sequence[CountedStatements]) -> Sequence[bool]:
        written = self._send([statement for request in requests for statement in request.statements])
        return [written == sum(request.expected for request in requests)] * len(requests)
