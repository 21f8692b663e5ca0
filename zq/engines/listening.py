# SPDX-License-Identifier: Apache-2.0
"""Where a server listens, whether it can, and what the kernel is asked for: descriptors, whom a connection counts for,
and an end of listening without resets.
"""

import ctypes
import errno
import ipaddress
import logging
import os
import resource
import socket
import struct
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from zq.errors import StartRefused

# Variables by which a gunicorn or systemd that listens already hands its sockets on.
HANDED_ON: Final = ("GUNICORN_PID", "LISTEN_PID")
LOG = logging.getLogger(__name__)
# Descriptors that are left for the store, its files and its connections.
RESERVED: Final = 512
# Addresses that stand for all addresses of the machine.
EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (compared, not listened on)
# Seconds in which a handshake that has begun ends.
HANDSHAKE: Final = 0.1
# SO_ATTACH_FILTER
ATTACH_FILTER: Final = 26
# A filter that begins no connection, for the kernel.
NO_HANDSHAKE: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte of a segment that holds its flags
        (0x45, 0, 1, 0x02),  # SYN? else skip one
        (0x06, 0, 0, 0),  # drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # take it whole
    )
)


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
    """Raise ``StartRefused`` for an address on which this process cannot listen, or on which another one does."""
    if any(variable in os.environ for variable in HANDED_ON):
        return
    try:
        _try(numeric(host), port)
    except OSError as error:
        raise StartRefused(_sentence(authority(host, port), error)) from error


def overlap(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether two addresses cannot be listened on at once: the same port, and one host or all."""
    hosts = {one[0].strip("[]"), other[0].strip("[]")}
    return one[1] == other[1] and (len(hosts) == 1 or bool(hosts & EVERYWHERE))


def is_free(host: str, port: int) -> bool:
    """Return whether no other process listens on the address."""
    try:
        _try(host.strip("[]"), port)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def _try(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
        trial.bind((host, port))


def _sentence(place: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Another program listens on {place}. End it, or give this server another --port ([server] port)."
    return f"[server] bind and port: this server cannot listen on {place}: {os.strerror(error.errno or 0)}."


def room_for(wanted: int) -> int:
    """How many connections this process may have at once: as many as wanted, if it is allowed so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            LOG.warning("[server] max_connections is %d, but the limit of open files allows %d.", wanted, soft // 2)
            return soft // 2
    return wanted


def address(peer: Any) -> bytes:
    """What the connections of a peer are counted under: its address, of IPv6 the network of a site (/64)."""
    return _address(peer[0] if isinstance(peer, tuple) and peer else "")


@lru_cache(maxsize=4096)
def _address(host: str) -> bytes:
    with suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(found, "ipv4_mapped", None)
        return (mapped or found).packed[:8]
    return b""


def refuse_handshakes(listener: socket.socket) -> None:
    """Begin no more connections, so that none that has begun is reset when the socket is closed a moment later.

    A client that asks meanwhile asks again after a second, and is refused then.
    """
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return
    code = ctypes.create_string_buffer(NO_HANDSHAKE)
    program = struct.pack("HP", len(NO_HANDSHAKE) // 8, ctypes.addressof(code))
    with suppress(OSError):  # where the kernel does not know it, a connection of that moment is reset
        listener.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, program)
