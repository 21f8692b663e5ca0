# SPDX-License-Identifier: Apache-2.0
"""The process of ``zq-websocket``: its command line, its settings, and the application until it ends."""

import argparse
import logging
import os
import threading
from collections.abc import Sequence

from zq import __version__, logs, settings
from zq.application import Application
from zq.errors import StartRefused
from zq.settings import Configuration
from zq.startup import check_exposure
from zq.websocket.command import DEFAULT_PORT
from zq.websocket.listener import Listener

LOG = logging.getLogger(__name__)


def run(arguments: Sequence[str], ended: threading.Event) -> None:
    """Serve until ``ended``. Raises ``StartRefused``, ``Unavailable``."""
    parser = argparse.ArgumentParser(prog="zq-websocket", description="Serve the zq queue service over WebSocket.")
    parser.add_argument("--bind", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on (default 9000)")
    parser.add_argument("--store", metavar="URI", help="the store, as redis://127.0.0.1 (no password)")
    parser.add_argument("--config", metavar="FILE", help="configuration file")
    parser.add_argument("--version", action="version", version=f"zq {__version__}")
    given = parser.parse_args(arguments)
    if given.store and logs.holds_password(given.store):
        raise StartRefused("--store must hold no password: use OS_STORAGE__URI or the configuration file.")
    if given.config:
        os.environ[settings.CONFIG_VARIABLE] = os.path.abspath(given.config)
    if given.port is None and not Configuration().current.websocket.port:
        os.environ[settings.variable("websocket", "port")] = DEFAULT_PORT
    for section, option, value in (
        ("websocket", "bind", given.bind),
        ("websocket", "port", given.port),
        ("storage", "uri", given.store),
    ):
        if value is not None:
            os.environ[settings.variable(section, option)] = str(value)
    configuration = Configuration()
    chosen = configuration.current
    logs.configure(chosen.log_format, chosen.log_level)
    for warning in check_exposure(chosen):
        LOG.warning(warning)
    made = Application(configuration)
    listener = Listener(chosen, made.outermost(), made.broker)
    listener.start()
    ended.wait()
    made.broker.end_waiting()
    listener.stop(chosen.graceful_timeout)


def is_embedded() -> bool:
    """Whether the store that the settings name can be opened by one process only."""
    try:
        return Configuration().current.uri.startswith("rocksdb:")
    except StartRefused:
        return False
