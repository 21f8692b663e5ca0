# SPDX-License-Identifier: Apache-2.0
"""Only durable stores: histories kill servers and stores."""

from tests.faults.conftest import pytest_generate_tests, same_random_numbers  # noqa: F401
