# SPDX-License-Identifier: Apache-2.0
"""Who could reach a server and its store without being asked who he is, judged before the server listens."""

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from zq.errors import StartRefused
from zq.settings.reading import Settings

NOBODY: Final = "Nobody is authenticated (auth_strategy is empty)"
WAYS_OUT: Final = "or accept it with [server] trust_network = true."


def check(chosen: Settings) -> list[str]:
    """What the log must warn of. Raises ``StartRefused`` for what the operator has not accepted (tenancy 1)."""
    if not chosen.trust_network:
        _refuse_strangers(chosen)
    return _warnings(chosen)


def is_loopback(host: str) -> bool:
    """Whether only this machine can be meant: an address of it, or ``localhost``. Other names may become anything."""
    try:
        return host.lower() == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refuse_strangers(chosen: Settings) -> None:
    if not is_loopback(chosen.bind):
        raise StartRefused(
            f"{NOBODY}, so --bind {chosen.bind} would let everyone who reaches this machine read and delete all "
            f"messages. Set auth_strategy, bind to 127.0.0.1, {WAYS_OUT}"
        )
    if chosen.admin_mode:
        raise StartRefused(
            f"{NOBODY}, so admin_mode = true would let everyone who reaches this server name himself an "
            f"administrator. Set auth_strategy, leave admin_mode off, {WAYS_OUT}"
        )


def _warnings(chosen: Settings) -> list[str]:
    found = []
    if chosen.trust_network:
        found.append(
            f"{NOBODY} and [server] trust_network is true: everyone who reaches {chosen.bind}:{chosen.port} can read "
            "and delete all messages, and may call himself anyone."
        )
    if bare := _hosts_without_tls(chosen.uri):
        found.append(f"Messages and passwords go to the store at {', '.join(bare)} in clear: its URI asks for no TLS.")
    return found


def _hosts_without_tls(uri: str) -> list[str]:
    """The hosts beyond this machine to which a store's URI connects in clear."""
    parts = urlsplit(uri)
    options = {name.lower(): value.lower() for name, value in parse_qsl(parts.query)}
    tls = {
        "redis": "",
        "mongodb": options.get("tls", options.get("ssl", "")),
        "mongodb+srv": options.get("tls", options.get("ssl", "true")),
    }
    if tls.get(parts.scheme, "true") == "true":
        return []
    hosts = [re.sub(r":[0-9]*$", "", host) for host in parts.netloc.rpartition("@")[2].split(",")]
    return [host for host in hosts if host and not is_loopback(host) and "%2f" not in host.lower()]
