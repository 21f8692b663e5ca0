# SPDX-License-Identifier: Apache-2.0
"""Operations on single messages, and functions that the batch operations share.

The text of an SQS message is stored as a JSON string. If the stored body is a JSON string, an SQS consumer receives the
text of this string. If a zq client has sent any other JSON value, an SQS consumer receives the value as JSON text.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import md5, sha256
from typing import Final

import msgspec
from msgspec import Struct, field

from zq import wire
from zq.core.claims import ClaimReply
from zq.core.waiting import PollResult
from zq.http.claims import holder
from zq.model import HandleOutcome, Message, MessageHandle, QueueRef
from zq.model.attributes import (
    Attributes,
    AttributeValue,
    decode_attributes,
    encode_attributes,
    trim_trace,
    with_trace,
)
from zq.model.limits import is_allowed_text
from zq.sqs import errors, message_attributes, names, receipts
from zq.sqs.call import Call, Params, QueueParams, RequiredText
from zq.sqs.extension import QueueAttributes
from zq.sqs.limits import NUMBERS
from zq.sqs.message_attributes import SentValue
from zq.sqs.messaging import MAX_HOLD, OutgoingMessage

# Maximum message delay in seconds.
MAX_DELAY: Final = NUMBERS["DelaySeconds"][1]
# Maximum wait time of a receive in seconds.
MAX_WAIT: Final = NUMBERS["ReceiveMessageWaitTimeSeconds"][1]
# Maximum number of messages in a receive or a batch.
MAX_MESSAGES: Final = 10
# Matches a message group id, deduplication id or receive attempt id.
GROUP: Final = re.compile(r"[!-~]{1,128}")
GROUP_REASON: Final = "can only include alphanumeric and punctuation characters. 1 to 128 in length."
WRONG_QUEUE_TYPE: Final = "The request includes a parameter that is not valid for this queue type."
NO_MESSAGE_DELAY: Final = "The request include parameter that is not valid for this queue type."
NO_ID: Final = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)
EXPIRED: Final = "The receipt handle has expired."
TOO_LONG: Final = "Message must be shorter than {} bytes."
NOT_CLAIMED: Final = "Message does not exist or is not available for visibility timeout change."
VISIBILITY_TOO_LONG: Final = f"Total VisibilityTimeout for the message is beyond the limit [{MAX_HOLD} seconds]"
# First byte of a body that is a JSON string.
QUOTE: Final = ord('"')
_string: Final = msgspec.json.Decoder(str).decode
# The groups of a UUID's hexadecimal digits.
_UUID: Final = struct.Struct("8s4s4s4s12s")


class MessageParams(Params, frozen=True, kw_only=True):
    """The parameters of a message to send; base class for the request and for a batch entry."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, SentValue] = {}
    message_system_attributes: dict[str, SentValue] = {}
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessage(MessageParams, frozen=True, kw_only=True):
    message_body: RequiredText
    queue_url: RequiredText


class ReceiveMessage(QueueParams, frozen=True):
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str = ""


class DeleteMessage(QueueParams, frozen=True):
    receipt_handle: RequiredText


class ChangeMessageVisibility(QueueParams, frozen=True):
    receipt_handle: RequiredText
    visibility_timeout: int


class SentMessage(Struct, omit_defaults=True, rename="pascal"):
    """The result of sending a message. ``id`` is the id of the batch entry, or "" for a single message."""

    id: str = ""
    message_id: str = ""
    body_sum: str = field(default="", name="MD5OfMessageBody")
    attributes_sum: str = field(default="", name="MD5OfMessageAttributes")
    system_attributes_sum: str = field(default="", name="MD5OfMessageSystemAttributes")
    sequence_number: str = ""

    def set_sequence(self, id: str, sequences: Mapping[str, int]) -> None:
        """Set the sequence number of message ``id`` if ``sequences`` contains it."""
        if id in sequences:
            self.sequence_number = _format_sequence(sequences[id])


class ReceivedMessage(Struct, omit_defaults=True, rename="pascal"):
    """A message as returned to a consumer."""

    message_id: str
    receipt_handle: str
    body_sum: str = field(name="MD5OfBody")
    body: str
    attributes: dict[str, str] | None = None
    attributes_sum: str = field(default="", name="MD5OfMessageAttributes")
    message_attributes: dict[str, AttributeValue] | None = None


