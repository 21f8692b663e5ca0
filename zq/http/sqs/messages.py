# SPDX-License-Identifier: Apache-2.0
"""The operations on single messages, and what those on many have in common with them.

A message's body is a text, and stands in the store as a JSON string: REST reads it as that. What REST has posted comes
as that text if it is a string, else as its JSON.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import md5, sha256
from typing import Any, Final

import msgspec
from msgspec import Struct, to_builtins

from zq import wire
from zq.broker.claims import ClaimAnswer
from zq.broker.sqs import LONGEST_HOLD, Outgoing, SqsTerms
from zq.http.claims import holder
from zq.http.sqs import errors, message_attributes, names, receipts
from zq.http.sqs.call import Call, Params
from zq.http.sqs.message_attributes import AttributeValue, Extra
from zq.http.waiting import poll
from zq.limits import SQS_NUMBERS
from zq.model import Grip, Handled, Message, QueueRef

# Seconds after which a message can be received, at the most.
LONGEST_DELAY: Final = SQS_NUMBERS["DelaySeconds"][1]
# Seconds for which a receiver may wait.
LONGEST_WAIT: Final = SQS_NUMBERS["ReceiveMessageWaitTimeSeconds"][1]
# Messages of one answer.
MOST: Final = 10
# The id of a group: letters, digits and punctuation of ASCII.
GROUP: Final = re.compile(r"[!-~]{1,128}")
GROUP_REASON: Final = "can only include alphanumeric and punctuation characters. 1 to 128 in length."
NOT_HERE: Final = "The request includes a parameter that is not valid for this queue type."
NO_OWN_DELAY: Final = "The request include parameter that is not valid for this queue type."
NO_ID: Final = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)
EXPIRED: Final = "The receipt handle has expired."
TOO_LONG: Final = "Message must be shorter than {} bytes."
NOT_HIDDEN: Final = "Message does not exist or is not available for visibility timeout change."
BEYOND: Final = f"Total VisibilityTimeout for the message is beyond the limit [{LONGEST_HOLD} seconds]"
# How a body begins that is a JSON string.
QUOTE: Final = b'"'
_string: Final = msgspec.json.Decoder(str).decode


class Letter(Params, frozen=True, kw_only=True):
    """What is said of a message that is sent, by itself or in a batch."""

    message_body: str
    delay_seconds: int | None = None
    message_attributes: dict[str, AttributeValue] = {}
    message_system_attributes: dict[str, AttributeValue] = {}
    message_deduplication_id: str = ""
    message_group_id: str = ""


class SendMessage(Letter, frozen=True, kw_only=True):
    queue_url: str


class ReceiveMessage(Params, frozen=True):
    queue_url: str
    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int = 1
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str = ""


class DeleteMessage(Params, frozen=True):
    queue_url: str
    receipt_handle: str


class ChangeMessageVisibility(Params, frozen=True):
    queue_url: str
    receipt_handle: str
    visibility_timeout: int


class Written(Struct, frozen=True):
    """A message on its way, and the sums that its sender is told."""

    outgoing: Outgoing
    sums: Mapping[str, str]

    def answer(self, id: str, sequences: Mapping[str, int]) -> dict[str, str]:
        """What its sender is told."""
        told = {"MessageId": message_id(id), **self.sums}
        if id in sequences:
            told[SEQUENCE] = _digits(sequences[id])
        return told


def send_message(call: Call, given: SendMessage) -> dict[str, Any]:
    """Store one message."""
    queue, terms = existing(call, given.queue_url)
    letter = written(call, given, terms)
    sent = call.broker.sqs.send(queue, call.sender, [letter.outgoing])
    if sent.ids[0] is None:
        reason = TOO_LONG.format(sent.max_size)
        raise errors.invalid_parameter(f"One or more parameters are invalid. Reason: {reason}")
    return letter.answer(sent.ids[0], sent.sequences)


def receive_message(call: Call, given: ReceiveMessage) -> dict[str, Any]:
    """Claim messages, and wait for the first of them if there is none."""
    queue, terms = existing(call, given.queue_url)
    wait, attempt = terms.wait, given.receive_request_attempt_id
    if not 1 <= given.max_number_of_messages <= MOST:
        reason = f"Must be between 1 and {MOST}, if provided."
        raise errors.invalid_value(given.max_number_of_messages, "MaxNumberOfMessages", reason)
    if given.wait_time_seconds is not None:
        wait = bounded(given.wait_time_seconds, "WaitTimeSeconds", LONGEST_WAIT)
    if given.visibility_timeout is not None:
        bounded(given.visibility_timeout, "VisibilityTimeout", LONGEST_HOLD)
    if attempt and not terms.fifo:
        raise errors.invalid_value(attempt, "ReceiveRequestAttemptId", NOT_HERE)
    if attempt and not GROUP.fullmatch(attempt):
        raise errors.invalid_value(attempt, "ReceiveRequestAttemptId", f"ReceiveRequestAttemptId {GROUP_REASON}")
    shown = _shown(call, queue, given, terms.fifo)
    who = holder(call.request, call.sender)
    ask = partial(call.broker.sqs.receive, queue, given.max_number_of_messages, given.visibility_timeout, who, attempt)
    wait = min(wait, call.broker.limits.max_wait)
    answer: ClaimAnswer = poll(call.request, call.broker.waiters, queue, wait, ask, takes=True, paused=True).answer
    if answer.claim is None:
        return {}
    call.request.context.messages = len(answer.claim.messages)
    claim = answer.claim.id
    return {"Messages": [shown(message, claim) for message in answer.claim.messages]}


def delete_message(call: Call, given: DeleteMessage) -> None:
    """Remove a message, unless another consumer got it since; one that is gone is fine."""
    queue, terms = existing(call, given.queue_url)
    [became] = call.broker.sqs.handle(queue, [receipts.grip(queue, given.receipt_handle)])
    if refusal := expired(terms, became, given.receipt_handle):
        raise refusal


def change_message_visibility(call: Call, given: ChangeMessageVisibility) -> None:
    """Hide a message for so many seconds from now, unless another consumer got it since."""
    queue, terms = existing(call, given.queue_url)
    held = hiding(call, queue, given.receipt_handle, given.visibility_timeout)
    [became] = call.broker.sqs.handle(queue, [held])
    if refusal := not_hidden(became, given.receipt_handle) or expired(terms, became, given.receipt_handle):
        raise refusal


def existing(call: Call, url: str) -> tuple[QueueRef, SqsTerms]:
    """The queue of this URL, and what it says of messages. Raises ``QueueNotFound`` unless it is there, as far as this
    server knows."""
    queue = names.queue_of(call, url)
    return queue, call.broker.sqs.terms(queue)


def written(call: Call, letter: Letter, terms: SqsTerms) -> Written:
    """The message as it is stored, and its sums. Raises ``SqsError``."""
    text, attributes = letter.message_body, letter.message_attributes
    if not text:
        raise errors.missing_parameter("MessageBody")
    if not message_attributes.is_allowed(text):
        raise errors.invalid_message_contents()
    delay = letter.delay_seconds
    if delay is not None and not 0 <= delay <= LONGEST_DELAY:
        raise errors.invalid_value(delay, "DelaySeconds", f"DelaySeconds must be >= 0 and <= {LONGEST_DELAY}.")
    if terms.fifo:
        if delay:
            raise errors.invalid_value(delay, "DelaySeconds", NO_OWN_DELAY)
        delay = None
    raw = text.encode()
    sums, size, extra = {"MD5OfMessageBody": _md5(raw)}, len(raw), b""
    if attributes:
        size += message_attributes.checked(attributes)
        sums["MD5OfMessageAttributes"] = message_attributes.sum_of(attributes)
    trace = call.trace
    if letter.message_system_attributes:
        trace = message_attributes.checked_system(letter.message_system_attributes)
        sums["MD5OfMessageSystemAttributes"] = message_attributes.sum_of(letter.message_system_attributes)
    group, once = letter.message_group_id, letter.message_deduplication_id
    if group or once or terms.fifo:
        once = _checked_ids(letter, terms, raw)
    if attributes or trace or once:
        extra = message_attributes.encoded(Extra(attributes, once, trace))
    return Written(Outgoing(wire.encode(text), size, delay, extra, group, once), sums)


def hiding(call: Call, queue: QueueRef, handle: str, seconds: int) -> Grip:
    """What a receipt handle has a grip on, to be hidden for so long. Raises ``SqsError``."""
    held = receipts.grip(queue, handle, bounded(seconds, "VisibilityTimeout", LONGEST_HOLD))
    if call.broker.sqs.is_too_long(held):
        raise errors.invalid_value(seconds, "VisibilityTimeout", BEYOND)
    return held


def not_hidden(became: Handled, handle: str) -> errors.SqsError | None:
    """Why a message was not hidden: it is not there any more."""
    return errors.invalid_value(handle, "ReceiptHandle", NOT_HIDDEN) if became is Handled.GONE else None


def expired(terms: SqsTerms, became: Handled, handle: str) -> errors.SqsError | None:
    """Why nothing was done to a message of a FIFO queue: others may get it, or have got it."""
    late = terms.fifo and became in (Handled.EXPIRED, Handled.LOST)
    return errors.invalid_value(handle, "ReceiptHandle", EXPIRED) if late else None


def bounded(seconds: int, parameter: str, most: int) -> int:
    """The seconds, if there are not too many. Raises ``SqsError``."""
    if not 0 <= seconds <= most:
        raise errors.invalid_value(seconds, parameter, f"Must be >= 0 and <= {most}, if provided.")
    return seconds


def message_id(id: str) -> str:
    """An id of zq as SQS's clients expect one: they parse it as a UUID."""
    return f"{id[:8]}-{id[8:12]}-{id[12:16]}-{id[16:20]}-{id[20:]}"


