# SPDX-License-Identifier: Apache-2.0
"""A worker put together from the settings."""

import contextlib
from typing import Any

from zq import __version__
from zq.auth.signatures import Signatures, shown
from zq.core import Broker
from zq.delivery.confirmations import Confirmations, Places, Template
from zq.delivery.leases import Leases
from zq.delivery.options import DeliveryOptions, MailOptions, Tokens
from zq.delivery.settings import DeliverySettings
from zq.delivery.targets import Judge, TargetPolicy, addresses
from zq.delivery.worker import Deliverer


def judge_of(options: DeliverySettings) -> Judge:
    """Who judges what is subscribed."""
    return Judge(targets_of(options))


def places_of(options: DeliverySettings) -> Places:
    """Where confirmations lead."""
    joining, leaving = Template(*options.joining), Template(*options.leaving)
    return Places(options.public_url, options.confirmation_page, joining, leaving)


def targets_of(options: DeliverySettings) -> TargetPolicy:
    """To which addresses anything is sent; the stores' names are looked up now."""
    stores = set(options.stores)
    for host, port in options.stores:
        with contextlib.suppress(OSError, UnicodeError):
            stores |= {(address, port) for _, address in addresses(host, port)}
    return TargetPolicy(options.networks, options.ports, options.own, tuple(sorted(stores)))


def trusts_of(options: DeliverySettings, strategy: Any) -> Any:
    """What makes trusts of Keystone; None where another strategy counts."""
    make = getattr(strategy, "trusts", None)
    return make(options.trust_http, options.trust_targets) if make else None


def start(
    broker: Broker, options: DeliverySettings, signatures: Signatures, alone: bool, trusts: Tokens | None = None
) -> Deliverer:
    """A worker at work. ``alone``: no other process has the store."""
    mail = MailOptions(
        options.smtp_command,
        options.smtp_host,
        options.smtp_port,
        options.smtp_user,
        options.smtp_password,
        options.smtp_tls,
        options.mail_senders,
    )
    deliverer = Deliverer(
        broker,
        DeliveryOptions(targets_of(options), mail, options.rate, agent=f"zq/{__version__}", trusts=trusts),
        Leases(broker.storage.documents, broker.waiters.clock, alone),
        Confirmations(signatures.sign_confirmation, shown, places_of(options)),
    )
    deliverer.start()
    return deliverer
