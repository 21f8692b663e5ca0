# SPDX-License-Identifier: Apache-2.0
"""Where a server listens, and whether it can: found out before an engine starts, which would try again or fail late."""

import errno
import os
import socket
from typing import Final

from zq.errors import StartRefused

HANDED_ON: Final = ("GUNICORN_PID", "LISTEN_PID")
"""Variables by which a gunicorn or systemd that listens already hands its sockets on."""


def authority(host: str, port: int) -> str:
    """``host:port`` as URLs have it: an address of IPv6 in brackets; no host is every address."""
    host = host.strip("[]") or "0.0.0.0"  # noqa: S104  (said, not listened on)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def numeric(host: str) -> str:
    """An address, of IPv6 without brackets, for an engine that takes no names. Raises ``StartRefused``."""
    host = host.strip("[]")
    if ":" in host:
        return host
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"[server] bind must be an address or have one; it is {host[:100]!r}.") from error


def check(host: str, port: int) -> None:
    """Refuse an address on which this process cannot listen, or on which another one does: ``StartRefused``."""
    if any(variable in os.environ for variable in HANDED_ON):
        return
    address = numeric(host)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
        try:
            trial.bind((address, port))
        except OSError as error:
            raise StartRefused(_sentence(authority(host, port), error)) from error


def _sentence(place: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Another program listens on {place}. End it, or give this server another --port ([server] port)."
    return f"[server] bind and port: this server cannot listen on {place}: {os.strerror(error.errno or 0)}."
