# SPDX-License-Identifier: Apache-2.0
"""Construction of a delivery worker from the settings."""

import contextlib

from zq import __version__
from zq.auth.signatures import Signatures, format_time
from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.storage.api import Storage
from zq.subscriptions.delivery.confirmations import ConfirmationOptions, Confirmations, Template
from zq.subscriptions.delivery.leases import Leases
from zq.subscriptions.delivery.options import DeliveryOptions, MailOptions, Tokens
from zq.subscriptions.delivery.targets import TargetPolicy, resolve
from zq.subscriptions.delivery.worker import DeliveryWorker
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.policy import SubscriptionPolicy
from zq.subscriptions.settings import NotificationOptions


def create_confirmation_options(options: NotificationOptions) -> ConfirmationOptions:
    """Return the URLs and mail templates of confirmation requests."""
    joining, leaving = Template(*options.joining), Template(*options.leaving)
    return ConfirmationOptions(options.public_url, options.external_confirmation_url, joining, leaving)


def create_target_policy(options: NotificationOptions) -> TargetPolicy:
    """Return the policy for target addresses. The policy forbids deliveries to the database servers of zq.

    The function resolves the host names of these servers, so it blocks.
    """
    stores = set(options.stores)
    for host, port in options.stores:
        with contextlib.suppress(OSError, UnicodeError):
            stores |= {(address, port) for _, address in resolve(host, port)}
    return TargetPolicy(options.networks, options.ports, options.own, tuple(sorted(stores)))


def create_worker(
    options: NotificationOptions,
    storage: Storage,
    clock: Clock,
    policy: SubscriptionPolicy,
    sealing: Sealing,
    signatures: Signatures,
    alone: bool,
    trusts: Tokens | None = None,
) -> DeliveryWorker:
    """Create a delivery worker, but do not start it.

    If ``alone`` is true, no other process uses the store, so the worker needs no leases.
    """
    mail = MailOptions(
        options.smtp_command,
        options.smtp_host,
        options.smtp_port,
        options.smtp_user_name,
        options.smtp_user_password,
        options.smtp_tls,
        options.mail_senders,
    )
    return DeliveryWorker(
        storage,
        clock,
        SubscriptionDocuments(storage, clock),
        policy,
        sealing,
        DeliveryOptions(create_target_policy(options), mail, options.rate, agent=f"zq/{__version__}", trusts=trusts),
        Leases(storage.documents, clock, alone),
        Confirmations(signatures.sign_confirmation, format_time, create_confirmation_options(options)),
    )
