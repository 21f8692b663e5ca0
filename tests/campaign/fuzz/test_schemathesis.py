# SPDX-License-Identifier: Apache-2.0
"""100,000 requests generated from the OpenAPI document, in parts that can run separately.

``ZQ_REQUESTS`` is the number of requests, ``ZQ_SEED`` the seed. Each part covers some of the operations in an order
shuffled by the seed, so that interrupted runs of different days cover different operations.
"""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup

from tests.http.fuzzing import RIGHT, WRONG, ask, opened_store, unexpected
from tests.rotation import SEED
from tests.stores import Stores

pytestmark = pytest.mark.slow

REQUESTS = int(os.environ.get("ZQ_REQUESTS") or 100_000)
# Maximum number of requests in a part.
PART = 5_000
PARTS = max(1, -(-REQUESTS // PART))


def shuffled() -> list[tuple[Any, GenerationMode]]:
    """Return every operation with valid and with invalid requests, in an order determined by the seed."""
    pairs = [(each, GenerationMode.POSITIVE) for each in RIGHT] + [(each, GenerationMode.NEGATIVE) for each in WRONG]
    Random(SEED).shuffle(pairs)
    return pairs


OPERATIONS = shuffled()
EACH = max(1, REQUESTS // len(OPERATIONS))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_generated_requests_are_answered_as_the_document_says(part: int, stores: Stores, tmp_path: Path) -> None:
    """Each response is below 500 and has a documented status, and its headers and body conform to their schemas."""
    failed = []
    with opened_store(stores, tmp_path) as store:
        for operation, mode in OPERATIONS[part::PARTS]:
            where = f"{operation.label}, {mode.value} requests, ZQ_SEED={SEED}, part {part} of {PARTS}"
            try:
                came = ask(store, operation, mode, examples=EACH, start=SEED + part)
            except (AssertionError, FailureGroup) as error:
                shown = "\n".join(map(str, error.exceptions)) if isinstance(error, FailureGroup) else str(error)
                failed.append(f"{where}: {shown}")
                continue
            if mode is GenerationMode.POSITIVE and unexpected(came):
                failed.append(f"{where}: refused with {unexpected(came)}")
    assert not failed, "\n\n".join(failed)
