# SPDX-License-Identifier: Apache-2.0
"""Expiry of a server's TLS certificate."""

import socket
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx

HTTPS_PORT = 443


def read_expiry(url: str, timeout: float) -> float:
    """Return the Unix time at which the certificate of an https server expires.

    Raises ``OSError`` if the connection fails or the certificate is not valid.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    with (
        socket.create_connection((host, parts.port or HTTPS_PORT), timeout) as connection,
        httpx.create_ssl_context().wrap_socket(connection, server_hostname=host) as tls,
    ):
        found: Any = tls.getpeercert()
    return float(ssl.cert_time_to_seconds(found["notAfter"]))
