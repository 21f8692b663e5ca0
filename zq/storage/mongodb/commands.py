# SPDX-License-Identifier: Apache-2.0
"""Commands and replies without I/O: the size of a command, and the errors inside a reply."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pymongo.command_cursor import CommandCursor
from pymongo.errors import DuplicateKeyError, NotPrimaryError, OperationFailure, PyMongoError, WriteConcernError

from zq.model import UNBOUNDED
from zq.storage.mongodb.layout import BsonDocument

S = TypeVar("S", bound=Mapping[str, Any])
# Bytes of bodies in one command; the server takes 16 MiB in all.
LARGEST: Final = 8 << 20
# Documents in the first reply if the number of wanted ones depends on their bytes.
PORTION: Final = 32
DUPLICATE_KEY: Final = 11000
WRITE_CONFLICT: Final = 112
# The code of the error that the guards of ``floors`` raise.
CONVERSION_FAILURE: Final = 241
# Error codes of a server that is not the primary, or no longer.
NOT_PRIMARY: Final = frozenset({91, 189, 10058, 10107, 11600, 11602, 13435, 13436})
TRANSIENT: Final = "TransientTransactionError"


class RemovalPending(OperationFailure):
    """A queue has messages below its floor that are not deleted yet."""


def taken(cursor: CommandCursor[BsonDocument], most_bytes: int) -> list[BsonDocument]:
    """Return the first documents, up to the one with which their bodies have ``most_bytes``.

    The size of the first ``PORTION`` decides how many are in the next reply, so that small ones come in one.
    """
    if most_bytes >= UNBOUNDED:
        return list(cursor)
    taken: list[BsonDocument] = []
    left = most_bytes
    with cursor:
        for document in cursor:
            taken.append(document)
            left -= len(document.get("b", b""))
            if left <= 0:
                break
            if len(taken) == PORTION:
                cursor.batch_size(2 + left * PORTION // (most_bytes - left))
    return taken


def parts(statements: Sequence[S], document_of: Callable[[S], Any]) -> Iterator[Sequence[S]]:
    """Yield the statements in as few commands as their messages' bodies allow."""
    start = weight = 0
    for at, statement in enumerate(statements):
        document = document_of(statement)
        body = len(document.get("b", b"")) if isinstance(document, dict) else 0
        if weight + body > LARGEST and at > start:
            yield statements[start:at]
            start, weight = at, 0
        weight += body
    if start < len(statements):
        yield statements[start:]


def is_conflict(error: PyMongoError) -> bool:
    """Return whether a transaction conflicts with another one that writes the same document."""
    return isinstance(error, OperationFailure) and error.code in (WRITE_CONFLICT, DUPLICATE_KEY)


def is_transient(error: PyMongoError) -> bool:
    """Return whether the same transaction may succeed when it is run again."""
    if isinstance(error, DuplicateKeyError):  # two created the same queue, fence, stage ...; a message never
        return not str(((error.details or {}).get("keyValue") or {}).get("_id", "m")).startswith("m")
    return error.has_error_label(TRANSIENT)


KINDS: Final = {DUPLICATE_KEY: DuplicateKeyError, CONVERSION_FAILURE: RemovalPending}


def checked(reply: Mapping[str, Any]) -> BsonDocument:
    """Return the reply. Raise the first error in it."""
    for error in reply.get("writeErrors", ()):
        raise KINDS.get(error["code"], OperationFailure)(error["errmsg"], error["code"], error)
    if "writeConcernError" in reply:
        error = reply["writeConcernError"]
        if error.get("code") in NOT_PRIMARY:
            raise NotPrimaryError(error.get("errmsg", ""), error)
        raise WriteConcernError(error.get("errmsg", ""), error.get("code"), error)
    return dict(reply)
