# SPDX-License-Identifier: Apache-2.0
"""The server's policy for subscriptions, and the interfaces of its parts."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from zq.errors import Invalid
from zq.model import Seconds
from zq.subscriptions.model import Subscription
from zq.subscriptions.subscribers import TYPES


class Sealer(Protocol):
    """The encryption of secrets, so that readers of the store cannot use them."""

    def seal(self, secret: str) -> bytes:
        """Encrypt a secret. Raises ``Invalid`` if no key is configured."""
        ...

    def open(self, sealed: bytes) -> str:
        """Decrypt a secret. Return "" if no key decrypts it."""
        ...


class NoKey:
    """The sealer of a server without a key."""

    def seal(self, secret: str) -> bytes:
        raise Invalid("This server takes no subscriptions: [signed_url] secret_key is not set.")

    def open(self, sealed: bytes) -> str:
        return ""


class Trusts(Protocol):
    """The client for Keystone trusts."""

    def make(self, token: str, subscriber: str, until: Seconds) -> str:
        """Create a trust of the token's user in Keystone, and return its id. Raises ``Invalid``, ``Unavailable``."""
        ...


class NoTrusts:
    """The trusts of a server without Keystone."""

    def make(self, token: str, subscriber: str, until: Seconds) -> str:
        raise Invalid("subscriber must not begin with trust+: this server's auth_strategy is not keystone.")


def accept_any(_subscriber: str) -> None:
    """Accept every subscriber's address."""


class SubscriptionPolicy(Struct, frozen=True):
    """The server's policy for subscriptions."""

    types: tuple[str, ...] = TYPES
    """The accepted URI schemes of subscribers."""
    default_ttl: int = 3600
    """The ttl in seconds of a subscription whose terms name none."""
    confirm: bool = True
    """True if subscribers must agree before messages are delivered to them."""
    keep: int = 345600
    """The retention of undelivered notices in seconds."""
    sealer: Sealer = NoKey()
    trusts: Trusts = NoTrusts()
    check_address: Callable[[str], None] = accept_any
    """A function that raises ``Invalid`` for a subscriber whose address is not allowed."""

    def secrets(self, subscription: Subscription, now: Seconds) -> Sequence[str]:
        """Return the decrypted secrets that sign the subscription's deliveries now.

        Secrets that no key decrypts are omitted.
        """
        former = subscription.former
        sealed = [subscription.secret] + ([former[0]] if former and former[1] > now else [])
        return [secret for secret in map(self.sealer.open, sealed) if secret]


DEFAULT_POLICY: Final = SubscriptionPolicy()
