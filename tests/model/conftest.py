# SPDX-License-Identifier: Apache-2.0
"""The store of the state machines, imported so that pytest rewrites the machines' assertions."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import options_of

MACHINES = (
    "pair",
    "batches",
    "settlements",
    "machine",
    "log",
    "publishing",
    "documents",
    "timeline",
    "subscribing",
    "migrating",
)
pytest.register_assert_rewrite(*(f"tests.model.{name}" for name in MACHINES))


@pytest.fixture
def holder(store_uri: str, store_name: str, tmp_path: Path) -> Iterator[object]:
    """Yield a ``Holder`` of each driver's empty store.

    The import is in the fixture, because only then is it known whose assertions are rewritten.
    """
    from tests.model.pair import Holder

    opened = Holder(store_uri, options_of(store_name, tmp_path))
    yield opened
    opened.storage.close()
