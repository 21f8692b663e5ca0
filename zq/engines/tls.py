# SPDX-License-Identifier: Apache-2.0
"""TLS under gunicorn: the certificate, which is read again at ``HUP``, and sockets that behave like those without TLS.

The worker's loop knows nothing of TLS. A handshake is part of reading, so it is bounded as a head is, and what the loop
hears of a socket that is not ready is ``BlockingIOError``.
"""

import os
import ssl
from contextlib import suppress
from typing import Any, Final

from zq.errors import StartRefused
from zq.settings import Settings

# Bytes of a record of TLS. What is sent is cut so: of a record that could not be sent nothing has been.
RECORD: Final = 16384
MINIMUM: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# Attributes of a subject, as OpenSSL names them and as RFC 4514 does.
SHORT: Final = {
    **{"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"},
    **{"localityName": "L", "stateOrProvinceName": "ST", "streetAddress": "STREET"},
    **{"domainComponent": "DC", "userId": "UID"},
}
# What has a meaning in a subject as RFC 4514 writes it.
SPECIAL: Final = frozenset(',+"\\<>;')


class TlsSocket(ssl.SSLSocket):
    """A connection by TLS, which never waits."""

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def send(self, data: Any, flags: int = 0) -> int:
        """How many bytes were taken, record by record."""
        rest, sent = memoryview(data), 0
        try:
            while sent < len(rest):
                sent += super().send(rest[sent : sent + RECORD], flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not sent:
                raise BlockingIOError from error
        return sent

    def shutdown(self, how: int) -> None:
        """Say by TLS, too, that no more comes."""
        with suppress(OSError, ValueError):
            self.unwrap()
        super().shutdown(how)

    def caller(self) -> tuple[str, float] | None:
        """The subject of the client's certificate, and until when that is valid; None if there is none."""
        with suppress(ValueError, OSError):
            found: Any = self.getpeercert()
            if found:
                return subject(found["subject"]), float(ssl.cert_time_to_seconds(found["notAfter"]))
        return None


def subject(names: Any) -> str:
    """A subject as RFC 4514 writes it: the last of its names first, as ``CN=billing,O=Acme``."""
    return ",".join(
        "+".join(f"{SHORT.get(name, name)}={_escaped(value)}" for name, value in several) for several in reversed(names)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{each}" if each in SPECIAL else each for each in value)
    if text[:1] in (" ", "#"):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if len(text) > 1 and text.endswith(" ") else text


class ServerTls:
    """What the options say of TLS; ``wrap`` goes by the files as they were last read. Raises ``StartRefused``."""

    def __init__(self, chosen: Settings) -> None:
        self._chosen = chosen
        self._context = _context(chosen)

    def reload(self) -> None:
        """Read the files again, for new connections. Raises ``StartRefused``, and the former ones stay."""
        self._context = _context(self._chosen)

    def wrap(self, sock: Any) -> TlsSocket:
        """The connection by TLS; nothing was shaken hands on yet. Raises ``OSError``."""
        wrapped: Any = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return wrapped  # type: ignore[no-any-return]


def _context(chosen: Settings) -> ssl.SSLContext:
    context = context_of(chosen)
    context.sslsocket_class = TlsSocket
    return context


def context_of(chosen: Settings) -> ssl.SSLContext:
    """What the options say, for sockets that may wait. Raises ``StartRefused``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM[chosen.tls_min]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    for option in ("tls_cert", "tls_key", "tls_client_ca"):
        path = getattr(chosen, option)
        if path and not os.access(path, os.R_OK):
            raise StartRefused(f"[server] {option} cannot be read: {path}.")
    try:
        # Without a password, or OpenSSL would ask for it on the terminal.
        context.load_cert_chain(chosen.tls_cert, chosen.tls_key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise StartRefused(
            f"[server] tls_cert and tls_key must be a certificate and its key, without a password: {chosen.tls_cert} "
            f"and {chosen.tls_key} are not."
        ) from error
    if chosen.tls_client_ca:
        try:
            context.load_verify_locations(chosen.tls_client_ca)
        except (ssl.SSLError, OSError) as error:
            raise StartRefused(
                f"[server] tls_client_ca must hold certificates: {chosen.tls_client_ca} does not."
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
