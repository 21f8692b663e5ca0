# SPDX-License-Identifier: Apache-2.0
"""Access to queues of other accounts: the check of a queue's ``Policy``, and the operations that edit it.

An Allow statement with an unsupported element never applies, and a Deny statement with an unsupported element always
applies. Conditions, negations, and wildcards within a name are not supported.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import field, structs

from zq import wire
from zq.core.metadata import Metadata
from zq.core.quotas import check_state
from zq.errors import InvalidBody
from zq.model import Queue, QueueRef
from zq.sqs import errors, names
from zq.sqs.accounts import ACCOUNT
from zq.sqs.call import Call, QueueParams, RequiredText
from zq.sqs.extension import read_attributes, with_attributes

# Operations that a policy can grant. The grant of an operation includes its batch operation.
GRANTABLE_OPERATIONS: Final = frozenset(
    {
        *("ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes", "GetQueueUrl"),
        *("ListDeadLetterSourceQueues", "PurgeQueue", "ReceiveMessage", "SendMessage"),
    }
)
# Grantable operations that are read-only.
READ_ONLY_OPERATIONS: Final = frozenset({"GetQueueAttributes", "GetQueueUrl", "ListDeadLetterSourceQueues"})
# Supported elements of a statement.
SUPPORTED_ELEMENTS: Final = frozenset({"Sid", "Effect", "Principal", "Action", "Resource"})
# A principal that is an account: the ARN of the account's root user, or the account id.
PRINCIPAL: Final = re.compile(rf"arn:[a-z-]+:iam::({ACCOUNT.pattern}):root|({ACCOUNT.pattern})", re.ASCII)
LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}", re.ASCII)
# Maximum number of actions in an AddPermission request.
MAX_ACTIONS: Final = 7
VERSION: Final = "2008-10-17"


def switch_account(call: Call, operation: str, params: Mapping[str, Any]) -> Call:
    """Return a call on behalf of the account that owns the queue.

    If the caller belongs to this account, return ``call`` unchanged. Raises ``SqsError`` if the account does not exist
    or the queue's policy does not allow the operation. Raises ``ProjectInactive`` if the owner's project is suspended
    or read-only.
    """
    account, name = _queue_parts(call, operation, params)
    if not account or account == call.account:
        return call
    project, action = call.use_cases.accounts.find_project(account), operation.removesuffix("Batch")
    if not project:
        raise errors.queue_does_not_exist()
    queue = call.use_cases.find(QueueRef(project, name))
    policy = read_attributes(queue.metadata).policy if queue else ""
    if action not in GRANTABLE_OPERATIONS or not allows(policy, call.account, action, (account, name)):
        raise errors.access_denied(f"Access to the queue {name[: names.MAX_SHOWN]} of {account} is denied.")
    if (quotas := call.use_cases.quotas) is not None:
        check_state(quotas.allotment(project).state, action not in READ_ONLY_OPERATIONS)
    return structs.replace(call, project=project, account=account)


def _queue_parts(call: Call, operation: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """Return the account id and the queue name in the parameters. If a value is missing, return "" for this value."""
    if operation == "GetQueueUrl":
        return str(params.get("QueueOwnerAWSAccountId") or ""), str(params.get("QueueName") or "")
    return names.parse_url(call.project, str(params.get("QueueUrl") or ""))[:2]


def allows(policy: str, account: str, action: str, queue: tuple[str, str]) -> bool:
    """Return whether a policy allows an account to perform an action on a queue.

    A Deny statement overrides all Allow statements. An empty policy allows nothing. ``queue`` is the owner's account id
    and the queue name.
    """
    allowed = False
    for statement in _statements(policy):
        effect = statement.get("Effect") if isinstance(statement, dict) else None
        if effect not in ("Allow", "Deny"):
            return False
        denies = effect == "Deny"
        supported = statement.keys() <= SUPPORTED_ELEMENTS
        matched = (
            _matches(_principals(statement.get("Principal")), partial(_is_account, account), denies)
            and _matches(statement.get("Action"), partial(_is_action, action), denies)
            and _matches(statement.get("Resource"), partial(_is_queue, queue), denies)
        )
        if denies and (matched or not supported):
            return False
        allowed = allowed or (matched and supported)
    return allowed


def _statements(policy: str) -> list[Any]:
    """Return the statements of a policy.

    If the policy is invalid, return one unsupported statement, so that the policy allows nothing.
    """
    try:
        found = wire.json_object(policy.encode()).get("Statement") if policy else []
    except InvalidBody:
        found = None
    return found if isinstance(found, list) else [found]


def _matches(value: Any, matches: Callable[[str], bool | None], denies: bool) -> bool:
    """Return whether an element of a policy statement, such as ``Action``, matches.

    ``value`` is the value of the element: an entry or a list of entries. At least one entry must be "*" or match
    according to ``matches``, which returns None for an unsupported entry. In a Deny statement (``denies``), an
    unsupported entry matches.
    """
    for entry in value if isinstance(value, list) else [value]:
        verdict = (entry == "*" or matches(entry)) if isinstance(entry, str) else None
        if verdict or (verdict is None and denies):
            return True
    return False


def _principals(value: Any) -> Any:
    """Return the accounts in a policy's principal element. Each unsupported type of principal becomes None."""
    if not isinstance(value, dict):
        return value if value == "*" else None
    own = value.get("AWS", [])
    return [*(own if isinstance(own, list) else [own]), *(None for kind in value if kind != "AWS")]


