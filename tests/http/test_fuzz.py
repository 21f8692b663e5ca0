# SPDX-License-Identifier: Apache-2.0
"""Generated requests to a third of the operations of the OpenAPI document, selected by the seed of the day.

``ZQ_FUZZ=10`` generates ten times as many. ``tests/campaign/fuzz`` sends 100,000 to all operations.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from schemathesis import GenerationMode

from tests.http.fuzzing import RIGHT, STORE, WRONG, ask, opened_store, unexpected
from tests.rotation import SEED, rotated
from tests.stores import Stores
from zq.storage.api import Storage

pytestmark = pytest.mark.slow

EXAMPLES = 10 * int(os.environ.get("ZQ_FUZZ", "1"))


@pytest.fixture(scope="module")
def store(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with opened_store(stores, tmp_path_factory.mktemp("fuzz")) as opened:
        yield opened


@pytest.mark.parametrize("operation", rotated(RIGHT, len(RIGHT) // 3 + 1), ids=lambda operation: operation.label)
def test_right_requests_are_answered_as_the_document_says(store: Storage, operation: Any) -> None:
    """The document describes status, media type, headers and body.

    Some requests succeed, and 400 occurs only for rules that no schema can express.
    """
    for more in (1, 4, 12, 40):  # members that depend on each other may need more examples
        came = ask(store, operation, GenerationMode.POSITIVE, examples=more * EXAMPLES, start=SEED)
        assert unexpected(came) == [], f"ZQ_SEED={SEED}"
        if min(came)[0] < 400:
            return
    unknown = STORE == "redis" and operation.path.endswith("{topic}/messages/{message}")
    assert unknown, f"ZQ_SEED={SEED}: {came}"


@pytest.mark.parametrize("operation", rotated(WRONG, len(WRONG) // 3 + 1), ids=lambda operation: operation.label)
def test_wrong_requests_are_refused_as_the_document_says(store: Storage, operation: Any) -> None:
    """A request that violates a schema gets a documented error."""
    assert ask(store, operation, GenerationMode.NEGATIVE, examples=EXAMPLES, start=SEED)
