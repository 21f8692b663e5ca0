# SPDX-License-Identifier: Apache-2.0
"""Batch operations on up to ten messages.

An invalid entry does not affect other entries.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from msgspec import Struct

from zq.model import HandleOutcome, MessageHandle, QueueRef
from zq.model.claims import DONE
from zq.sqs import errors, receipts
from zq.sqs.call import Call, Params, QueueParams
from zq.sqs.extension import QueueAttributes
from zq.sqs.messages import (
    MAX_MESSAGES,
    NO_ID,
    TOO_LONG,
    MessageParams,
    SentMessage,
    find_expiry_error,
    find_queue,
    find_visibility_error,
    make_visibility_change,
    message_id,
    prepare_message,
)

# One or more entry ids, joined by line feeds.
IDS: Final = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\n[A-Za-z0-9_-]{1,80})*", re.ASCII)
# Maximum total size of the messages in a batch, in bytes.
MAX_BATCH_BYTES: Final = 1_048_576


class SendEntry(MessageParams, frozen=True, kw_only=True):
    id: str


class DeleteEntry(Params, frozen=True):
    id: str
    receipt_handle: str


class ChangeEntry(Params, frozen=True):
    id: str
    receipt_handle: str
    visibility_timeout: int = 0


class SendMessageBatch(QueueParams, frozen=True):
    entries: list[SendEntry] = []


class DeleteMessageBatch(QueueParams, frozen=True):
    entries: list[DeleteEntry] = []


class ChangeMessageVisibilityBatch(QueueParams, frozen=True):
    entries: list[ChangeEntry] = []


Entry = SendEntry | DeleteEntry | ChangeEntry
E = TypeVar("E", SendEntry, DeleteEntry, ChangeEntry)
T = TypeVar("T")


class SuccessfulEntry(Struct, rename="pascal"):
    """The result of a successful batch entry whose operation returns no data."""

    id: str


class FailedEntry(Struct, rename="pascal"):
    """The result of a failed batch entry."""

    id: str
    sender_fault: bool
    code: str
    message: str


class BatchResponse(Struct, omit_defaults=True, rename="pascal"):
    """The response to a batch request. Both lists of results are in the order of the request."""

    successful: list[SentMessage | SuccessfulEntry] = []
    failed: list[FailedEntry] = []

    def fail(self, id: str, refusal: errors.SqsError) -> None:
        """Add the result of a failed batch entry."""
        self.failed.append(FailedEntry(id, not refusal.receiver, refusal.entry_code, refusal.message))

    def sort_failed(self, given: Sequence[Entry]) -> "BatchResponse":
        """Sort the failed entries in the order of the request entries ``given``, and return ``self``."""
        if len(self.failed) > 1:
            ids = [entry.id for entry in given]
            self.failed.sort(key=lambda failed: ids.index(failed.id))
        return self


def send_message_batch(call: Call, request: SendMessageBatch) -> BatchResponse:
    """Send the valid messages of a batch, in order and in one atomic change."""
    queue, terms = _check_batch(call, request.queue_url, request.entries, "SendMessageBatchRequestEntry")
    if terms.fifo:
        _check_ids(request.entries, terms)
    answer = BatchResponse()
    made = _make_each(answer, request.entries, partial(prepare_message, call, terms))
    messages = [message for message, _ in made.values()]
    size = sum([message.size for message in messages])
    if size > MAX_BATCH_BYTES:
        raise errors.batch_request_too_long(size)
    if not messages:
        return answer
    sent = call.use_cases.messaging.send(queue, call.sender, messages)
    for (name, (_, receipt)), id in zip(made.items(), sent.ids, strict=True):
        if id is not None:
            receipt.id, receipt.message_id = name, message_id(id)
            if sent.sequences:
                receipt.set_sequence(id, sent.sequences)
            answer.successful.append(receipt)
            continue
        reason = f"One or more parameters cannot be validated. Reason: {TOO_LONG.format(sent.max_size)}"
        answer.fail(name, errors.invalid_parameter(reason))
    return answer.sort_failed(request.entries)


def delete_message_batch(call: Call, request: DeleteMessageBatch) -> BatchResponse:
    """Delete messages. Each entry follows the rules of ``delete_message``."""
    entries = request.entries
    queue, terms = _check_batch(call, request.queue_url, entries, "DeleteMessageBatchRequestEntry")
    answer, handles = BatchResponse(), {}
    found = receipts.decode_handles(queue, [entry.receipt_handle for entry in entries])
    for entry, handle in zip(entries, found, strict=True):
        if handle is None:
            answer.fail(entry.id, errors.receipt_handle_is_invalid(entry.receipt_handle))
        else:
            handles[entry.id] = handle
    return _handle(
        call,
        queue,
        entries,
        handles,
        answer,
        lambda outcome, one: find_expiry_error(terms, outcome, one.receipt_handle),
    )


def change_message_visibility_batch(call: Call, request: ChangeMessageVisibilityBatch) -> BatchResponse:
    """Set visibility timeouts. Each entry follows the rules of ``change_message_visibility``."""
    queue, terms = _check_batch(call, request.queue_url, request.entries, "ChangeMessageVisibilityBatchRequestEntry")
    call.request.context.releases = any(each.visibility_timeout == 0 for each in request.entries)

    def refusal(outcome: HandleOutcome, one: ChangeEntry) -> errors.SqsError | None:
        return find_visibility_error(terms, outcome, one.receipt_handle, one.visibility_timeout)

    answer = BatchResponse()
    handles = _make_each(
        answer,
        request.entries,
        lambda each: make_visibility_change(queue, each.receipt_handle, each.visibility_timeout),
    )
    return _handle(call, queue, request.entries, handles, answer, refusal)


def _handle(
    call: Call,
    queue: QueueRef,
    given: Sequence[E],
    handles: Mapping[str, MessageHandle],
    answer: BatchResponse,
    refusal: Callable[[HandleOutcome, E], errors.SqsError | None],
) -> BatchResponse:
    """Delete messages or change their visibility timeouts, and add the results to ``answer``.

    ``handles`` maps the id of each valid entry to its operation. If an operation fails, ``refusal`` returns the error
    of the entry, or None if the failure counts as success.
    """
    handled = call.use_cases.messaging.handle(queue, list(handles.values())) if handles else ()
    for id, outcome in zip(handles, handled, strict=True):
        failure = None
        if outcome is not DONE:
            failure = refusal(outcome, next(entry for entry in given if entry.id == id))
        if failure is None:
            answer.successful.append(SuccessfulEntry(id))
        else:
            answer.fail(id, failure)
    return answer.sort_failed(given)


def _check_ids(entries: Sequence[SendEntry], terms: QueueAttributes) -> None:
    """Check that each entry for a FIFO queue has a group id and, if the queue requires it, a deduplication id.

    Raises ``SqsError`` if an id is missing.
    """
    for entry in entries:
        if entry.message_group_id is None:
            raise errors.invalid_parameter("The request must contain the parameter MessageGroupId.")
        if entry.message_deduplication_id is None and not terms.content_dedup:
            raise errors.invalid_parameter(NO_ID)


def _check_batch(call: Call, url: str, entries: Sequence[Entry], kind: str) -> tuple[QueueRef, QueueAttributes]:
    queue, terms = find_queue(call, url)
    if not entries:
        raise errors.empty_batch_request(kind)
    if len(entries) > MAX_MESSAGES:
        raise errors.too_many_entries(len(entries))
    ids = [entry.id for entry in entries]
    listed = "\n".join(ids)
    if not IDS.fullmatch(listed) or listed.count("\n") >= len(ids):
        raise errors.invalid_batch_entry_id()
    if len(set(ids)) < len(ids):
        raise errors.batch_entry_ids_not_distinct(next(id for at, id in enumerate(ids) if id in ids[:at]))
    return queue, terms


def _make_each(answer: BatchResponse, entries: Sequence[E], make: Callable[[E], T]) -> dict[str, T]:
    made = {}
    for entry in entries:
        try:
            made[entry.id] = make(entry)
        except errors.SqsError as refusal:
            answer.fail(entry.id, refusal)
    return made
