# SPDX-License-Identifier: Apache-2.0
"""TLS options of ``[server]`` and ``[auth]``, and their valid combinations."""

from typing import Final, Protocol

from oslo_config import cfg

from zq.errors import StartRefused

# Valid values of the minimum TLS version.
VERSIONS: Final = ("1.2", "1.3")
TLS: Final = [
    cfg.StrOpt(
        "tls_cert",
        default="",
        help="Serve TLS: a PEM file with the certificate, followed by its intermediate certificates. Reloaded on "
        "SIGHUP.",
    ),
    cfg.StrOpt("tls_key", default="", help="Private key of tls_cert (PEM, PKCS #8, without a password)."),
    cfg.StrOpt(
        "tls_client_ca",
        default="",
        help="CA certificates (PEM): only clients with a certificate from one of these authorities may connect.",
    ),
    cfg.StrOpt("tls_min", default=VERSIONS[0], choices=VERSIONS, help="Minimum TLS version."),
]
CERTIFICATES: Final = cfg.StrOpt(
    "certificates",
    default="",
    mutable=True,
    help="For token, with gunicorn and tls_client_ca: a TOML file that maps certificate subjects to projects, roles "
    "and scopes.",
)


class Chosen(Protocol):
    """The settings that ``check_tls`` reads."""

    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_client_ca(self) -> str: ...
    @property
    def engine(self) -> str: ...


def check_tls(chosen: Chosen, strategy: str, certificates: str) -> None:
    """Raise ``StartRefused`` if an option that another option needs is missing."""
    if bool(chosen.tls_cert) != bool(chosen.tls_key):
        raise StartRefused("[server] tls_cert and tls_key must both be set, or neither.")
    if chosen.tls_client_ca and not chosen.tls_cert:
        raise StartRefused("[server] tls_client_ca needs tls_cert and tls_key.")
    if certificates and not (strategy == "token" and chosen.engine == "gunicorn" and chosen.tls_client_ca):
        raise StartRefused(
            "[auth] certificates needs auth_strategy = token, engine = auto or gunicorn, and [server] tls_client_ca."
        )