def text_of(body: bytes) -> str:
    """A body as receivers get it."""
    return _string(body) if body[:1] == QUOTE else body.decode()


def _checked_ids(letter: Letter, terms: SqsTerms, raw: bytes) -> str:
    """By what a FIFO queue knows repeats of the message; "" in others, which have groups alone. Raises ``SqsError``."""
    for name, id in (
        ("MessageGroupId", letter.message_group_id),
        ("MessageDeduplicationId", letter.message_deduplication_id),
    ):
        if id and not GROUP.fullmatch(id):
            raise errors.invalid_value(id, name, f"{name} {GROUP_REASON}")
    if not terms.fifo:
        if letter.message_deduplication_id:
            raise errors.invalid_value(letter.message_deduplication_id, "MessageDeduplicationId", NOT_HERE)
        return ""
    if not letter.message_group_id:
        raise errors.missing_parameter("MessageGroupId")
    if not letter.message_deduplication_id and not terms.content_dedup:
        raise errors.invalid_parameter(NO_ID)
    return letter.message_deduplication_id or sha256(raw).hexdigest()


def _md5(raw: bytes) -> str:
    return md5(raw, usedforsecurity=False).hexdigest()


# The name of what only messages of FIFO queues have.
SEQUENCE: Final = "SequenceNumber"
# What the system says of a message that it was asked for; "" = there is nothing to say.
SYSTEM: Final[Mapping[str, Callable[[Call, Message, Extra], str]]] = {
    "SenderId": lambda _call, message, _extra: message.client,
    "SentTimestamp": lambda _call, message, _extra: _ms(message.created),
    "ApproximateReceiveCount": lambda _call, message, _extra: str(message.claim_count + message.origin_claim_count),
    "ApproximateFirstReceiveTimestamp": lambda _call, message, _extra: _ms(message.first_claimed),
    SEQUENCE: lambda _call, message, _extra: _digits(message.sequence),
    "MessageDeduplicationId": lambda _call, _message, extra: extra.message_deduplication_id,
    "MessageGroupId": lambda _call, message, _extra: message.group,
    message_attributes.TRACE: lambda _call, _message, extra: extra.trace,
    "DeadLetterQueueSourceArn": lambda call, message, _extra: (
        names.queue_arn(call, message.origin) if message.origin else ""
    ),
}


