# SPDX-License-Identifier: Apache-2.0
"""The state machines on a store that moves to another store in the middle of each example; see ``test_model``.

Topics are compared only by the digests of the command, see ``tests/faults/test_migrate.py``.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.test_migrate import PAIRS
from tests.model.test_topics import some
from tests.stores import Stores

MACHINES = {"MovingStoreMachine": 60, "MovingRecordMachine": 36}
"""The machines, with the number of examples of up to 40 verbs in a campaign."""


@pytest.fixture(params=PAIRS, ids="-".join)
def moving(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[object]:
    """Yield a ``MovingHolder``; see ``holder`` for the import."""
    from tests.model.migrating import MovingHolder

    for name in "ab":
        (tmp_path / name).mkdir()
    opened = MovingHolder(
        *(stores.empty(kind, tmp_path / name, name) for kind, name in zip(request.param, "ab", strict=True))
    )
    yield opened
    opened.storage.close()
    opened.other.close()


@pytest.mark.one_store
@pytest.mark.timeout(36000)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_store_that_moves_agrees_with_its_model(moving: object, machine: str) -> None:
    """Markers, claim counts, history, idempotency keys, producers and versions are the same on the new store."""
    from tests.model import migrating

    made = getattr(migrating, machine)
    run_state_machine_as_test(lambda: made(moving.returned()), settings=some(moving, MACHINES[machine]))
