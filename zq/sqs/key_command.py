# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server sqs-key``, which creates, lists, disables, enables and deletes access keys."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from zq.http.commands import Ask, Command, list_all, request
from zq.sqs.key_resources import PATH


def _add_verbs(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> Sequence[argparse.ArgumentParser]:
    create = verbs.add_parser("create", help="make a key, and print its id and, this once, its secret")
    create.add_argument("--project", metavar="P", required=True, help="whose it is")
    create.add_argument("--action", metavar="A", action="append", help="what it may do, as SendMessage; repeatable")
    create.add_argument("--days", metavar="D", type=int, help="days that it lives (default: until it is deleted)")
    create.add_argument("--plain", action="store_true", help="store the secret as it is, not sealed")
    listing = verbs.add_parser("list", help="list keys, without their secrets")
    listing.add_argument("--project", metavar="P", help="of this project only")
    single = [
        verbs.add_parser("disable", help="have a key refused from now on"),
        verbs.add_parser("enable", help="have a key taken again"),
        verbs.add_parser("delete", help="end a key"),
    ]
    for one in single:
        one.add_argument("id", metavar="ID", help="the id of the key")
    return create, listing, *single


def _create(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    terms: dict[str, Any] = {"actions": given.action, "plain": given.plain}
    terms |= {} if given.days is None else {"days": given.days}
    made = request(ask, "POST", f"{PATH}?{urlencode({'project': given.project})}", terms)
    yield f"{made['id']} {made['secret']}"


def _list(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    for key in list_all(ask, PATH, "keys", given.project):
        actions = "everything" if key["actions"] is None else " ".join(key["actions"])
        state = "disabled" if key["disabled"] else "enabled"
        yield f"{key['id']} of {key['project']}: {actions}; {state}; until {key['expires'] or 'it is deleted'}"


def _switch(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    request(ask, "PUT", f"{PATH}/{quote(given.id, safe='')}", {"disabled": given.verb == "disable"})
    yield from ()


def _delete(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    request(ask, "DELETE", f"{PATH}/{quote(given.id, safe='')}")
    yield from ()


COMMAND: Final = Command(
    name="sqs-key",
    summary="make, list, disable and delete access keys of SQS",
    description="Keys by which requests of SQS are signed.",
    add_verbs=_add_verbs,
    verbs={"create": _create, "list": _list, "disable": _switch, "enable": _switch, "delete": _delete},
)