def _digits(sequence: int) -> str:
    return f"{sequence:020}"


def _ms(moment: float) -> str:
    return str(round(moment * 1000)) if moment else ""


def _shown(call: Call, queue: QueueRef, given: ReceiveMessage, fifo: bool) -> Callable[[Message, str], dict[str, Any]]:
    """How a message is shown that a claim has handed out. Raises ``SqsError`` for attributes that nobody knows."""
    system = _system_names(given.message_system_attribute_names or given.attribute_names)
    if not fifo:
        system = [name for name in system if name != SEQUENCE]
    wanted = given.message_attribute_names

    def shown(message: Message, claim: str) -> dict[str, Any]:
        text = text_of(message.body)
        out: dict[str, Any] = {
            "MessageId": message_id(message.id),
            "ReceiptHandle": receipts.handle(queue, message, claim),
            "MD5OfBody": _md5(text.encode()),
            "Body": text,
        }
        if not (system or wanted):
            return out
        extra = message_attributes.decoded(message.extra)
        if system:
            known = {name: said for name in system if (said := SYSTEM[name](call, message, extra))}
            out |= {"Attributes": known} if known else {}
        if chosen := message_attributes.selected(extra.message_attributes, wanted):
            out["MD5OfMessageAttributes"] = message_attributes.sum_of(chosen)
            out["MessageAttributes"] = to_builtins(chosen)
        return out

    return shown


def _system_names(asked: Sequence[str]) -> Sequence[str]:
    """Those that are known, each once. Raises ``SqsError`` for others."""
    for name in asked:
        if name != "All" and name not in SYSTEM:
            raise errors.unknown_attribute(name)
    return tuple(SYSTEM) if "All" in asked else tuple(dict.fromkeys(asked))
