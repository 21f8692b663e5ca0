# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the daily tests of object stores."""

from tests.object.conftest import (
    azurite,
    between,
    machine,
    objects,
    pytest_generate_tests,
    rounds,
    s3,
    swift,
    three,
    uri,
)

__all__ = [
    "azurite",
    "between",
    "machine",
    "objects",
    "pytest_generate_tests",
    "rounds",
    "s3",
    "swift",
    "three",
    "uri",
]
