# SPDX-License-Identifier: Apache-2.0
"""Server TLS and client certificates with Python's ``ssl`` module."""

import os
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from zq.errors import StartRefused
from zq.model import Seconds
from zq.serving.settings.sections import ServerOptions

# Minimum TLS versions by option value.
MINIMUM: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# OpenSSL's codes for certificates that are not valid yet and that have expired.
OUTSIDE_VALIDITY: Final = frozenset({9, 10})
# First line of a certificate in PEM. OpenSSL also reads other labels and revocation lists, but Granian does not.
CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
# Attribute names of RFC 4514 by OpenSSL name.
RFC4514_NAMES: Final = {
    **{"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C"},
    **{"localityName": "L", "stateOrProvinceName": "ST", "streetAddress": "STREET"},
    **{"domainComponent": "DC", "userId": "UID"},
}
# Characters that RFC 4514 escapes.
ESCAPED_CHARACTERS: Final = frozenset(',+"\\<>;')


def get_certificate(connection: ssl.SSLSocket) -> tuple[str, float] | None:
    """Return the subject and expiry time of the client's certificate, or ``None`` if the client sent none."""
    with suppress(ValueError, OSError):
        found: Any = connection.getpeercert()
        if found:
            return subject(found["subject"]), float(ssl.cert_time_to_seconds(found["notAfter"]))
    return None


def subject(names: Any) -> str:
    """Format a subject according to RFC 4514, with the most specific name first: ``CN=billing,O=Acme``."""
    return ",".join(
        "+".join(f"{RFC4514_NAMES.get(name, name)}={_escape(value)}" for name, value in several)
        for several in reversed(names)
    )


def _escape(value: str) -> str:
    text = "".join(f"\\{each}" if each in ESCAPED_CHARACTERS else each for each in value)
    if text[:1] in (" ", "#"):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if len(text) > 1 and text.endswith(" ") else text


class ServerTls:
    """The TLS context of the server. The constructor raises ``StartRefused`` if a file is not valid."""

    def __init__(self, chosen: ServerOptions) -> None:
        self._chosen = chosen
        self.context = _context(chosen)
        """The context for new connections, from the files as last read."""
        self.expires = _find_expiry(chosen)
        """The time at which the certificate expires, or 0 if it has expired or is not valid yet; ``None`` = unknown."""

    def reload(self) -> None:
        """Read the files again. If they are invalid, raise ``StartRefused`` and keep the previous context."""
        self.context = _context(self._chosen)
        self.expires = _find_expiry(self._chosen)


def read_expiry(certificate: str, key: str) -> Seconds:
    """Return the time at which a certificate expires.

    The function performs a TLS handshake in memory to read the certificate.

    Raises ``ssl.SSLCertVerificationError`` if clients reject the certificate, for example because it has expired or is
    only for clients. Raises ``OSError`` if a file cannot be read.
    """
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.load_cert_chain(certificate, key, password="")
    theirs.check_hostname = False
    theirs.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, without its issuer
    theirs.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ours.wrap_bio(to_server, to_client, server_side=True)
    client = theirs.wrap_bio(to_client, to_server)
    while True:
        try:
            client.do_handshake()
            break
        except ssl.SSLWantReadError:
            with suppress(ssl.SSLWantReadError):
                server.do_handshake()
    found: Any = client.getpeercert()
    return float(ssl.cert_time_to_seconds(found["notAfter"]))


def _find_expiry(chosen: ServerOptions) -> Seconds | None:
    try:
        return read_expiry(chosen.tls_cert, chosen.tls_key)
    except ssl.SSLCertVerificationError as error:
        return 0.0 if error.verify_code in OUTSIDE_VALIDITY else None
    except OSError:  # Python's default client does not support this kind of key, or a file is being replaced
        return None


def _context(chosen: ServerOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = MINIMUM[chosen.tls_min]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    for option in ("tls_cert", "tls_key", "tls_client_ca"):
        path = getattr(chosen, option)
        if path and not os.access(path, os.R_OK):
            raise StartRefused(f"[server] {option} is not readable: {path}.")
    try:
        # An empty password prevents OpenSSL from prompting on the terminal.
        context.load_cert_chain(chosen.tls_cert, chosen.tls_key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise StartRefused(
            f"[server] tls_cert and tls_key must be a certificate and its unencrypted key, but {chosen.tls_cert} and "
            f"{chosen.tls_key} are not."
        ) from error
    if chosen.tls_client_ca:
        try:
            context.load_verify_locations(chosen.tls_client_ca)
            if CERTIFICATE not in Path(chosen.tls_client_ca).read_bytes():
                raise ssl.SSLError("The file contains no PEM certificate.")
        except (ssl.SSLError, OSError) as error:
            raise StartRefused(
                f"[server] tls_client_ca must contain certificates, but {chosen.tls_client_ca} does not."
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context
