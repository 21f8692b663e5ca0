# SPDX-License-Identifier: Apache-2.0
"""What a worker is told of how to deliver."""

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct

from zq.delivery.targets import TargetPolicy


class MailOptions(Struct, frozen=True):
    """How mail goes out: by ``command``, or to a server of SMTP if it has a ``host``."""

    command: str = "/usr/sbin/sendmail -t -oi"
    host: str = ""
    port: int = 465
    user: str = ""
    password: str = ""
    tls: bool = True
    senders: tuple[str, ...] = ()
    """Addresses that ``options.from`` may name."""


class Tokens(Protocol):
    """Gives what a subscriber gets that is trusted."""

    def headers(self, subscriber: str, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Raises ``Invalid``."""
        ...


class DeliveryOptions(Struct, frozen=True):
    """``rate``: deliveries a second of one subscription, 0 = unbounded; ``threads`` ask the store."""

    targets: TargetPolicy = TargetPolicy()
    mail: MailOptions = MailOptions()
    rate: float = 10.0
    threads: int = 8
    agent: str = "zq"
    trusts: Tokens | None = None
