# SPDX-License-Identifier: Apache-2.0
"""The server-wide settings of subscriptions, and interfaces for secret encryption and Keystone trusts."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from zq.errors import Invalid
from zq.model import Seconds
from zq.subscriptions.model import Subscription
from zq.subscriptions.subscribers import TYPES


class Sealer(Protocol):
    """Interface for the encryption of subscription secrets at rest."""

    def seal(self, secret: str) -> bytes:
        """Encrypt a secret. Raises ``Invalid`` if no key is configured."""
        ...

    def open(self, sealed: bytes) -> str:
        """Decrypt a secret. Return "" if no key decrypts it."""
        ...


class NoKey:
    """A sealer for servers without an encryption key. It cannot encrypt secrets."""

    def seal(self, secret: str) -> bytes:
        raise Invalid("Subscriptions are not available: [signed_url] secret_key is not set on the server.")

    def open(self, sealed: bytes) -> str:
        return ""


class Trusts(Protocol):
    """Interface for the creation of Keystone trusts."""

    def create(self, token: str, subscriber: str, until: Seconds) -> str:
        """Create a trust that expires at ``until``, and return its id. Raises ``Invalid`` if no trust is possible."""
        ...


class NoTrusts:
    """A trust client for servers without Keystone. It rejects subscribers that need a trust."""

    def create(self, token: str, subscriber: str, until: Seconds) -> str:
        raise Invalid("subscriber must not begin with trust+: this server's auth_strategy is not keystone.")


def accept_any(_subscriber: str) -> None:
    pass


class SubscriptionPolicy(Struct, frozen=True):
    """The server-wide settings of subscriptions."""

    types: tuple[str, ...] = TYPES
    """The allowed URI schemes of subscribers."""
    default_ttl: int = 3600
    """The default ttl of subscriptions in seconds."""
    confirm: bool = True
    """Whether webhook subscribers must confirm before messages are delivered to them."""
    keep: int = 345600
    """The retention of undelivered notices in seconds."""
    sealer: Sealer = NoKey()
    trusts: Trusts = NoTrusts()
    check_address: Callable[[str], None] = accept_any
    """A function that raises ``Invalid`` if a subscriber's address is not allowed."""

    def secrets(self, subscription: Subscription, now: Seconds) -> Sequence[str]:
        """Return the secrets that sign the subscription's deliveries, except those that cannot be decrypted."""
        former = subscription.former
        sealed = [subscription.secret] + ([former[0]] if former and former[1] > now else [])
        return [secret for secret in map(self.sealer.open, sealed) if secret]


DEFAULT_POLICY: Final = SubscriptionPolicy()
