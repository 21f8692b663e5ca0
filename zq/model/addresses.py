# SPDX-License-Identifier: Apache-2.0
"""Network addresses: a check for public addresses, and the network that identifies a client.

Clients choose some URLs that the server requests, such as webhooks. To prevent server-side request forgery, the server
accepts only URLs with public addresses.
"""

import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The complete IANA IPv4 Special-Purpose Address Registry. Its globally reachable entries are network services, not
# hosts of subscribers.
_SPECIAL_IPV4: Final = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24"),
    *("192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24"),
    *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "255.255.255.255/32"),
)
# The IANA IPv6 Special-Purpose Address Registry, except for the networks that embed an IPv4 address.
_SPECIAL_IPV6: Final = (
    *("::1/128", "::/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001:db8::/32"),
    *("2620:4f:8000::/48", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10"),
)
# Metadata services of clouds, some of which are also in the registries: Amazon, Google, Azure, OpenStack and others;
# Amazon ECS tasks; Azure's host; Oracle; Alibaba; Amazon and Google over IPv6; Scaleway.
_METADATA: Final = (
    *("169.254.169.254/32", "169.254.170.2/32", "168.63.129.16/32", "192.0.0.192/32", "100.100.100.200/32"),
    *("fd00:ec2::254/128", "fd20:ce::254/128", "fd00:42::42/128"),
)
_MULTICAST: Final = ("224.0.0.0/4", "ff00::/8")
_REFUSED_NETWORKS: Final = tuple(map(ipaddress.ip_network, (*_SPECIAL_IPV4, *_SPECIAL_IPV6, *_METADATA, *_MULTICAST)))
# The only IPv6 unicast addresses that are assigned.
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
# IPv6 networks that embed an IPv4 address, and the number of bits after it. The IPv4 address is checked instead.
_CARRIERS: Final = tuple(
    (ipaddress.IPv6Network(network), shift)
    for network, shift in (("::ffff:0:0/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))
)
# Network that embeds an IPv4 address but is not public itself.
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")


def embedded(address: Address) -> Iterable[Address]:
    """Yield the address and each IPv4 address that it embeds, such as the one in a 6to4 address."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        for network, shift in (*_CARRIERS, (_COMPATIBLE, 0)):
            if address in network:
                yield ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF)
        if address in _TEREDO:
            yield ipaddress.IPv4Address(int(address) >> 64 & 0xFFFFFFFF)
            yield ipaddress.IPv4Address(~int(address) & 0xFFFFFFFF)


def is_public(address: str | Address) -> bool:
    """Return whether an address and all addresses that it embeds are public.

    If ``address`` is not a valid address, return ``False``.
    """
    if isinstance(address, str):
        try:
            address = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
    return all(map(_is_allowed, embedded(address)))


def _is_allowed(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if any(address in network for network, _ in _CARRIERS):
            return True
        if address not in _GLOBAL_UNICAST:
            return False
    return not any(address in network for network in _REFUSED_NETWORKS)


@lru_cache(maxsize=4096)
def client_network(host: str) -> bytes:
    """Return the key under which the requests of a client are counted.

    The key is the IPv4 address or the /64 prefix of the IPv6 address. If ``host`` is not an address, the key is b"".
    """
    with suppress(ValueError):
        found = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(found, "ipv4_mapped", None)
        return bytes((mapped or found).packed[:8])
    return b""
