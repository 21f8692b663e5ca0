# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the clients' daily tests, for the clients' part of the campaign."""

from tests.client.conftest import project, running

__all__ = ["project", "running"]
