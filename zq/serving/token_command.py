# SPDX-License-Identifier: Apache-2.0
"""``zq-server token``: create, list, rotate and revoke tokens (tenancy 5).

It needs access to the store. Requests go to the same routes as over HTTP: through the control socket of the server that
has an embedded store open, or in this process, on the store itself.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from zq.errors import StartRefused, Unavailable
from zq.model.identity import ADMIN
from zq.serving import control

PATH: Final = "/v2/admin/tokens"
# Default project of administrators' tokens.
PROJECT: Final = "admin"
# Tokens per page.
PAGE: Final = 100
# Sends method, target and document; returns status and answer.
Ask = Callable[[str, str, object], tuple[int, Any]]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line of ``zq-server token``."""
    parser = argparse.ArgumentParser(prog="zq-server token", description="Tokens by which callers prove who they are.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|list|revoke|rotate")
    create = verbs.add_parser("create", help="make a token and print it, this once")
    create.add_argument("--project", metavar="P", help="whose it is (needed, but for --admin)")
    create.add_argument("--name", default="", help="what it is for")
    create.add_argument("--scope", metavar="S", action="append", help="what it may do, as produce:orders.*; repeatable")
    create.add_argument("--role", metavar="R", action="append", default=[], help="a role; repeatable")
    create.add_argument("--days", metavar="D", type=int, help="days that it lives (default 90)")
    create.add_argument("--admin", action="store_true", help="give it the role that administers the deployment")
    listing = verbs.add_parser("list", help="list tokens, without their secrets")
    listing.add_argument("--project", metavar="P", help="of this project only")
    rotate = verbs.add_parser("rotate", help="make a twin of a token, which ends within a day")
    revoke = verbs.add_parser("revoke", help="end a token")
    one = revoke.add_mutually_exclusive_group(required=True)
    rotate.add_argument("id", metavar="ID", help="the ten characters after zq_")
    one.add_argument("id", metavar="ID", nargs="?", help="the ten characters after zq_")
    one.add_argument("--jti", metavar="J", help="of a JSON Web Token: its claim jti, whatever characters that has")
    return parsed(parser, (create, listing, revoke, rotate), arguments)


def parsed(
    parser: argparse.ArgumentParser, verbs: Iterable[argparse.ArgumentParser], arguments: Sequence[str]
) -> argparse.Namespace:
    """Add the options that name the store to each verb, and parse the arguments."""
    for each in verbs:
        each.add_argument("--store", metavar="URI", help="the store, as for the server")
        each.add_argument("--config", metavar="FILE", help="configuration file, as for the server")
    # Options that only the server's own command line has.
    parser.set_defaults(bind=None, port=None, engine=None, wait_for_store=False, force_clock=False)
    return parser.parse_args(arguments)


def run(given: argparse.Namespace, socket: str, direct: Callable[[], control.Application]) -> int:
    """Run the command; return the exit code. Raises ``StartRefused``, ``Unavailable``.

    ``socket``: path of the control socket of the server that has the store open, "" = none. ``direct`` opens the store.
    """
    return printed(VERBS, given, asker(socket, direct))


def printed(verbs: Mapping[str, Callable[[argparse.Namespace, Ask], Iterator[str]]], given: Any, ask: Ask) -> int:
    """Print the lines of the verb; return the exit code."""
    for line in verbs[given.verb](given, ask):
        print(line)  # noqa: T201
    return 0


def asker(socket: str, direct: Callable[[], control.Application]) -> Ask:
    """Return a function that sends requests to the server that has the store open, or else to this process."""
    if socket:
        try:
            control.ask(socket, "GET", "/healthz")
        except Unavailable:
            pass
        else:
            return lambda method, target, document: control.ask(socket, method, target, document)
    app = direct()
    return lambda method, target, document: control.call(app, method, target, document)


def asked(ask: Ask, method: str, target: str, document: object = None) -> Any:
    """Send a request and return the answer. Raises ``StartRefused`` with the error's description."""
    status, answer = ask(method, target, document)
    if status >= 400:
        raise StartRefused(answer.get("description") or answer["title"])
    return answer


def _create(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    project = given.project or (PROJECT if given.admin else "")
    if not project:
        raise StartRefused("Whose token is it? zq-server token create --project acme")
    terms: dict[str, Any] = {"name": given.name, "roles": [*given.role, *([ADMIN] if given.admin else [])]}
    terms |= {} if given.scope is None else {"scopes": given.scope}
    terms |= {} if given.days is None else {"days": given.days}
    yield asked(ask, "POST", f"{PATH}?{urlencode({'project': project})}", terms)["token"]


def _list(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    yield from map(_line, listed(ask, PATH, "tokens", given.project))


def listed(ask: Ask, path: str, member: str, project: str | None) -> Iterator[dict[str, Any]]:
    """Yield all entries of a project (``None`` = of all projects), page by page."""
    target = f"{path}?{urlencode({'limit': PAGE} | ({'project': project} if project else {}))}"
    while True:
        page = asked(ask, "GET", target)
        yield from page[member]
        if not page["links"]:
            return
        target = page["links"][0]["href"]


def _line(token: dict[str, Any]) -> str:
    scopes = "everything" if token["scopes"] is None else " ".join(token["scopes"])
    roles, used = ",".join(token["roles"]), token["last_used"] or "never"
    name = f" ({token['name']})" if token["name"] else ""
    return f"{token['id']}{name} of {token['project']}: {roles}; {scopes}; until {token['expires']}; used {used}"


def _revoke(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    named = f"/{quote(given.id, safe='')}" if given.jti is None else f"?{urlencode({'jti': given.jti})}"
    asked(ask, "DELETE", PATH + named)
    yield from ()


def _rotate(given: argparse.Namespace, ask: Ask) -> Iterator[str]:
    yield asked(ask, "POST", f"{PATH}/{quote(given.id, safe='')}/rotate")["token"]


VERBS: Final[dict[str, Callable[[argparse.Namespace, Ask], Iterator[str]]]] = {
    "create": _create,
    "list": _list,
    "revoke": _revoke,
    "rotate": _rotate,
}