class ReceiveResponse(Struct, omit_defaults=True, rename="pascal"):
    """The response to a receive request."""

    messages: list[ReceivedMessage] = []


class ReceiveRequest(Struct, frozen=True):
    """A validated receive request.

    The endpoint calls ``ask``, which tries to claim messages, until messages are claimed or ``wait`` seconds have
    passed. Then it calls ``answer``, which creates the response.
    """

    queue: QueueRef
    wait: int
    ask: Callable[[], ClaimReply]
    answer: Callable[[PollResult[ClaimReply]], ReceiveResponse]


def send_message(call: Call, request: SendMessage) -> SentMessage:
    """Send a message and return its id, checksums and sequence number."""
    queue, terms = find_queue(call, request.queue_url)
    outgoing, receipt = prepare_message(call, terms, request)
    sent = call.use_cases.messaging.send(queue, call.sender, [outgoing])
    if sent.ids[0] is None:
        reason = TOO_LONG.format(sent.max_size)
        raise errors.invalid_parameter(f"One or more parameters are invalid. Reason: {reason}")
    receipt.message_id = message_id(sent.ids[0])
    receipt.set_sequence(sent.ids[0], sent.sequences)
    return receipt


def receive_message(call: Call, request: ReceiveMessage) -> ReceiveRequest:
    """Validate the request and return it without claiming any message."""
    queue, terms = find_queue(call, request.queue_url)
    wait, attempt = terms.wait, request.receive_request_attempt_id
    if not 1 <= request.max_number_of_messages <= MAX_MESSAGES:
        reason = f"Must be between 1 and {MAX_MESSAGES}, if provided."
        raise errors.invalid_value(request.max_number_of_messages, "MaxNumberOfMessages", reason)
    if request.wait_time_seconds is not None:
        wait = check_bounds(request.wait_time_seconds, "WaitTimeSeconds", MAX_WAIT)
    if request.visibility_timeout is not None:
        check_bounds(request.visibility_timeout, "VisibilityTimeout", MAX_HOLD)
    if attempt and not terms.fifo:
        raise errors.invalid_value(attempt, "ReceiveRequestAttemptId", WRONG_QUEUE_TYPE)
    if attempt and not GROUP.fullmatch(attempt):
        raise errors.invalid_value(attempt, "ReceiveRequestAttemptId", f"ReceiveRequestAttemptId {GROUP_REASON}")
    system = _select_system_names(request.message_system_attribute_names or request.attribute_names, terms.fifo)
    who = holder(call.request, call.sender)
    ask = partial(
        call.use_cases.messaging.receive,
        queue,
        request.max_number_of_messages,
        request.visibility_timeout,
        who,
        attempt,
    )
    wait = min(wait, call.use_cases.max_wait)

    def received(outcome: PollResult[ClaimReply]) -> ReceiveResponse:
        claim = outcome.answer.claim
        if claim is None:
            return ReceiveResponse()
        call.request.context.messages = len(claim.messages)
        if (span := call.request.context.span) is not None:
            span.link(claim.messages)
        shown = _format_messages(claim.messages, receipts.encode_handles(queue, claim.id, claim.messages))
        if system or request.message_attribute_names:
            for message, entry in zip(claim.messages, shown, strict=True):
                _add_attributes(entry, call, message, system, request.message_attribute_names)
        return ReceiveResponse(shown)

    return ReceiveRequest(queue, wait, ask, received)


def delete_message(call: Call, request: DeleteMessage) -> None:
    """Delete a received message.

    Do nothing if the message is missing, or if another consumer has received the message in the meantime. In a FIFO
    queue, raises ``SqsError`` if the message's visibility timeout has expired.
    """
    queue, terms = find_queue(call, request.queue_url)
    [outcome] = call.use_cases.messaging.handle(queue, [receipts.decode_handle(queue, request.receipt_handle)])
    if refusal := find_expiry_error(terms, outcome, request.receipt_handle):
        raise refusal


