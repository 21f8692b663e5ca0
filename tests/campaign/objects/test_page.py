# SPDX-License-Identifier: Apache-2.0
"""The commands of the page on stores in an object store, run as printed."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.blocks import only
from tests.object.conftest import Open
from tests.object.test_checkpoints import embedded, numbers, posted
from tests.reader import SHELL, succeed
from tests.swift import KEY, USER, Swift

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("uri", ["swift"], indirect=True)]


def test_the_commands_of_the_page_work(swift: Swift, machine: Open, uri: str, tmp_path: Path) -> None:
    """The commands run on a store that is being served, and copy it."""
    lines = only("api-ref/storage-object.md", "sh")
    for old, new in (
        ("swift://zq/production?auth=v1", f"'{uri}'"),
        ("swift://zq/copy?auth=v1", f"'{swift.uri(uuid4().hex)}'"),
        (
            "https://swift.example.org/auth/v1.0 ST_USER=zq:server ST_KEY=secret",
            f"{swift.auth_url} ST_USER={USER} ST_KEY={KEY}",
        ),
        ("/tmp/", f"{tmp_path}/"),
    ):
        assert old in lines
        lines = lines.replace(old, new)
    posted(machine("first"), 0, 10)
    said = succeed([*SHELL, lines], tmp_path, 200)
    assert "epoch: 1" in said
    assert embedded(tmp_path / "zq-now") == numbers(10)
    assert 0 < len(embedded(tmp_path / "zq-early")) < 6
