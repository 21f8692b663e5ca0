# SPDX-License-Identifier: Apache-2.0
"""Fixtures: the wheel that ``tests/packaging`` builds, and the versions of the lock file."""

from tests.packaging.conftest import dist, wheel
from tests.packaging.test_dependencies import locked

__all__ = ["dist", "locked", "wheel"]
