# SPDX-License-Identifier: Apache-2.0
"""``zq-server`` commands that administer credentials, for users with access to the store.

If a server has the store open, the command sends HTTP requests to the server's control socket. If not, the command
opens the store and sends the requests to an application in its own process.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from zq.errors import StartRefused, Unavailable
from zq.http.commands import Command, SendRequest, list_all, request
from zq.model.identity import ADMIN
from zq.serving import control

PATH: Final = "/v2/admin/tokens"
# Default project of administrator tokens.
PROJECT: Final = "admin"


def parse(command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"zq-server {command.name}", description=command.description)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(command.verbs))
    for each in command.add_verbs(verbs):
        each.add_argument("--store", metavar="URI", help="store URI, as for zq-server")
        each.add_argument("--config", metavar="FILE", help="configuration file, as for zq-server")
    # ``_export_options`` also reads these options of zq-server, which the commands lack.
    parser.set_defaults(bind=None, port=None, engine=None, wait_for_store=False, force_clock=False)
    return parser.parse_args(arguments)


def run(command: Command, args: argparse.Namespace, send: SendRequest) -> int:
    """Run the command, print its output and return the exit code. Raises ``StartRefused`` for an error response."""
    for line in command.verbs[args.verb](args, send):
        print(line)  # noqa: T201
    return 0


def connect(socket: str, direct: Callable[[], control.Application]) -> SendRequest:
    """Return a function that sends requests to the running server, or to an application in this process.

    ``direct`` opens the store and returns an application. It is called if no server answers at ``socket``.
    """
    if socket:
        try:
            control.send(socket, "GET", "/healthz")
        except Unavailable:
            pass
        else:
            return lambda method, target, document: control.send(socket, method, target, document)
    app = direct()
    return lambda method, target, document: control.call(app, method, target, document)


def _add_verbs(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> Sequence[argparse.ArgumentParser]:
    create = verbs.add_parser("create", help="create a token and print it once")
    create.add_argument("--project", metavar="P", help="project of the token (required except with --admin)")
    create.add_argument("--name", default="", help="description of the token")
    create.add_argument(
        "--scope", metavar="S", action="append", help="allowed scope, such as produce:orders.*; repeatable"
    )
    create.add_argument("--role", metavar="R", action="append", default=[], help="role of the token; repeatable")
    create.add_argument("--days", metavar="D", type=int, help="lifetime in days (default 90)")
    create.add_argument("--admin", action="store_true", help="add the role of an administrator of the deployment")
    listing = verbs.add_parser("list", help="list tokens, without their secrets")
    listing.add_argument("--project", metavar="P", help="list only this project's tokens")
    rotate = verbs.add_parser("rotate", help="create a replacement for a token, which then expires within a day")
    revoke = verbs.add_parser("revoke", help="revoke a token")
    one = revoke.add_mutually_exclusive_group(required=True)
    rotate.add_argument("id", metavar="ID", help="id of the token: the ten characters after zq_")
    one.add_argument("id", metavar="ID", nargs="?", help="id of the token: the ten characters after zq_")
    one.add_argument("--jti", metavar="J", help="jti claim of a JSON Web Token")
    return create, listing, revoke, rotate


def _create(args: argparse.Namespace, send: SendRequest) -> Iterator[str]:
    project = args.project or (PROJECT if args.admin else "")
    if not project:
        raise StartRefused("--project is missing: zq-server token create --project acme")
    terms: dict[str, Any] = {"name": args.name, "roles": [*args.role, *([ADMIN] if args.admin else [])]}
    terms |= {} if args.scope is None else {"scopes": args.scope}
    terms |= {} if args.days is None else {"days": args.days}
    yield request(send, "POST", f"{PATH}?{urlencode({'project': project})}", terms)["token"]


def _list(args: argparse.Namespace, send: SendRequest) -> Iterator[str]:
    yield from map(_line, list_all(send, PATH, "tokens", args.project))


def _line(token: dict[str, Any]) -> str:
    scopes = "all scopes" if token["scopes"] is None else " ".join(token["scopes"])
    roles, used = ",".join(token["roles"]), token["last_used"] or "never"
    name = f" ({token['name']})" if token["name"] else ""
    return f"{token['id']}{name} of {token['project']}: {roles}; {scopes}; until {token['expires']}; used {used}"


def _revoke(args: argparse.Namespace, send: SendRequest) -> Iterator[str]:
    if args.jti is None:
        path = f"{PATH}/{quote(args.id, safe='')}"
        request(send, "GET", path)  # DELETE also succeeds for an unknown id
        request(send, "DELETE", path)
    else:
        request(send, "DELETE", f"{PATH}?{urlencode({'jti': args.jti})}")
    yield from ()


def _rotate(args: argparse.Namespace, send: SendRequest) -> Iterator[str]:
    yield request(send, "POST", f"{PATH}/{quote(args.id, safe='')}/rotate")["token"]


COMMAND: Final = Command(
    name="token",
    summary="create, list, rotate and revoke tokens",
    description="Manage the tokens that authenticate callers.",
    add_verbs=_add_verbs,
    verbs={"create": _create, "list": _list, "revoke": _revoke, "rotate": _rotate},
)
