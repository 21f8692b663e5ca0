# SPDX-License-Identifier: Apache-2.0
"""A worker put together from the settings."""

from zq import __version__
from zq.auth.signatures import Signatures, shown
from zq.broker import Broker
from zq.delivery.confirmations import Confirmations
from zq.delivery.leases import Leases
from zq.delivery.senders import MailOptions
from zq.delivery.targets import Judge, TargetPolicy
from zq.delivery.worker import Deliverer, DeliveryOptions
from zq.settings.delivery import DeliverySettings


def judge_of(options: DeliverySettings) -> Judge:
    """Who judges what is subscribed."""
    return Judge(TargetPolicy(options.networks, options.ports))


def start(broker: Broker, options: DeliverySettings, signatures: Signatures, alone: bool) -> Deliverer:
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
    targets = TargetPolicy(options.networks, options.ports)
    deliverer = Deliverer(
        broker,
        DeliveryOptions(targets, mail, options.rate, agent=f"zq/{__version__}"),
        Leases(broker.storage.documents, broker.waiters.clock, alone),
        Confirmations(signatures.sign_confirmation, shown, options.public_url),
    )
    deliverer.start()
    return deliverer
