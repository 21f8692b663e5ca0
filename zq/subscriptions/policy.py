# SPDX-License-Identifier: Apache-2.0
"""The server's rules for subscriptions."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from zq.errors import Invalid
from zq.model import Seconds
from zq.subscriptions.model import Subscription
from zq.subscriptions.subscribers import TYPES


class Sealer(Protocol):
    """Encrypts secrets, so that readers of the store cannot use them."""

    def seal(self, secret: str) -> bytes:
        """Encrypt a secret. Raises ``Invalid`` if there is no key."""
        ...

    def open(self, sealed: bytes) -> str:
        """Decrypt a secret; "" if no key decrypts it."""
        ...


class NoKey:
    """The sealer of a server without a key."""

    def seal(self, secret: str) -> bytes:
        raise Invalid("This server takes no subscriptions: [signed_url] secret_key is not set.")

    def open(self, sealed: bytes) -> str:
        return ""


class Trusts(Protocol):
    """Creates trusts of Keystone."""

    def make(self, token: str, subscriber: str, until: Seconds) -> str:
        """Return the id of a new trust of the token's user. Raises ``Invalid``, ``Unavailable``."""
        ...


class NoTrusts:
    """The trusts of a server without Keystone."""

    def make(self, token: str, subscriber: str, until: Seconds) -> str:
        raise Invalid("subscriber must not begin with trust+: this server's auth_strategy is not keystone.")


def accept_any(_subscriber: str) -> None:
    """Accept every subscriber's address."""


class SubscriptionPolicy(Struct, frozen=True):
    """The server's rules for subscriptions."""

    types: tuple[str, ...] = TYPES
    """The accepted schemes of subscribers."""
    default_ttl: int = 3600
    """The ttl in seconds of a subscription that names none."""
    confirm: bool = True
    """Whether a subscriber must agree before anything is delivered to it."""
    keep: int = 345600
    """Seconds for which an undelivered notice is stored."""
    sealer: Sealer = NoKey()
    trusts: Trusts = NoTrusts()
    check_address: Callable[[str], None] = accept_any
    """Raises ``Invalid`` for a subscriber at an address to which the server sends nothing."""

    def secrets(self, subscription: Subscription, now: Seconds) -> Sequence[str]:
        """Return the secrets that sign the subscription's deliveries now; none if no key decrypts them."""
        former = subscription.former
        sealed = [subscription.secret] + ([former[0]] if former and former[1] > now else [])
        return [secret for secret in map(self.sealer.open, sealed) if secret]


DEFAULT_POLICY: Final = SubscriptionPolicy()
