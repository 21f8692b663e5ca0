# SPDX-License-Identifier: Apache-2.0
"""Operations on queues, queue attributes and tags."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from msgspec import field

from zq import wire
from zq.core.metadata import GROUPED, Metadata
from zq.model import Grouping, Queue, QueueRef
from zq.model.limits import LONG_QUEUE_NAME, MAX_LONG_NAME
from zq.sqs import errors, names, queue_attributes
from zq.sqs.call import Call, Params, QueueParams
from zq.sqs.extension import ATTRIBUTES, read_attributes, with_attributes
from zq.sqs.limits import MAX_PAGE, MAX_TAG_KEY, MAX_TAG_VALUE, MAX_TAGS, NUMBERS

# Characters allowed in the name of a new queue.
NEW_NAME: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
# Suffix of FIFO queue names.
FIFO: Final = ".fifo"
# Error message for invalid tag keys.
TAG_KEYS: Final = f"Tag keys must be between 1 and {MAX_TAG_KEY} characters in length."
# Error messages for invalid names of new queues.
STANDARD_NAME: Final = (
    f"Can only include alphanumeric characters, hyphens, or underscores. 1 to {MAX_LONG_NAME} in length"
)
FIFO_NAME: Final = (
    "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with "
    f"{FIFO} suffix and be 1 to {MAX_LONG_NAME} in length"
)


class CreateQueue(Params, frozen=True):
    queue_name: str | None = None
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(default_factory=dict, name="tags")


def create_queue(call: Call, request: CreateQueue) -> dict[str, Any]:
    """Create a queue, and return its URL. Raises ``SqsError`` if the queue exists with different attributes."""
    if request.queue_name is None:
        raise errors.missing_parameter("QueueName")
    ref, attributes = QueueRef(call.project, request.queue_name), dict(request.attributes)
    fifo = _check_name(ref.name, attributes.get(queue_attributes.FIFO))
    settable = {name: value for name, value in attributes.items() if name != queue_attributes.FIFO}
    queue_attributes.check_names(settable, fifo)
    _check_tags(request.tags, ref.name)
    queues = call.use_cases.queues
    while (queue := call.use_cases.find(ref)) is None:
        if call.options.name_rest and call.use_cases.cooldowns.is_reserved(ref):
            raise errors.queue_deleted_recently(call.options.name_rest)
        now = int(call.use_cases.clock.now())
        ttl = min(NUMBERS["MessageRetentionPeriod"][2], call.use_cases.max_message_ttl)
        metadata: Metadata = {"_default_message_ttl": ttl}
        if fifo:
            metadata = with_attributes(metadata | {GROUPED: Grouping.ORDERED}, fifo=True)
        metadata = queue_attributes.edit_metadata(call, ref, metadata, settable)
        metadata = with_attributes(metadata, created=now, modified=now, tags=request.tags)
        if queues.create(ref, wire.encode(metadata)):
            return {"QueueUrl": names.queue_url(call, ref.name)}
    if differs := queue_attributes.find_difference(_format_attributes(call, queue), attributes):
        raise errors.queue_name_exists(differs)
    return {"QueueUrl": names.queue_url(call, ref.name)}


def _check_name(name: str, fifo: str | None) -> bool:
    is_fifo = bool(queue_attributes.parse_boolean(fifo or ""))
    plain = name.removesuffix(FIFO) if is_fifo else name
    if (
        not 1 <= len(plain) <= len(name) <= MAX_LONG_NAME
        or not NEW_NAME.issuperset(plain)
        or is_fifo == (plain == name)
    ):
        raise errors.invalid_parameter(FIFO_NAME if is_fifo else STANDARD_NAME)
    if fifo is not None and not is_fifo:
        raise errors.unknown_attribute(queue_attributes.FIFO)
    return is_fifo


class GetQueueUrl(Params, frozen=True):
    queue_name: str
    queue_owner: str = field(default="", name="QueueOwnerAWSAccountId")


def get_queue_url(call: Call, request: GetQueueUrl) -> dict[str, Any]:
    """Return the URL of an existing queue."""
    owner = request.queue_owner or call.account
    queue = names.get_queue(call, f"{owner}/{request.queue_name}")
    return {"QueueUrl": names.queue_url(call, queue.ref.name)}


class ListQueues(Params, frozen=True):
    queue_name_prefix: str = ""
    max_results: int | None = None
    next_token: str = ""


def list_queues(call: Call, request: ListQueues) -> dict[str, Any]:
    """Return a page of queue URLs, optionally only of queues whose names begin with a prefix."""
    after, size = _parse_page(request.max_results, request.next_token)
    prefix = request.queue_name_prefix
    found: Iterable[Queue] = ()
    if not prefix or LONG_QUEUE_NAME.fullmatch(prefix):
        found = call.use_cases.queues.named(call.project, after, prefix)
    return _make_page(call, "QueueUrls", found, size, request.max_results)


class ListDeadLetterSourceQueues(QueueParams, frozen=True):
    max_results: int | None = None
    next_token: str = ""


def list_dead_letter_source_queues(call: Call, request: ListDeadLetterSourceQueues) -> dict[str, Any]:
    """Return a page of URLs of the queues that use the given queue as their dead-letter queue."""
    target = names.get_queue(call, request.queue_url).ref.name
    after, size = _parse_page(request.max_results, request.next_token)
    found = (queue for queue in call.use_cases.queues.named(call.project, after) if has_target(queue, target))
    return _make_page(call, "queueUrls", found, size, request.max_results)


def has_target(queue: Queue, target: str) -> bool:
    metadata = wire.json_object(queue.metadata)
    return metadata.get("_dead_letter_queue") == target and metadata.get("_max_claim_count") is not None


def _parse_page(max_results: int | None, token: str) -> tuple[str, int]:
    size = MAX_PAGE if max_results is None else max_results
    if not 1 <= size <= MAX_PAGE:
        raise errors.invalid_value(size, "MaxResults", f"Must be between 1 and {MAX_PAGE}, if provided.")
    try:
        after = b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        after = " "
    if token and LONG_QUEUE_NAME.fullmatch(after) is None:
        raise errors.invalid_value(token[: names.MAX_SHOWN], "NextToken", "It must be a NextToken of a former page.")
    return after, size


def _make_page(call: Call, member: str, found: Iterable[Queue], size: int, max_results: int | None) -> dict[str, Any]:
    """Return a page of at most ``size`` queue URLs."""
    listed = [queue.ref.name for queue in islice(found, size + 1)]
    answer: dict[str, Any] = {member: [names.queue_url(call, name) for name in listed[:size]]}
    if max_results is not None and len(listed) > size:
        answer["NextToken"] = urlsafe_b64encode(listed[size - 1].encode()).decode().rstrip("=")
    return answer


def delete_queue(call: Call, request: QueueParams) -> None:
    """Delete the queue and its messages, and reserve its name for ``[sqs] name_rest`` seconds."""
    ref = names.get_queue(call, request.queue_url).ref
    call.request.context.removed = call.use_cases.cooldowns.delete(ref, call.options.name_rest)


def purge_queue(call: Call, request: QueueParams) -> None:
    """Delete all messages of the queue.

    Raises ``SqsError`` if the last purge was less than ``purge_interval`` seconds ago.
    """
    queue = names.get_queue(call, request.queue_url)
    ref, interval = queue.ref, call.options.purge_interval
    if not call.use_cases.cooldowns.purge(ref, interval):
        raise errors.purge_queue_in_progress(ref.name, interval)
    if read_attributes(queue.metadata).fifo:  # new messages must not count as duplicates of purged ones
        call.use_cases.queues.change(ref, _count_purge)


def _count_purge(metadata: Metadata) -> Metadata:
    return with_attributes(metadata, purged=metadata[ATTRIBUTES].get("purged", 0) + 1)


class GetQueueAttributes(QueueParams, frozen=True):
    attribute_names: list[str] = []


def get_queue_attributes(call: Call, request: GetQueueAttributes) -> dict[str, Any]:
    """Return the requested attributes that have a value."""
    queue = names.get_queue(call, request.queue_url)
    wanted = set(request.attribute_names)
    for name in request.attribute_names:
        if name not in queue_attributes.REQUESTABLE:
            raise errors.unknown_attribute(name)
    if not wanted:
        return {}
    attributes = _format_attributes(call, queue)
    if not wanted.isdisjoint({queue_attributes.ALL, *queue_attributes.READ_ONLY[:3]}):
        depth = call.use_cases.queues.states(queue.ref)
        counts = (depth.ready, depth.claimed, depth.delayed)
        attributes |= {name: str(count) for name, count in zip(queue_attributes.READ_ONLY, counts, strict=False)}
    if queue_attributes.ALL not in wanted:
        attributes = {name: value for name, value in attributes.items() if name in wanted}
    return {"Attributes": attributes}


def _format_attributes(call: Call, queue: Queue) -> dict[str, str]:
    return queue_attributes.format_attributes(call, queue.ref.name, wire.json_object(queue.metadata))


class SetQueueAttributes(QueueParams, frozen=True):
    attributes: dict[str, str]


def set_queue_attributes(call: Call, request: SetQueueAttributes) -> None:
    """Change the given attributes of the queue. A FIFO queue accepts ``FifoQueue=true`` and ignores it."""
    queue, attributes = names.get_queue(call, request.queue_url), dict(request.attributes)
    ref, fifo = queue.ref, read_attributes(queue.metadata).fifo
    kind = attributes.pop(queue_attributes.FIFO, None) if fifo else None
    if kind is not None and not queue_attributes.parse_boolean(kind):
        raise errors.invalid_attribute_value(queue_attributes.FIFO, "Modifying queue type is not supported.")
    queue_attributes.check_names(attributes, fifo)

    def edit(metadata: Metadata) -> Metadata:
        edited = queue_attributes.edit_metadata(call, ref, metadata, attributes)
        return with_attributes(edited, modified=int(call.use_cases.clock.now()))

    call.use_cases.queues.change(ref, edit)


class TagQueue(QueueParams, frozen=True):
    tags: dict[str, str]


def tag_queue(call: Call, request: TagQueue) -> None:
    """Add the given tags to the queue. If the queue has a tag with the same key, replace its value."""
    ref = names.get_queue(call, request.queue_url).ref
    if not request.tags:
        raise errors.missing_parameter("Tags")
    _change_tags(call, ref, lambda tags: {**tags, **request.tags})


class UntagQueue(QueueParams, frozen=True):
    tag_keys: list[str]


def untag_queue(call: Call, request: UntagQueue) -> None:
    """Remove the given tags from the queue. Missing tags are ignored."""
    ref = names.get_queue(call, request.queue_url).ref
    if not request.tag_keys:
        raise errors.invalid_parameter(TAG_KEYS)
    _change_tags(call, ref, lambda tags: {key: value for key, value in tags.items() if key not in request.tag_keys})


def list_queue_tags(call: Call, request: QueueParams) -> dict[str, Any]:
    """Return all tags of the queue."""
    return {"Tags": read_attributes(names.get_queue(call, request.queue_url).metadata).tags}


def _change_tags(call: Call, ref: QueueRef, edit: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
    def edited(metadata: Metadata) -> Metadata:
        tags = edit((metadata.get(ATTRIBUTES) or {}).get("tags", {}))
        _check_tags(tags, ref.name)
        return with_attributes(metadata, tags=tags)

    call.use_cases.queues.change(ref, edited)


def _check_tags(tags: Mapping[str, str], queue: str) -> None:
    if len(tags) > MAX_TAGS:
        raise errors.invalid_parameter(f"Too many tags added for queue {queue}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= MAX_TAG_KEY:
            raise errors.invalid_parameter(TAG_KEYS)
        if len(value) > MAX_TAG_VALUE:
            raise errors.invalid_parameter(f"Tag values must be between 0 and {MAX_TAG_VALUE} characters in length.")
