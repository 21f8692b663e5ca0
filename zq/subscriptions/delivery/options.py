# SPDX-License-Identifier: Apache-2.0
"""The options of a delivery worker."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from zq.subscriptions.delivery.targets import TargetPolicy


class MailOptions(Struct, frozen=True):
    """The options of mail, which is sent to the SMTP server ``host``, or by ``command`` if ``host`` is ""."""

    command: str = "/usr/sbin/sendmail -t -oi"
    host: str = ""
    port: int = 465
    user: str = ""
    password: str = ""
    tls: bool = True
    senders: tuple[str, ...] = ()
    """The sender addresses that subscriptions may name in ``options.from``; the first one is the default."""


class Tokens(Protocol):
    """The source of tokens for subscribers with a trust."""

    def headers(self, subscriber: str, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the HTTP headers that carry a token. Raises ``Invalid``."""
        ...


class DeliveryOptions(Struct, frozen=True):
    """The options of a worker.

    ``rate``: deliveries per second to one subscription; 0 = unlimited. ``threads``: the number of threads that query
    the store. ``agent``: the User-Agent of requests. ``trusts``: None if the server does not use Keystone.
    """

    targets: TargetPolicy = TargetPolicy()
    mail: MailOptions = MailOptions()
    rate: float = 10.0
    threads: int = 8
    agent: str = "zq"
    trusts: Tokens | None = None
