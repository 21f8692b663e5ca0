# SPDX-License-Identifier: Apache-2.0
"""Topics and documents and their models: sequences of verbs that Hypothesis chooses; see ``test_model``."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.documents import RecordMachine, RestartingRecordMachine
from tests.model.pair import Holder
from tests.model.publishing import LogMachine, RestartingLogMachine
from tests.model.test_model import budget


def some(holder: Holder, most: int) -> settings:
    """Return settings for at most ``most`` examples; a third of them on stores with a server, which are slower."""
    return budget(holder, most if holder.uri.startswith(("memory:", "rocksdb:")) else most // 3)


@pytest.mark.timeout(36000)
def test_a_log_agrees_with_its_model(holder: Holder):
    """Publish, read, purge, stats and maintenance in any order return the model's batches, positions and counts."""
    run_state_machine_as_test(lambda: LogMachine(holder), settings=some(holder, 60))


@pytest.mark.timeout(36000)
def test_records_agree_with_their_model(holder: Holder):
    """Put, get, list and delete in any order return the dictionary's results."""
    run_state_machine_as_test(lambda: RecordMachine(holder), settings=some(holder, 24))


@pytest.mark.durable
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("machine", [RestartingLogMachine, RestartingRecordMachine])
def test_a_store_that_restarts_agrees_with_its_model(holder: Holder, machine: type):
    """The store is closed and reopened between any two verbs."""
    run_state_machine_as_test(lambda: machine(holder), settings=some(holder, 12))
