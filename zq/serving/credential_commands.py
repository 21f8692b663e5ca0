# SPDX-License-Identifier: Apache-2.0
"""``zq-server`` commands that administer credentials, for users with access to the store.

If a server has the store open, the command sends HTTP requests to the server's control socket. If not, the command
opens the store and sends the requests to an application in its own process.
"""

import argparse
from collections.abc import Callable, Sequence

from zq.errors import Unavailable
from zq.http.commands import Command, SendRequest
from zq.serving import control


def parse(command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments that follow the command's name."""
    parser = argparse.ArgumentParser(prog=f"zq-server {command.name}", description=command.description)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(command.verbs))
    for each in command.add_verbs(verbs):
        each.add_argument("--store", metavar="URI", help="store URI, as for zq-server")
        each.add_argument("--config", metavar="FILE", help="configuration file, as for zq-server")
    # ``_export_options`` also reads these options of zq-server, which the commands lack.
    parser.set_defaults(bind=None, port=None, engine=None, wait_for_store=False, force_clock=False)
    return parser.parse_args(arguments)


def run(command: Command, given: argparse.Namespace, send: SendRequest) -> int:
    """Run the command, print its output and return the exit code.

    Raises ``StartRefused`` for an error response, and ``Unavailable`` if the server or the store is unavailable.
    """
    for line in command.verbs[given.verb](given, send):
        print(line)  # noqa: T201
    return 0


def connect(socket: str, direct: Callable[[], control.Application]) -> SendRequest:
    """Return a function that sends requests to the running server, or to an application in this process.

    Args:
        socket: Path of the server's control socket, or "" if it has none.
        direct: Opens the store and returns an application. Called if no server answers at the socket.
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
