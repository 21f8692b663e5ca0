# SPDX-License-Identifier: Apache-2.0
"""The process of ``zq-deliver``: its command line, its settings, and a worker until it ends."""

import argparse
import logging
from collections.abc import Sequence
from functools import partial

from zq import logs
from zq.auth import strategy_of
from zq.auth.master_keys import MasterKeys
from zq.auth.signatures import Signatures
from zq.clock import StoreClock
from zq.delivery.running import start, trusts_of
from zq.errors import StartRefused
from zq.events import NO_EVENTS
from zq.serving.application import make_broker, open_stores, subscription_policy
from zq.serving.commands import Asked, options_of, until_ended
from zq.serving.settings import Configuration, Settings
from zq.serving.startup import reload, reread

LOG = logging.getLogger(__name__)


def run(arguments: Sequence[str], asked: Asked) -> None:
    """Deliver until ``asked`` to end. Raises ``StartRefused``, ``Unavailable``."""
    parser = argparse.ArgumentParser(prog="zq-deliver", description="Deliver messages to the subscribers of zq queues.")
    options_of(parser, arguments)
    configuration = Configuration()
    chosen = configuration.current
    logs.configure(chosen.log_format, chosen.log_level)
    _check(chosen)
    storage = open_stores(chosen)
    clock = StoreClock(storage.now, doubted=storage.doubted)
    policy = subscription_policy(chosen.delivery, lambda: configuration.current.share)
    broker = make_broker(chosen, storage, clock, NO_EVENTS, policy)
    keys = MasterKeys(chosen.message_encryption_key_file, broker.sealing.keys.replace)
    keystone = None
    if chosen.auth.strategy == "keystone":
        keystone = strategy_of(lambda: configuration.current.auth, storage.documents, clock, configuration.path)
    deliverer = start(
        broker,
        chosen.delivery,
        Signatures(lambda: configuration.current.share, storage.documents, clock),
        False,
        trusts_of(chosen.delivery, keystone),
    )
    storage.listen(deliverer.hear)
    LOG.info("zq-deliver delivers.")
    try:
        until_ended(asked, partial(reload, configuration, lambda _new: reread(keys)))
    finally:
        deliverer.stop()
        storage.close()


def _check(chosen: Settings) -> None:
    """Raises ``StartRefused`` where a process of its own cannot deliver."""
    if not chosen.shared_store:
        raise StartRefused(
            "zq-deliver needs a store that several processes share. An embedded store is one process's: zq-server, "
            "which has it, delivers itself ([notification] deliver)."
        )
    if not chosen.share.secrets:
        raise StartRefused("zq-deliver needs [signed_url] secret_key, the same as the servers': it signs with it.")