def change_message_visibility(call: Call, request: ChangeMessageVisibility) -> None:
    """Restart a message's visibility timeout. Raises ``SqsError`` if another consumer has received the message."""
    queue, terms = find_queue(call, request.queue_url)
    handle, seconds = request.receipt_handle, request.visibility_timeout
    call.request.context.releases = seconds == 0
    [outcome] = call.use_cases.messaging.handle(queue, [make_visibility_change(queue, handle, seconds)])
    if refusal := find_visibility_error(terms, outcome, handle, seconds):
        raise refusal


def find_queue(call: Call, url: str) -> tuple[QueueRef, QueueAttributes]:
    """Return the queue with the given URL, and the queue's attributes. The attributes can come from the cache."""
    queue = names.parse_queue(call, url)
    return queue, call.use_cases.messaging.get_attributes(queue)


def prepare_message(call: Call, terms: QueueAttributes, message: MessageParams) -> tuple[OutgoingMessage, SentMessage]:
    """Validate a message. Return the message to store and the response to the sender.

    The caller must add the message id to the response. Raises ``SqsError`` if the message is not valid.
    """
    text, given = message.message_body, message.message_attributes
    if not text:
        raise errors.missing_parameter("MessageBody")
    body = wire.encode(text) if text.isascii() else b""
    # ASCII text that needs no JSON escapes contains no forbidden characters.
    if len(body) != len(text) + 2 and not is_allowed_text(text):
        raise errors.invalid_message_contents()
    delay = message.delay_seconds
    if delay is not None and not 0 <= delay <= MAX_DELAY:
        raise errors.invalid_value(delay, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {MAX_DELAY}.")
    if terms.fifo:
        if delay:
            raise errors.invalid_value(delay, "DelaySeconds", NO_MESSAGE_DELAY)
        delay = None
    raw = text.encode()
    size, trace = len(raw), call.trace
    receipt = SentMessage(body_sum=md5(raw, usedforsecurity=False).hexdigest())
    if given:
        size += message_attributes.validate(given)
        receipt.attributes_sum = message_attributes.compute_checksum(given)
    if message.message_system_attributes:
        trace = message_attributes.validate_system(message.message_system_attributes)
        receipt.system_attributes_sum = message_attributes.compute_checksum(message.message_system_attributes)
    group, once = message.message_group_id, ""
    if group is not None or message.message_deduplication_id is not None or terms.fifo:
        once = _check_ids(message, terms, raw)
    attributes = b""
    if given or trace or once or call.trace_context:
        context = trim_trace(call.trace_context, terms.max_size - size)
        attributes = encode_attributes(Attributes({**with_trace(given, context)}, once, trace))
    return OutgoingMessage(body or wire.encode(text), size, delay, attributes, group or "", once), receipt


def make_visibility_change(queue: QueueRef, handle: str, seconds: int) -> MessageHandle:
    """Return the operation that sets a received message's visibility timeout to ``seconds``."""
    return receipts.decode_handle(queue, handle, check_bounds(seconds, "VisibilityTimeout", MAX_HOLD), MAX_HOLD)


def find_visibility_error(
    terms: QueueAttributes, outcome: HandleOutcome, handle: str, seconds: int
) -> errors.SqsError | None:
    """Return the error if a visibility timeout could not be changed, or None if it was changed."""
    if outcome is HandleOutcome.TOO_LONG:
        return errors.invalid_value(seconds, "VisibilityTimeout", VISIBILITY_TOO_LONG)
    if outcome is HandleOutcome.GONE:
        return errors.invalid_value(handle, "ReceiptHandle", NOT_CLAIMED)
    return find_expiry_error(terms, outcome, handle)


def find_expiry_error(terms: QueueAttributes, outcome: HandleOutcome, handle: str) -> errors.SqsError | None:
    """Return the error if the receipt handle of a FIFO queue's message has expired, or None if it is valid."""
    late = terms.fifo and outcome in (HandleOutcome.EXPIRED, HandleOutcome.LOST)
    return errors.invalid_value(handle, "ReceiptHandle", EXPIRED) if late else None


def check_bounds(seconds: int, parameter: str, maximum: int) -> int:
    """Return ``seconds`` if 0 <= ``seconds`` <= ``maximum``, else raise ``SqsError``."""
    if not 0 <= seconds <= maximum:
        raise errors.invalid_value(seconds, parameter, f"Must be >= 0 and <= {maximum}, if provided.")
    return seconds


def message_id(id: str) -> str:
    """Format a message id as a UUID, because some clients parse it as one."""
    return b"-".join(_UUID.unpack(id.encode())).decode()


def _check_ids(message: MessageParams, terms: QueueAttributes, raw: bytes) -> str:
    """Validate the group id and the deduplication id, and return the deduplication id.

    In a standard queue, messages have no deduplication id, and the function returns "". Raises ``SqsError`` if an id is
    missing or not valid.
    """
    for name, id in (
        ("MessageGroupId", message.message_group_id),
        ("MessageDeduplicationId", message.message_deduplication_id),
    ):
        if id is not None and not GROUP.fullmatch(id):
            raise errors.invalid_value(id, name, f"{name} {GROUP_REASON}")
    if not terms.fifo:
        if message.message_deduplication_id is not None:
            raise errors.invalid_value(message.message_deduplication_id, "MessageDeduplicationId", WRONG_QUEUE_TYPE)
        return ""
    if message.message_group_id is None:
        raise errors.missing_parameter("MessageGroupId")
    if message.message_deduplication_id is None and not terms.content_dedup:
        raise errors.invalid_parameter(NO_ID)
    return message.message_deduplication_id or sha256(raw).hexdigest()


# The system attribute that a standard queue's messages lack.
SEQUENCE: Final = "SequenceNumber"
# Functions that return a message's system attribute, by attribute name. A function returns "" if the message lacks it.
SYSTEM: Final[Mapping[str, Callable[[Call, Message, Attributes], str]]] = {
    "SenderId": lambda _call, message, _attributes: message.client,
    "SentTimestamp": lambda _call, message, _attributes: _format_ms(message.created),
    "ApproximateReceiveCount": lambda _call, message, _attributes: str(
        message.claim_count + message.origin_claim_count
    ),
    "ApproximateFirstReceiveTimestamp": lambda _call, message, _attributes: _format_ms(message.first_claimed),
    SEQUENCE: lambda _call, message, _attributes: _format_sequence(message.sequence),
    "MessageDeduplicationId": lambda _call, _message, attributes: attributes.deduplication_id,
    "MessageGroupId": lambda _call, message, _attributes: message.group,
    message_attributes.TRACE: lambda _call, _message, attributes: attributes.aws_trace_header,
    "DeadLetterQueueSourceArn": lambda call, message, _attributes: (
        names.queue_arn(call, message.origin) if message.origin else ""
    ),
}


def _format_sequence(sequence: int) -> str:
    return f"{sequence:020}"


def _format_ms(moment: float) -> str:
    return str(round(moment * 1000)) if moment else ""


def _format_messages(messages: Sequence[Message], handles: Sequence[str]) -> list[ReceivedMessage]:
    received = []
    for message, handle in zip(messages, handles, strict=True):
        body = message.body
        text = _string(body) if body[0] == QUOTE else body.decode()
        body_sum = md5(text.encode(), usedforsecurity=False).hexdigest()
        received.append(ReceivedMessage(message_id(message.id), handle, body_sum, text))
    return received


def _add_attributes(
    shown: ReceivedMessage, call: Call, message: Message, system: Sequence[str], wanted: Sequence[str]
) -> None:
    attributes = decode_attributes(message.attributes)
    shown.attributes = {name: value for name in system if (value := SYSTEM[name](call, message, attributes))} or None
    if chosen := message_attributes.select(attributes.message_attributes, wanted):
        shown.attributes_sum = message_attributes.compute_checksum(chosen)
        shown.message_attributes = chosen


def _select_system_names(asked: Sequence[str], fifo: bool) -> Sequence[str]:
    for name in asked:
        if name != "All" and name not in SYSTEM:
            raise errors.unknown_attribute(name)
    names = SYSTEM if "All" in asked else dict.fromkeys(asked)
    return [name for name in names if fifo or name != SEQUENCE]
