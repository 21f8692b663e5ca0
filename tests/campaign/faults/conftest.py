# SPDX-License-Identifier: Apache-2.0
"""Fixtures of ``tests/faults``, for its long tests."""

from tests.faults.conftest import (  # noqa: F401
    engine,
    ipv6,
    leaping,
    pytest_generate_tests,
    same_random_numbers,
    shifted,
    store,
)
