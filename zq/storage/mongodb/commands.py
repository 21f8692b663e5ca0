# SPDX-License-Identifier: Apache-2.0
"""Helpers for commands and replies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pymongo.command_cursor import CommandCursor
from pymongo.errors import DuplicateKeyError, NotPrimaryError, OperationFailure, PyMongoError, WriteConcernError

from zq.model import UNBOUNDED
from zq.storage.mongodb.layout import BsonDocument, size_of

S = TypeVar("S", bound=Mapping[str, Any])
# Maximum size of the messages in one command, in bytes. The server's limit is 16 MiB for the entire command.
LARGEST: Final = 8 << 20
# Number of documents in the first reply to a search with ``max_bytes``.
FIRST_BATCH_SIZE: Final = 32
DUPLICATE_KEY: Final = 11000
WRITE_CONFLICT: Final = 112
# The code of the error that the guards of ``floors`` raise.
CONVERSION_FAILURE: Final = 241
# The error codes of a server that is not the primary.
NOT_PRIMARY: Final = frozenset({91, 189, 10058, 10107, 11600, 11602, 13435, 13436})
TRANSIENT: Final = "TransientTransactionError"


class RemovalPending(OperationFailure):
    """An error that rejects a write to a queue with a pending purge or deletion.

    Some of the messages that the purge or deletion has removed are not yet deleted from the database.
    """


def read_up_to(cursor: CommandCursor[BsonDocument], max_bytes: int) -> list[BsonDocument]:
    """Return documents from the cursor until the total size of the documents reaches ``max_bytes``."""
    if max_bytes >= UNBOUNDED:
        return list(cursor)
    documents: list[BsonDocument] = []
    left = max_bytes
    with cursor:
        for document in cursor:
            documents.append(document)
            left -= size_of(document)
            if left <= 0:
                break
            if len(documents) == FIRST_BATCH_SIZE:
                cursor.batch_size(2 + left * FIRST_BATCH_SIZE // (max_bytes - left))
    return documents


def split(statements: Sequence[S], document_of: Callable[[S], Any]) -> Iterator[Sequence[S]]:
    """Split statements into lists with at most ``LARGEST`` bytes of documents. A larger statement gets its own list."""
    start = weight = 0
    for at, statement in enumerate(statements):
        document = document_of(statement)
        size = size_of(document) if isinstance(document, dict) else 0
        if weight + size > LARGEST and at > start:
            yield statements[start:at]
            start, weight = at, 0
        weight += size
    if start < len(statements):
        yield statements[start:]


def is_conflict(error: PyMongoError) -> bool:
    """Return whether the error is a conflict with another transaction that has written the same document."""
    return isinstance(error, OperationFailure) and error.code in (WRITE_CONFLICT, DUPLICATE_KEY)


def is_transient(error: PyMongoError) -> bool:
    """Return whether the transaction may succeed if it is retried."""
    # Two transactions can create the same queue, fence or stage. A duplicate message id is a permanent error.
    if isinstance(error, DuplicateKeyError):
        return not str(((error.details or {}).get("keyValue") or {}).get("_id", "m")).startswith("m")
    return error.has_error_label(TRANSIENT)


ERROR_TYPES: Final = {DUPLICATE_KEY: DuplicateKeyError, CONVERSION_FAILURE: RemovalPending}


def check_reply(reply: Mapping[str, Any]) -> BsonDocument:
    """Return the reply to a command, or raise the first error that the reply contains."""
    for error in reply.get("writeErrors", ()):
        raise ERROR_TYPES.get(error["code"], OperationFailure)(error["errmsg"], error["code"], error)
    if "writeConcernError" in reply:
        error = reply["writeConcernError"]
        if error.get("code") in NOT_PRIMARY:
            raise NotPrimaryError(error.get("errmsg", ""), error)
        raise WriteConcernError(error.get("errmsg", ""), error.get("code"), error)
    return dict(reply)
