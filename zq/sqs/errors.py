# SPDX-License-Identifier: Apache-2.0
"""The errors of the SQS API, and the functions that create them.

Each error has a shape (JSON protocol) and a query code (query protocol). Both must match AWS, because clients choose
the exception class by them. Messages match AWS, too, because the test suites of clients compare them.
"""

from typing import Final

# Prefix of the query codes that are specific to SQS.
PREFIX: Final = "AWS.SimpleQueueService."
# Both names of the error for an operation that the caller may not perform.
ACCESS_DENIED: Final = "AccessDenied"
# Characters allowed in a message body.
CHARACTERS: Final = "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
# Query code of the error for a missing operation. Its XML response is a single element with this name.
NO_OPERATION: Final = "UnknownOperationException"


class SqsError(Exception):
    """An SQS error response.

    Args:
        receiver: Whether the server is at fault. If so, clients retry the request.
        query_message: The error message in the query protocol. If it is "", ``message`` is used.
    """

    def __init__(
        self,
        shape: str,
        query_code: str,
        message: str,
        status: int = 400,
        *,
        receiver: bool = False,
        query_message: str = "",
    ) -> None:
        super().__init__(message)
        self.shape = shape
        self.query_code = query_code
        self.message = message
        self.status = status
        self.receiver = receiver
        self.query_message = query_message or message

    @property
    def fault(self) -> str:
        """Return "Receiver" if the server caused the error, and "Sender" if the client caused it."""
        return "Receiver" if self.receiver else "Sender"

    @property
    def entry_code(self) -> str:
        """Return the error code that a batch response contains for a failed entry."""
        return self.query_code.removeprefix(PREFIX)


def _own(shape: str, message: str, status: int = 400) -> SqsError:
    return SqsError(shape, PREFIX + shape, message, status)


def queue_does_not_exist() -> SqsError:
    sentence = "The specified queue does not exist"
    return SqsError(
        "QueueDoesNotExist",
        f"{PREFIX}NonExistentQueue",
        f"{sentence}.",
        query_message=f"{sentence} for this wsdl version.",
    )


def queue_name_exists(attribute: str) -> SqsError:
    """Create the error for ``CreateQueue`` if the queue exists with another value of ``attribute``."""
    message = f"A queue already exists with the same name and a different value for attribute {attribute}"
    return SqsError("QueueNameExists", "QueueAlreadyExists", message)


def queue_deleted_recently(seconds: int) -> SqsError:
    message = (
        f"You must wait {seconds} seconds after deleting a queue before you can create another with the same name."
    )
    return _own("QueueDeletedRecently", message)


def invalid_parameter(message: str) -> SqsError:
    return SqsError("InvalidParameterValueException", "InvalidParameterValue", message)


def invalid_value(value: object, parameter: str, reason: str) -> SqsError:
    """Create the error for an invalid parameter value. ``reason`` is a complete sentence."""
    return invalid_parameter(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing_parameter(parameter: str) -> SqsError:
    message = f"The request must contain the parameter {parameter}."
    return SqsError("MissingRequiredParameterException", "MissingParameter", message)


def invalid_attribute_name(message: str) -> SqsError:
    return SqsError("InvalidAttributeName", "InvalidAttributeName", message)


def unknown_attribute(name: str) -> SqsError:
    return invalid_attribute_name(f"Unknown Attribute {name}.")


def only_of_fifo(name: str) -> SqsError:
    """Create the error for an attribute that can be set on FIFO queues only."""
    return invalid_attribute_name(f"You can specify the {name} only when FifoQueue is set to true.")


def two_encryptions() -> SqsError:
    return invalid_attribute_name(
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE."
    )


def invalid_attribute_value(name: str, reason: str = "") -> SqsError:
    """Create the error for an invalid queue attribute. ``reason`` is a complete sentence, or "" to give no reason."""
    message = f"Invalid value for the parameter {name}."
    return SqsError(
        "InvalidAttributeValue", "InvalidAttributeValue", f"{message} Reason: {reason}" if reason else message
    )


def invalid_message_contents() -> SqsError:
    message = f"Invalid characters found. Valid unicode characters are {CHARACTERS}"
    return SqsError("InvalidMessageContents", "InvalidMessageContents", message)


def receipt_handle_is_invalid(handle: str) -> SqsError:
    message = f'The input receipt handle "{handle}" is not a valid receipt handle.'
    return SqsError("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", message)


def empty_batch_request(entry: str) -> SqsError:
    """Create the error for an empty batch. ``entry`` is the entry type, such as SendMessageBatchRequestEntry."""
    return _own("EmptyBatchRequest", f"There should be at least one {entry} in the request.")


def batch_entry_ids_not_distinct(repeated: str) -> SqsError:
    return _own("BatchEntryIdsNotDistinct", f"Id {repeated} repeated.")


def too_many_entries(count: int) -> SqsError:
    message = f"Maximum number of entries per request are 10. You have sent {count}."
    return _own("TooManyEntriesInBatchRequest", message)


def invalid_batch_entry_id() -> SqsError:
    return _own(
        "InvalidBatchEntryId",
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
    )


def batch_request_too_long(size: int, max_size: int = 1_048_576) -> SqsError:
    message = f"Batch requests cannot be longer than {max_size} bytes. You have sent {size} bytes."
    return _own("BatchRequestTooLong", message)


def purge_queue_in_progress(queue: str, interval: int = 60) -> SqsError:
    message = f"Only one PurgeQueue operation on {queue} is allowed every {interval} seconds."
    return _own("PurgeQueueInProgress", message, 403)


def over_limit(message: str) -> SqsError:
    return SqsError("OverLimit", "OverLimit", message, 403)


def resource_not_found(message: str) -> SqsError:
    """Create the error for an operation on message move tasks that cannot find a queue or a task."""
    return SqsError("ResourceNotFoundException", "ResourceNotFoundException", message, 404)


def unsupported_operation(message: str) -> SqsError:
    return _own("UnsupportedOperation", message)


def request_throttled(message: str) -> SqsError:
    return SqsError("RequestThrottled", "RequestThrottled", message, 403)


def unknown_operation(name: str) -> SqsError:
    message = f"The action {name} is not valid for this endpoint."
    return SqsError("UnknownOperationException", "InvalidAction", message)


def no_operation() -> SqsError:
    """Create the error for a GET request to a queue URL without an operation."""
    return SqsError("UnknownOperationException", NO_OPERATION, "The request must contain the parameter Action.", 404)


def malformed(message: str) -> SqsError:
    """Create the error for a request that cannot be parsed."""
    return SqsError("SerializationException", "MalformedInput", message)


def access_denied(message: str) -> SqsError:
    return SqsError(ACCESS_DENIED, ACCESS_DENIED, message, 403)


def service_unavailable(message: str = "The store is temporarily unavailable. Try again later.") -> SqsError:
    return SqsError("ServiceUnavailable", "ServiceUnavailable", message, 503, receiver=True)


def internal_failure() -> SqsError:
    message = "The request failed; see the server log for the cause."
    return SqsError("InternalFailure", "InternalFailure", message, 500, receiver=True)
