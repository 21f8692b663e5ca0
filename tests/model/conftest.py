# SPDX-License-Identifier: Apache-2.0
"""Assertions of the machine tell what they compared."""

import pytest

pytest.register_assert_rewrite(*(f"tests.model.{name}" for name in ("pair", "batches", "settlements", "machine")))
