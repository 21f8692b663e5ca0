# SPDX-License-Identifier: Apache-2.0
"""Listening addresses: formatting, availability checks, and diversion of new connections at shutdown."""

import ctypes
import errno
import os
import socket
import struct
from typing import Final

from zq.errors import StartRefused

# Environment variables that gunicorn and systemd set for inherited listening sockets.
INHERITANCE_VARIABLES: Final = ("GUNICORN_PID", "LISTEN_PID")
# SO_ATTACH_FILTER and SO_ATTACH_REUSEPORT_CBPF of Linux.
ATTACH_FILTER: Final = 26
ATTACH_SELECTION: Final = 51
# Hosts that stand for all addresses of the machine.
WILDCARD_HOSTS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 (compared, not listened on)
# A BPF program that drops every segment.
DROP_FILTER: Final = struct.pack("HBBI", 0x06, 0, 0, 0)


def format_authority(host: str, port: int) -> str:
    """Return ``host:port`` in URL syntax, with brackets around an IPv6 address. An empty host becomes ``0.0.0.0``."""
    host = host.strip("[]") or "0.0.0.0"  # noqa: S104  (formatted, not listened on)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str) -> str:
    """Return the host's IP address, without brackets. Raises ``StartRefused`` if the name cannot be resolved."""
    host = host.strip("[]")
    if ":" in host:
        return host
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"[server] bind must be an IP address or a resolvable name, not {host[:100]!r}.") from error


def check(host: str, port: int) -> None:
    """Raise ``StartRefused`` if this process cannot listen on the address. Inherited sockets are not checked."""
    if any(variable in os.environ for variable in INHERITANCE_VARIABLES):
        return
    try:
        _try_bind(resolve(host), port)
    except OSError as error:
        raise StartRefused(_sentence(format_authority(host, port), error)) from error


def overlap(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Return whether a process cannot listen on both addresses.

    Two addresses conflict if their ports are equal, and their hosts are equal or one host is a wildcard.
    """
    hosts = {one[0].strip("[]"), other[0].strip("[]")}
    return one[1] == other[1] and (len(hosts) == 1 or bool(hosts & WILDCARD_HOSTS))


def accepts(address: str, port: int) -> bool:
    """Return whether a process on this machine accepts connections at the address, which may be a wildcard."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0


def is_free(host: str, port: int) -> bool:
    """Return whether no other process listens on the address."""
    error = try_listening(host, port)
    return error is None or error.errno != errno.EADDRINUSE


def try_listening(host: str, port: int) -> OSError | None:
    """Return the error with which a process on this machine cannot listen on the address, or ``None``."""
    try:
        _try_bind(host.strip("[]"), port)
    except OSError as error:
        return error
    return None


def _try_bind(host: str, port: int) -> None:
    with socket.socket(_family(host)) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore closed connections in TIME_WAIT
        trial.bind((host, port))


def _sentence(place: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Another program listens on {place}. Stop it, or choose another --port ([server] port)."
    return f"[server] bind and port: cannot listen on {place}: {os.strerror(error.errno or 0)}."


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def divert_new_connections(address: str, port: int, listeners: int) -> socket.socket | None:
    """Divert new connections, so that no connection is reset when the server closes its listening sockets.

    The function returns an additional listening socket on the address. From now on, the kernel assigns each new
    connection to this socket, and a filter on this socket discards the handshake. The client repeats the handshake
    after a second. Another server on the address can then accept the connection.

    ``listeners`` is the number of the server's listening sockets. Returns ``None`` if the kernel does not support the
    diversion.
    """
    sink = socket.socket(_family(address))
    try:
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sink.bind((address, port))
        _attach(sink, ATTACH_FILTER, DROP_FILTER)
        sink.listen(1)
        _attach(sink, ATTACH_SELECTION, struct.pack("HBBI", 0x06, 0, 0, listeners))
    except (OSError, AttributeError):
        sink.close()
        return None
    return sink


def _attach(target: socket.socket, option: int, code: bytes) -> None:
    program = ctypes.create_string_buffer(code)
    target.setsockopt(socket.SOL_SOCKET, option, struct.pack("HP", len(code) // 8, ctypes.addressof(program)))