def _is_account(account: str, entry: str) -> bool | None:
    found = PRINCIPAL.fullmatch(entry)
    return (found[1] or found[2]) == account if found else None


def _is_action(action: str, entry: str) -> bool | None:
    """Return whether an entry matches an action, or None if the entry is not supported. As in AWS, case is ignored."""
    service, _, name = entry.lower().partition(":")
    if service != "sqs" or not (name.isalpha() or name == "*"):
        return None
    return name in ("*", action.lower())


def _is_queue(queue: tuple[str, str], entry: str) -> bool | None:
    found = names.ARN.fullmatch(entry)
    return (found[1], found[2]) == queue if found else None


class AddPermission(QueueParams, frozen=True):
    label: RequiredText
    actions: list[str]
    accounts: list[str] = field(name="AWSAccountIds")


class RemovePermission(QueueParams, frozen=True):
    label: RequiredText


def add_permission(call: Call, request: AddPermission) -> None:
    """Add a statement to the queue's policy that allows the given accounts to perform the given actions."""
    queue = names.get_queue(call, request.queue_url)
    _check(request)
    arn = names.queue_arn(call, queue.ref.name)
    statement = {
        "Sid": request.label,
        "Effect": "Allow",
        "Principal": {"AWS": _one_or_all(f"arn:aws:iam::{account}:root" for account in request.accounts)},
        "Action": _one_or_all(f"SQS:{action}" for action in request.actions),
        "Resource": arn,
    }

    def edit(policy: dict[str, Any]) -> dict[str, Any]:
        statements = _as_list(policy)
        if any(isinstance(each, dict) and each.get("Sid") == request.label for each in statements):
            raise errors.invalid_value(request.label, "Label", "Already exists.")
        empty = {"Version": VERSION, "Id": f"{arn}/SQSDefaultPolicy"}
        return {**(policy or empty), "Statement": [*statements, statement]}

    _change(call, queue, edit)


def remove_permission(call: Call, request: RemovePermission) -> None:
    """Remove the statement with the given label from the queue's policy. If no statement is left, remove the policy."""
    queue = names.get_queue(call, request.queue_url)

    def edit(policy: dict[str, Any]) -> dict[str, Any]:
        statements = _as_list(policy)
        left = [each for each in statements if not (isinstance(each, dict) and each.get("Sid") == request.label)]
        if len(left) == len(statements):
            raise errors.invalid_value(request.label, "Label", "can't find label on existing policy.")
        return {**policy, "Statement": left} if left else {}

    _change(call, queue, edit)


def _check(request: AddPermission) -> None:
    if LABEL.fullmatch(request.label) is None:
        reason = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length."
        raise errors.invalid_value(request.label[: names.MAX_SHOWN], "Label", reason)
    if not request.actions:
        raise errors.missing_parameter("Actions")
    if len(request.actions) > MAX_ACTIONS:
        raise errors.over_limit(f"{len(request.actions)} Actions were found, maximum allowed is {MAX_ACTIONS}.")
    for action in request.actions:
        if action not in GRANTABLE_OPERATIONS and action != "*":
            reason = "Only the queue owner is allowed to invoke this action."
            raise errors.invalid_value(f"SQS:{action[: names.MAX_SHOWN]}", "ActionName", reason)
    if not request.accounts or not all(map(ACCOUNT.fullmatch, request.accounts)):
        value = str(request.accounts)[: names.MAX_SHOWN]
        raise errors.invalid_value(value, "PrincipalId", "Unable to verify.")


def _as_list(policy: Mapping[str, Any]) -> list[Any]:
    value = policy.get("Statement", [])
    return value if isinstance(value, list) else [value]


def _one_or_all(found: Iterable[str]) -> str | list[str]:
    several = list(found)
    return several[0] if len(several) == 1 else several


def _change(call: Call, queue: Queue, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    def edited(metadata: Metadata) -> Metadata:
        former = read_attributes(wire.encode(metadata)).policy
        policy = edit(wire.json_object(former.encode()) if former else {})
        return with_attributes(metadata, policy=wire.encode(policy).decode() if policy else "")

    call.use_cases.queues.change(queue.ref, edited)
