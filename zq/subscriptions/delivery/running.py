# SPDX-License-Identifier: Apache-2.0
"""Construction of a delivery worker from the settings."""

import contextlib

from zq import __version__
from zq.auth.signatures import Signatures, format_time
from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.storage.api import Storage
from zq.subscriptions.delivery.confirmations import Confirmations, Places, Template
from zq.subscriptions.delivery.leases import Leases
from zq.subscriptions.delivery.options import DeliveryOptions, MailOptions, Tokens
from zq.subscriptions.delivery.targets import TargetPolicy, addresses
from zq.subscriptions.delivery.worker import Deliverer
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.settings import DeliverySettings


def places_of(options: DeliverySettings) -> Places:
    """Return the URLs and mail templates of confirmation requests."""
    joining, leaving = Template(*options.joining), Template(*options.leaving)
    return Places(options.public_url, options.confirmation_page, joining, leaving)


def targets_of(options: DeliverySettings) -> TargetPolicy:
    """Return the policy for target addresses. Resolves the host names of the stores and may block."""
    stores = set(options.stores)
    for host, port in options.stores:
        with contextlib.suppress(OSError, UnicodeError):
            stores |= {(address, port) for _, address in addresses(host, port)}
    return TargetPolicy(options.networks, options.ports, options.own, tuple(sorted(stores)))


def deliverer_of(
    options: DeliverySettings,
    storage: Storage,
    clock: Clock,
    policy: SubscriptionPolicy,
    sealing: Sealing,
    signatures: Signatures,
    alone: bool,
    trusts: Tokens | None = None,
) -> Deliverer:
    """Create a delivery worker without starting it. ``alone``: whether no other process uses the store."""
    mail = MailOptions(
        options.smtp_command,
        options.smtp_host,
        options.smtp_port,
        options.smtp_user,
        options.smtp_password,
        options.smtp_tls,
        options.mail_senders,
    )
    return Deliverer(
        storage,
        clock,
        SubscriptionDocuments(storage, clock),
        policy,
        sealing,
        DeliveryOptions(targets_of(options), mail, options.rate, agent=f"zq/{__version__}", trusts=trusts),
        Leases(storage.documents, clock, alone),
        Confirmations(signatures.sign_confirmation, format_time, places_of(options)),
    )
