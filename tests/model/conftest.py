# SPDX-License-Identifier: Apache-2.0
"""Assertions of the machine tell what they compared."""

import pytest

pytest.register_assert_rewrite("tests.model.machine")
