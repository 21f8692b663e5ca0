# SPDX-License-Identifier: Apache-2.0
"""Subscriptions and deliveries and their model: sequences of verbs that Hypothesis chooses; see ``test_model``."""

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.model.pair import Holder
from tests.model.subscribing import SubscribingMachine
from tests.model.test_topics import some


@pytest.mark.timeout(36000)
def test_each_message_reaches_confirmed_subscriptions(holder: Holder):
    """Two brokers subscribe, confirm, delete, post, fan out and deliver in any order; others get nothing."""
    run_state_machine_as_test(lambda: SubscribingMachine(holder), settings=some(holder, 80))
