# SPDX-License-Identifier: Apache-2.0
"""Options of the delivery worker."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from zq.subscriptions.delivery.targets import TargetPolicy


class MailOptions(Struct, frozen=True):
    """Mail options. The SMTP server at ``host`` sends mail. If ``host`` is empty, ``command`` sends it."""

    command: str = "/usr/sbin/sendmail -t -oi"
    host: str = ""
    port: int = 465
    user: str = ""
    password: str = ""
    tls: bool = True
    senders: tuple[str, ...] = ()
    """The sender addresses allowed in a subscription's ``options.from``. The first one is the default."""


class Tokens(Protocol):
    """Source of Keystone tokens for subscribers with a trust."""

    def headers(self, subscriber: str, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return HTTP headers that contain a token for the subscriber.

        Raises ``Invalid`` if there is no token, or if the subscriber may not receive it.
        """
        ...


class DeliveryOptions(Struct, frozen=True):
    """Options of a delivery worker.

    Args:
        rate: The maximum number of deliveries per second to one subscription; 0 = unlimited.
        threads: The number of threads for store access.
        agent: The User-Agent of requests.
        trusts: The source of trust tokens; None = the server does not use Keystone.
    """

    targets: TargetPolicy = TargetPolicy()
    mail: MailOptions = MailOptions()
    rate: float = 10.0
    threads: int = 8
    agent: str = "zq"
    trusts: Tokens | None = None
