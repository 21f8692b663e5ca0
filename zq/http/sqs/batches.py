# SPDX-License-Identifier: Apache-2.0
"""The operations on up to ten messages: the good entries are carried out together, the others fail by themselves."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct

from zq.broker.sqs import SqsTerms
from zq.http.sqs import errors, receipts
from zq.http.sqs.call import Call, Params
from zq.http.sqs.messages import (
    MOST,
    NO_ID,
    TOO_LONG,
    Letter,
    Written,
    existing,
    expired,
    hiding,
    not_hidden,
    written,
)
from zq.model import Grip, Handled, QueueRef

# The id of an entry.
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
# Bytes of all messages that are sent together.
LARGEST: Final = 1_048_576


class SendEntry(Letter, frozen=True, kw_only=True):
    id: str


class DeleteEntry(Params, frozen=True):
    id: str
    receipt_handle: str


class ChangeEntry(Params, frozen=True):
    id: str
    receipt_handle: str
    visibility_timeout: int = 0


class SendMessageBatch(Params, frozen=True):
    queue_url: str
    entries: list[SendEntry] = []


class DeleteMessageBatch(Params, frozen=True):
    queue_url: str
    entries: list[DeleteEntry] = []


class ChangeMessageVisibilityBatch(Params, frozen=True):
    queue_url: str
    entries: list[ChangeEntry] = []


Entry = SendEntry | DeleteEntry | ChangeEntry
E = TypeVar("E", SendEntry, DeleteEntry, ChangeEntry)
T = TypeVar("T")


class Sorted(Struct):
    """What was made of each entry that is good, and what is answered of those that failed, all by their ids."""

    ids: list[str]
    made: dict[str, Any] = {}
    failed: dict[str, dict[str, Any]] = {}

    def fail(self, id: str, refusal: errors.SqsError) -> None:
        """This entry has failed."""
        self.failed[id] = {
            "Id": id,
            "SenderFault": not refusal.receiver,
            "Code": refusal.entry_code,
            "Message": refusal.message,
        }

    def answer(self, successful: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """In the order of the request, and without a list that has nothing."""
        lists = {"Successful": successful, "Failed": [self.failed[id] for id in self.ids if id in self.failed]}
        return {name: entries for name, entries in lists.items() if entries}


def send_message_batch(call: Call, given: SendMessageBatch) -> dict[str, Any]:
    """Store messages, in one step and in their order."""
    queue, terms = _checked(call, given.queue_url, given.entries, "SendMessageBatchRequestEntry")
    if terms.fifo:
        _check_ids(given.entries, terms)
    entries = _sorted(given.entries, lambda entry: written(call, entry, terms))
    letters: dict[str, Written] = entries.made
    size = sum(letter.outgoing.size for letter in letters.values())
    if size > LARGEST:
        raise errors.batch_request_too_long(size)
    if not letters:
        return entries.answer([])
    sent = call.broker.sqs.send(queue, call.sender, [letter.outgoing for letter in letters.values()])
    successful = []
    for (name, letter), id in zip(letters.items(), sent.ids, strict=True):
        if id is not None:
            successful.append({"Id": name, **letter.answer(id, sent.sequences)})
            continue
        reason = TOO_LONG.format(sent.max_size)
        entries.fail(name, errors.invalid_parameter(f"One or more parameters cannot be validated. Reason: {reason}"))
    return entries.answer(successful)


def delete_message_batch(call: Call, given: DeleteMessageBatch) -> dict[str, Any]:
    """Remove messages; see ``delete_message``."""
    queue, terms = _checked(call, given.queue_url, given.entries, "DeleteMessageBatchRequestEntry")
    entries = _sorted(given.entries, lambda entry: receipts.grip(queue, entry.receipt_handle))
    return _handled(call, queue, entries, given.entries, lambda became, handle: expired(terms, became, handle))


def change_message_visibility_batch(call: Call, given: ChangeMessageVisibilityBatch) -> dict[str, Any]:
    """Hide messages, each for its own time; see ``change_message_visibility``."""
    queue, terms = _checked(call, given.queue_url, given.entries, "ChangeMessageVisibilityBatchRequestEntry")
    entries = _sorted(given.entries, lambda entry: hiding(call, queue, entry.receipt_handle, entry.visibility_timeout))

    def refusal(became: Handled, handle: str) -> errors.SqsError | None:
        return not_hidden(became, handle) or expired(terms, became, handle)

    return _handled(call, queue, entries, given.entries, refusal)


def _handled(
    call: Call,
    queue: QueueRef,
    entries: Sorted,
    given: Sequence[DeleteEntry] | Sequence[ChangeEntry],
    refusal: Callable[[Handled, str], errors.SqsError | None],
) -> dict[str, Any]:
    """Carry out what is good of the request; ``refusal``: why what became of a handle that was ``given`` is a failure,
    if it is not what was wanted."""
    made: dict[str, Grip] = entries.made
    handled = call.broker.sqs.handle(queue, list(made.values())) if made else ()
    other = {name: became for name, became in zip(made, handled, strict=True) if became is not Handled.DONE}
    for entry in given if other else ():
        if entry.id in other and (failure := refusal(other[entry.id], entry.receipt_handle)):
            entries.fail(entry.id, failure)
    return entries.answer([{"Id": name} for name in made if name not in entries.failed])


def _check_ids(entries: Sequence[SendEntry], terms: SqsTerms) -> None:
    """Raise ``SqsError`` for an entry that a FIFO queue cannot place or cannot tell from others."""
    for entry in entries:
        if not entry.message_group_id:
            raise errors.invalid_parameter("The request must contain the parameter MessageGroupId.")
        if not entry.message_deduplication_id and not terms.content_dedup:
            raise errors.invalid_parameter(NO_ID)


def _checked(call: Call, url: str, entries: Sequence[Entry], kind: str) -> tuple[QueueRef, SqsTerms]:
    """The queue, and what it says of messages. Raises ``SqsError`` where nothing of the request is to be done."""
    queue, terms = existing(call, url)
    if not entries:
        raise errors.empty_batch_request(kind)
    if len(entries) > MOST:
        raise errors.too_many_entries(len(entries))
    ids = [entry.id for entry in entries]
    if not all(map(ID.fullmatch, ids)):
        raise errors.invalid_batch_entry_id()
    if len(set(ids)) < len(ids):
        raise errors.batch_entry_ids_not_distinct(next(id for at, id in enumerate(ids) if id in ids[:at]))
    return queue, terms


def _sorted(entries: Sequence[E], make: Callable[[E], T]) -> Sorted:
    """What ``make`` makes of each entry; those that it refuses have failed."""
    result = Sorted([entry.id for entry in entries])
    made = result.made
    for entry in entries:
        try:
            made[entry.id] = make(entry)
        except errors.SqsError as refusal:
            result.fail(entry.id, refusal)
    return result
