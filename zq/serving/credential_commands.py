# SPDX-License-Identifier: Apache-2.0
"""Commands of ``zq-server`` that administer credentials, for any user who can read the store.

The routes of the HTTP interface answer: of the server that has an embedded store open, through its control socket; else
of an application in this process, on the store itself.
"""

import argparse
from collections.abc import Callable, Sequence

from zq.errors import Unavailable
from zq.http.commands import Ask, Command
from zq.serving import control


def parse(command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments behind the command's name."""
    parser = argparse.ArgumentParser(prog=f"zq-server {command.name}", description=command.description)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(command.verbs))
    for each in command.add_verbs(verbs):
        each.add_argument("--store", metavar="URI", help="the store, as for the server")
        each.add_argument("--config", metavar="FILE", help="configuration file, as for the server")
    # The other options of the server's command line, for code that reads both.
    parser.set_defaults(bind=None, port=None, engine=None, wait_for_store=False, force_clock=False)
    return parser.parse_args(arguments)


def run(command: Command, given: argparse.Namespace, ask: Ask) -> int:
    """Carry out the command, print its lines, and return the exit code. Raises ``StartRefused``, ``Unavailable``."""
    for line in command.verbs[given.verb](given, ask):
        print(line)  # noqa: T201
    return 0


def connect(socket: str, direct: Callable[[], control.Application]) -> Ask:
    """Return a function that sends requests to the server at the control socket, or else to an application.

    Args:
        socket: The control socket of a server that has the store open; "" if there is none.
        direct: Opens the store and returns an application on it.
    """
    if socket:
        try:
            control.ask(socket, "GET", "/healthz")
        except Unavailable:
            pass
        else:
            return lambda method, target, document: control.ask(socket, method, target, document)
    app = direct()
    return lambda method, target, document: control.call(app, method, target, document)
