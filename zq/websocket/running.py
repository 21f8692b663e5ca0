# SPDX-License-Identifier: Apache-2.0
"""The process of ``zq-websocket``: its command line, its settings, and the application until it ends."""

import argparse
import logging
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

from zq import logs, settings
from zq.application import Application
from zq.commands import Asked, options_of, until_ended
from zq.errors import StartRefused, Unavailable
from zq.settings import Configuration
from zq.startup import check_exposure, reload
from zq.websocket.listener import Listener

LOG = logging.getLogger(__name__)
EMBEDDED: Final = (
    " An embedded store is one process's: set [websocket] port in the configuration of zq-server, which then serves "
    "WebSocket itself."
)
DEFAULT_PORT: Final = "9000"


def run(arguments: Sequence[str], asked: Asked) -> None:
    """Serve until ``asked`` to end. Raises ``StartRefused``, ``Unavailable``."""
    parser = argparse.ArgumentParser(prog="zq-websocket", description="Serve the zq queue service over WebSocket.")
    parser.add_argument("--bind", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on (default 9000)")
    given = options_of(parser, arguments)
    if given.port is None and not Configuration().current.websocket.port:
        os.environ[settings.variable("websocket", "port")] = DEFAULT_PORT
    for option, value in (("bind", given.bind), ("port", given.port)):
        if value is not None:
            os.environ[settings.variable("websocket", option)] = str(value)
    configuration = Configuration()
    chosen = configuration.current
    logs.configure(chosen.log_format, chosen.log_level)
    for warning in check_exposure(chosen):
        LOG.warning(warning)
    made = _application(configuration)
    listener = Listener(chosen, made)
    made.rereads.append(listener)
    listener.start()
    until_ended(asked, partial(reload, configuration, made.apply))
    made.broker.end_waiting()
    listener.stop(chosen.graceful_timeout)


def _application(configuration: Configuration) -> Application:
    """Raises ``StartRefused``, ``Unavailable``."""
    try:
        return Application(configuration, alone=False)
    except (StartRefused, Unavailable) as refusal:
        if configuration.current.uri.startswith("rocksdb:"):
            raise StartRefused(f"{refusal}{EMBEDDED}") from refusal
        raise
