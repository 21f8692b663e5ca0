# SPDX-License-Identifier: Apache-2.0
"""Notifications of the server's state to systemd, for units with ``Type=notify``.

Workers send the notifications, so the unit also needs ``NotifyAccess=all``.
"""

import logging
import os
import socket
from typing import Final

LOG = logging.getLogger(__name__)
# Environment variable with the address of systemd's socket.
VARIABLE: Final = "NOTIFY_SOCKET"
# Environment variable with the address for ``zq-server`` and its workers.
OWN_VARIABLE: Final = "ZQ_NOTIFY_SOCKET"
READY: Final = "READY=1"
RELOADING: Final = "RELOADING=1"
STOPPING: Final = "STOPPING=1"
# Maximum seconds for sending a notification.
TIMEOUT: Final = 1.0


def adopt() -> None:
    """Prevent other code in this process from notifying systemd.

    Otherwise, gunicorn would report that the server is ready before its workers have opened the store.
    """
    os.environ[OWN_VARIABLE] = os.environ.pop(VARIABLE, "")


def is_notified() -> bool:
    """Return whether systemd, or another manager with the same protocol, expects notifications."""
    return os.environ.get(OWN_VARIABLE, "").startswith(("/", "@"))


def notify(state: str) -> None:
    """Send a state to systemd. Do nothing if systemd expects no notifications."""
    if not is_notified():
        return
    path = os.environ[OWN_VARIABLE]
    address = f"\0{path[1:]}" if path[0] == "@" else path  # an abstract socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(TIMEOUT)
            sender.connect(address)
            sender.send(state.encode())
    except OSError as error:
        LOG.warning("Cannot notify systemd at %s: %s.", path, error.strerror or error)
