# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server sqs-key``, which manages access keys."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from zq.http.commands import Command, SendRequest, list_all, request
from zq.sqs.key_resources import PATH


def _add_verbs(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> Sequence[argparse.ArgumentParser]:
    create = verbs.add_parser("create", help="create a key; print its id and, only once, its secret")
    create.add_argument("--project", metavar="P", required=True, help="project of the key")
    create.add_argument(
        "--action", metavar="A", action="append", help="allowed action, such as SendMessage; repeatable"
    )
    create.add_argument("--days", metavar="D", type=int, help="lifetime in days (default: unlimited)")
    create.add_argument("--plain", action="store_true", help="store the secret unencrypted")
    listing = verbs.add_parser("list", help="list keys, without their secrets")
    listing.add_argument("--project", metavar="P", help="list only this project's keys")
    single = [
        verbs.add_parser("disable", help="disable a key"),
        verbs.add_parser("enable", help="enable a disabled key"),
        verbs.add_parser("delete", help="delete a key"),
    ]
    for one in single:
        one.add_argument("id", metavar="ID", help="the id of the key")
    return create, listing, *single


def _create(args: argparse.Namespace, ask: SendRequest) -> Iterator[str]:
    terms: dict[str, Any] = {"actions": args.action, "plain": args.plain}
    terms |= {} if args.days is None else {"days": args.days}
    made = request(ask, "POST", f"{PATH}?{urlencode({'project': args.project})}", terms)
    yield f"{made['id']} {made['secret']}"


def _list(args: argparse.Namespace, ask: SendRequest) -> Iterator[str]:
    for key in list_all(ask, PATH, "keys", args.project):
        actions = "everything" if key["actions"] is None else " ".join(key["actions"])
        state = "disabled" if key["disabled"] else "enabled"
        yield f"{key['id']} of {key['project']}: {actions}; {state}; until {key['expires'] or 'it is deleted'}"


def _switch(args: argparse.Namespace, ask: SendRequest) -> Iterator[str]:
    request(ask, "PUT", f"{PATH}/{quote(args.id, safe='')}", {"disabled": args.verb == "disable"})
    yield from ()


def _delete(args: argparse.Namespace, ask: SendRequest) -> Iterator[str]:
    request(ask, "DELETE", f"{PATH}/{quote(args.id, safe='')}")
    yield from ()


COMMAND: Final = Command(
    name="sqs-key",
    summary="create, list, disable and delete SQS access keys",
    description="Manage the keys that sign SQS requests.",
    add_verbs=_add_verbs,
    verbs={"create": _create, "list": _list, "disable": _switch, "enable": _switch, "delete": _delete},
)
