# SPDX-License-Identifier: Apache-2.0
"""What the kernel is asked for: descriptors, whom a connection counts for, and an end of listening without resets."""

import ctypes
import ipaddress
import logging
import resource
import socket
import struct
from contextlib import suppress
from typing import Any, Final

LOG = logging.getLogger(__name__)
RESERVED: Final = 512
"""Descriptors that are left for the store, its files and its connections."""
HANDSHAKE: Final = 0.1
"""Seconds in which a handshake that has begun ends."""
ATTACH_FILTER: Final = 26
"""SO_ATTACH_FILTER"""
NO_HANDSHAKE: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte of a segment that holds its flags
        (0x45, 0, 1, 0x02),  # SYN? else skip one
        (0x06, 0, 0, 0),  # drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # take it whole
    )
)
"""A filter that begins no connection, for the kernel."""


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
    host = peer[0] if isinstance(peer, tuple) and peer else ""
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
