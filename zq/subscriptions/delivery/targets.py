# SPDX-License-Identifier: Apache-2.0
"""Restrictions on target addresses (criterion E1): public addresses and networks that the operator allows.

A host name is resolved once per connection, and all of its addresses must be allowed. The connection uses one of these
addresses without another lookup, which could return different addresses.
"""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from zq.errors import Invalid
from zq.model.addresses import Address, Network, embedded, is_public
from zq.subscriptions.delivery.threads import Threads

# Ports below 1024 that are always allowed.
PORTS: Final = (80, 443)


class TargetPolicy(Struct, frozen=True):
    """The policy for target addresses.

    Args:
        networks: Non-public networks that are allowed.
        ports: Allowed ports below 1024, in addition to 80 and 443.
        own: The ports on which this service listens on this machine.
        stores: The hosts, addresses and ports of the stores, which are rejected even in allowed networks.
    """

    networks: tuple[Network, ...] = ()
    ports: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    stores: tuple[tuple[str, int], ...] = ()

    def allows(self, address: str, port: int) -> bool:
        """Return whether zq may send to the address and port."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if any((str(one), port) in self.stores for one in embedded(found)):
            return False
        if any(found in network for network in self.networks):
            return True
        return is_public(found) and not (port in self.own and _is_local(found))

    def check_url(self, url: str) -> None:
        """Check the port and host of a URL without a name lookup. Raises ``Invalid``."""
        parts = urlsplit(url)
        port = port_of(url)
        if port < 1024 and port not in (*PORTS, *self.ports):
            raise Invalid(f"subscriber must name one of the ports {', '.join(map(str, PORTS))}, or one from 1024 on.")
        if (str(parts.hostname), port) in self.stores:
            raise Invalid(f"subscriber must not be at {str(parts.hostname)[:253]}: nothing is sent to its address.")


def port_of(url: str) -> int:
    """Return the port of a URL, or the default port of its scheme."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _is_local(address: Address) -> bool:
    """Return whether the address belongs to this machine, by binding a socket to it."""
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class Forbidden(OSError):
    """Raised for an address that is not allowed."""


def addresses(host: str, port: int) -> Sequence[tuple[int, str]]:
    """Resolve a host, and return its distinct addresses with their families. Raises ``OSError``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))


class Judge:
    """Address check for new subscribers.

    A host name that cannot be resolved within a second is accepted, because each delivery checks the address again.
    """

    def __init__(self, policy: TargetPolicy) -> None:
        self._policy = policy
        self._threads = Threads(8, "zq-judge")

    def __call__(self, subscriber: str) -> None:
        """Raise ``Invalid`` if any address of the subscriber is not allowed."""
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
