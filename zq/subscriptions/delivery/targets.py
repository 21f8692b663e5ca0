# SPDX-License-Identifier: Apache-2.0
"""The addresses to which zq sends (criterion E1): public ones, and those that the operator allows.

A name is looked up once for a connection, all its addresses must be allowed, and the connection goes to one of them.
There is no second lookup, which could return other addresses.
"""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from zq.errors import Invalid
from zq.model.addresses import Address, Network, carried, is_public
from zq.subscriptions.delivery.threads import Threads

# Ports below 1024 that every subscriber may have.
PORTS: Final = (80, 443)


class TargetPolicy(Struct, frozen=True):
    """The rules for addresses.

    ``networks``: networks that are allowed although they are not public. ``ports``: allowed ports below 1024 besides 80
    and 443. ``own``: ports at which this service listens on this machine. ``stores``: names and addresses of the stores
    with their ports; they are refused in every network.
    """

    networks: tuple[Network, ...] = ()
    ports: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    stores: tuple[tuple[str, int], ...] = ()

    def allows(self, address: str, port: int) -> bool:
        """Return whether zq may send to this address."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if any((str(one), port) in self.stores for one in carried(found)):
            return False
        if any(found in network for network in self.networks):
            return True
        return is_public(found) and not (port in self.own and _is_here(found))

    def check_url(self, url: str) -> None:
        """Raise ``Invalid`` for a port that is not allowed, and for the name of a store."""
        parts = urlsplit(url)
        port = port_of(url)
        if port < 1024 and port not in (*PORTS, *self.ports):
            raise Invalid(f"subscriber must name one of the ports {', '.join(map(str, PORTS))}, or one from 1024 on.")
        if (str(parts.hostname), port) in self.stores:
            raise Invalid(f"subscriber must not be at {str(parts.hostname)[:253]}: nothing is sent to its address.")


def port_of(url: str) -> int:
    """Return the port that a URL names, or the default port of its scheme."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _is_here(address: Address) -> bool:
    """Return whether the address is one of this machine."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class Forbidden(OSError):
    """The address is not allowed."""


def addresses(host: str, port: int) -> Sequence[tuple[int, str]]:
    """Return the family and the address of each address of a host. Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))


class Judge:
    """The check of a new subscriber's address. A name that cannot be resolved now is checked at the delivery."""

    def __init__(self, policy: TargetPolicy) -> None:
        self._policy = policy
        self._threads = Threads(8, "zq-judge")

    def __call__(self, subscriber: str) -> None:
        """Raise ``Invalid`` for a subscriber at an address that is not allowed."""
        if subscriber.startswith("mailto:"):
            return
        url = subscriber.removeprefix("trust+")
        self._policy.check_url(url)
        host, port = str(urlsplit(url).hostname), port_of(url)
        try:
            found = self._threads.submit(addresses, host, port).result(1.0)
        except (OSError, UnicodeError, TimeoutError):
            return
        if not all(self._policy.allows(address, port) for _, address in found):
            raise Invalid(f"subscriber must not be at {host[:253]}: nothing is sent to its address.")
