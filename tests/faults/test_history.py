# SPDX-License-Identifier: Apache-2.0
"""Short histories of the storage verbs, and of killed servers, checked against the laws L1 to L8.

A server store gets several processes, the embedded store one process with many threads. ``ZQ_HISTORY_SECONDS`` sets
the length (``tests.campaign.histories.runs``). ``tests/campaign/histories`` has other faults.
"""

from pathlib import Path

import pytest

from tests.campaign.histories.load import STORAGE, Shift, clear, finish, labour, labour_apart, prepare
from tests.campaign.histories.nemesis import deployed, kill
from tests.campaign.histories.runs import SECONDS, TOTAL, assert_lawful, checked_round, embedded, logs_told, rounds
from tests.campaign.histories.targets import HttpTarget, StorageTarget
from zq.storage import connect

PROCESSES = 3


@pytest.mark.timeout(600 + 5 * TOTAL)
def test_the_storage_verbs_keep_the_laws(store_uri: str) -> None:
    """Claims expire after a second or two, messages expire, and late holders return."""
    for project_suffix, seconds in rounds(SECONDS):
        with StorageTarget(connect(store_uri)) as target:
            prepare(target, project_suffix)
            if embedded(store_uri):
                calls = labour(target, STORAGE, Shift(seconds), project_suffix=project_suffix)
        if not embedded(store_uri):
            calls = labour_apart(store_uri, STORAGE, seconds, PROCESSES, project_suffix)
        with StorageTarget(connect(store_uri)) as target:
            calls += finish(target, STORAGE, project_suffix)
            assert_lawful(calls)
            clear(target, project_suffix)


@pytest.mark.store_of_the_day
@pytest.mark.parametrize("kind", ["rocksdb", "mongodb", "redis"])
def test_killed_servers_keep_the_laws(kind: str, tmp_path: Path) -> None:
    """An interrupted call has taken effect or not, and acknowledged calls have."""
    with (
        deployed(kind, tmp_path) as deployment,
        logs_told(deployment.servers),
        HttpTarget(deployment.urls) as target,
    ):
        checked_round(deployment, target, {"kill": kill}, SECONDS)
