# SPDX-License-Identifier: Apache-2.0
"""Fixtures for histories, which kill servers and stores: durable stores only."""

from tests.faults.conftest import pytest_generate_tests, same_random_numbers  # noqa: F401
