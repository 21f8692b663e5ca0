# SPDX-License-Identifier: Apache-2.0
"""Redis store URIs: servers, credentials and options. Error messages name the option and never a password."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from zq.errors import StartRefused
from zq.model import store_uri

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
OPTIONS: Final = ("db", "master", "cluster", "sentinel_username", "sentinel_password")
TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_keyfile_password",
    "ssl_check_hostname",
)
TRUE: Final = ("true", "1", "yes")
FALSE: Final = ("false", "0", "no")


Host = tuple[str, int]


class Address(Struct, frozen=True, kw_only=True):
    """A parsed store URI. ``path`` is "" for TCP, and ``master`` is "" without Sentinels."""

    hosts: tuple[Host, ...]
    path: str
    db: int
    master: str
    cluster: bool
    credentials: dict[str, str]
    sentinel_credentials: dict[str, str]
    tls: dict[str, Any] | None

    @property
    def name(self) -> str:
        """The address for error messages, without credentials."""
        return self.path or ", ".join(f"{host}:{port}" for host, port in self.hosts)


def parse(uri: str) -> Address:
    """Parse a store URI. Raises ``StartRefused`` if the URI is not valid."""
    try:
        parts = store_uri.split(uri)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise StartRefused(
            "The URI of the Redis store is not valid: write IPv6 addresses in brackets, and options after the ? as "
            "NAME=VALUE, separated by &."
        ) from error
    _check_known(options, parts.scheme)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    master, cluster = options.get("master", ""), _boolean(options, "cluster")
    is_socket = parts.scheme == "unix"
    address = Address(
        hosts=() if is_socket else _hosts(hosts, SENTINEL_PORT if master else PORT),
        path=unquote(parts.path) if is_socket else "",
        db=_database(options.get("db") or ("" if is_socket else parts.path.strip("/"))),
        master=master,
        cluster=cluster,
        credentials=_given(username=unquote(user), password=unquote(password)),
        sentinel_credentials=_given(
            username=options.get("sentinel_username", ""), password=options.get("sentinel_password", "")
        ),
        tls=_tls(options) if parts.scheme == "rediss" else None,
    )
    _check_sense(address)
    return address


def _check_known(options: Mapping[str, str], scheme: str) -> None:
    known = OPTIONS + (TLS_OPTIONS if scheme == "rediss" else ())
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise StartRefused(
            f"The URI of the Redis store has unknown options for {scheme}://: {', '.join(unknown)}. "
            f"Known options are {', '.join(known)}."
        )


def _check_sense(address: Address) -> None:
    if address.cluster and address.master:
        raise StartRefused("The URI of the Redis store must not contain both master= (for Sentinels) and cluster=.")
    if address.cluster and address.db:
        raise StartRefused("The URI of a Redis cluster must not name a database other than 0.")
    if len(address.hosts) > 1 and not (address.cluster or address.master):
        raise StartRefused(
            "The URI of the Redis store names several servers: add ?cluster=true, or ?master=name for Sentinels."
        )
    if not address.hosts and not address.path:
        raise StartRefused(
            "The URI of the Redis store names no server: use redis://host:port/db or unix:///path/to.sock."
        )


def _hosts(text: str, port: int) -> tuple[Host, ...]:
    found = []
    for host in filter(None, text.split(",")):
        name, colon, number = host.rpartition(":")
        if not colon or host.endswith("]"):
            name, number = host, str(port)
        if not number.isascii() or not number.isdigit() or not 0 < int(number) < 65536:
            raise StartRefused("The URI of the Redis store has an invalid port: it must be a number from 1 to 65535.")
        found.append((name.strip("[]") or "localhost", int(number)))
    return tuple(found)


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 6):
        raise StartRefused("The database in the URI of the Redis store must be a number, as in redis://host:6379/0.")
    return int(text or 0)


def _boolean(options: Mapping[str, str], name: str, default: bool = False) -> bool:
    value = options.get(name, "").lower()
    if value and value not in TRUE + FALSE:
        raise StartRefused(f"The option {name} in the URI of the Redis store must be true or false.")
    return value in TRUE if value else default


def _tls(options: Mapping[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    if given.get("ssl_cert_reqs", "required") not in ("none", "optional", "required"):
        raise StartRefused("The option ssl_cert_reqs in the URI of the Redis store must be none, optional or required.")
    if "ssl_keyfile_password" in given:
        given["ssl_password"] = given.pop("ssl_keyfile_password")
    given["ssl_check_hostname"] = _boolean(options, "ssl_check_hostname", given.get("ssl_cert_reqs") != "none")
    return given


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
