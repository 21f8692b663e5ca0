# SPDX-License-Identifier: Apache-2.0
"""Fixtures of ``tests/spark`` for the tests that only the campaign runs."""

from tests.spark.conftest import client, finish, make, options, project, proxy, server, spark, timed

__all__ = ["client", "finish", "make", "options", "project", "proxy", "server", "spark", "timed"]
