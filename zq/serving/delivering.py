# SPDX-License-Identifier: Apache-2.0
"""The process of ``zq-deliver``: command line, settings and delivery worker."""

import argparse
import logging
from collections.abc import Sequence
from functools import partial

from zq import logs
from zq.auth import create_strategy
from zq.auth.master_keys import MasterKeys, read_keys
from zq.auth.signatures import Signatures
from zq.clock import StoreClock
from zq.core.data_keys import DataKeys
from zq.core.encryption import Sealing
from zq.errors import StartRefused
from zq.model.identity import SignedUrlOptions
from zq.serving.application import open_stores, start_level_watch
from zq.serving.commands import SignalFlags, parse_options, wait_until_ended
from zq.serving.settings import Configuration, Settings
from zq.serving.startup import reload, reload_files
from zq.subscriptions.delivery.running import create_worker
from zq.subscriptions.feature import create_policy, create_trusts
from zq.subscriptions.settings import SECTION

LOG = logging.getLogger(__name__)


def run(arguments: Sequence[str], flags: SignalFlags) -> None:
    """Deliver notifications until ``flags.end`` is set."""
    parser = argparse.ArgumentParser(
        prog="zq-deliver", description="Deliver notifications to the subscribers of zq queues."
    )
    parse_options(parser, arguments)
    configuration = Configuration()
    chosen = configuration.current
    logs.configure(chosen.log.format, chosen.log.level)
    _check(chosen)
    storage = open_stores(chosen)
    clock = StoreClock(storage.now, distrusted_lead=storage.clock_lead)
    level = start_level_watch(chosen, storage, "zq-deliver")
    sealing = Sealing(DataKeys(storage.documents, clock, read_keys(chosen.transport.message_encryption_key_file)))
    keys = MasterKeys(chosen.transport.message_encryption_key_file, sealing.keys.replace)
    keystone = None
    if chosen.auth.strategy == "keystone":
        keystone = create_strategy(lambda: configuration.current.auth, storage.documents, clock, configuration.path)

    def share() -> SignedUrlOptions:
        return configuration.current.share

    deliverer = create_worker(
        chosen.of(SECTION),
        storage,
        clock,
        create_policy(chosen.of(SECTION), share),
        sealing,
        Signatures(share, storage.documents, clock),
        False,
        create_trusts(chosen.of(SECTION), keystone),
    )
    deliverer.start()
    storage.listen(deliverer.notify)
    LOG.info("zq-deliver is running.")
    try:
        wait_until_ended(flags, partial(reload, configuration, lambda _new: reload_files(keys)))
    finally:
        deliverer.stop()
        level.stop()
        storage.close()


def _check(chosen: Settings) -> None:
    if not chosen.shared_store:
        raise StartRefused(
            "zq-deliver needs a store that several processes can open. With an embedded store, zq-server delivers "
            "notifications itself ([notification] deliver)."
        )
    if not chosen.share.secrets:
        raise StartRefused(
            "zq-deliver signs notifications with [signed_url] secret_key. Set it to the same value as on the servers."
        )
