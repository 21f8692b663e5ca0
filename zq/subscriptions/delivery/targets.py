# SPDX-License-Identifier: Apache-2.0
"""Restrictions on target addresses: only public addresses, and networks that the operator allows.

A host name is resolved once per connection, and all of its addresses must be allowed. There is no second lookup,
because it could return an address that was not checked.
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
    """The addresses and ports to which deliveries may be sent.

    Args:
        networks: Non-public networks that are allowed.
        ports: Allowed ports below 1024, in addition to 80 and 443.
        own: The ports of this service. They are rejected on addresses of this machine, unless ``networks`` contains the
            address.
        stores: The host and port, or address and port, of each store. They are rejected even in allowed networks.
    """

    networks: tuple[Network, ...] = ()
    ports: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    stores: tuple[tuple[str, int], ...] = ()

    def allows(self, address: str, port: int) -> bool:
        """Return whether deliveries may be sent to the address and port."""
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
        """Raise ``Invalid`` if the URL's port is not allowed, or if its host and port belong to a database of zq.

        Host names are not resolved.
        """
        parts = urlsplit(url)
        port = get_port(url)
        if port < 1024 and port not in (*PORTS, *self.ports):
            raise Invalid(f"The port in the field subscriber must be {', '.join(map(str, PORTS))}, or 1024 or higher.")
        if (str(parts.hostname), port) in self.stores:
            raise Invalid(
                f"The host of subscriber must not be {str(parts.hostname)[:253]}: its address is not allowed."
            )


def get_port(url: str) -> int:
    """Return the port of a URL, or the default port of its scheme."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _is_local(address: Address) -> bool:
    """Return whether the address belongs to this machine.

    The check binds a socket to the address, which fails for addresses of other machines.
    """
    with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class Forbidden(OSError):
    """The error for a target address that is not allowed."""


def resolve(host: str, port: int) -> Sequence[tuple[int, str]]:
    """Resolve a host and return the address family and address of each result."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, str(where[0])) for family, _, _, _, where in found))


class AddressCheck:
    """Address check for new subscribers. Unresolvable names pass, because each delivery checks the address again."""

    def __init__(self, policy: TargetPolicy) -> None:
        self._policy = policy
        self._threads = Threads(8, "zq-judge")

    def __call__(self, subscriber: str) -> None:
        if subscriber.startswith("mailto:"):
            return
        url = subscriber.removeprefix("trust+")
        self._policy.check_url(url)
        host, port = str(urlsplit(url).hostname), get_port(url)
        try:
            found = self._threads.submit(resolve, host, port).result(1.0)
        except (OSError, UnicodeError, TimeoutError):
            return
        if not all(self._policy.allows(address, port) for _, address in found):
            raise Invalid(f"The host of subscriber must not be {host[:253]}: its address is not allowed.")
