# SPDX-License-Identifier: Apache-2.0
"""The commands of the page on stores in an object store, as they stand there."""

import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from tests.blocks import only
from tests.object.conftest import Open
from tests.object.test_checkpoints import embedded, numbers, posted
from tests.swift import Swift


def test_the_commands_of_the_page_work(swift: Swift, machine: Open, uri: str, tmp_path: Path) -> None:
    """On a store that is served, from which they make another one."""
    lines = only("api-ref/storage-object.md", "sh")
    copy = swift.uri(uuid4().hex)
    for old, new in (
        ("swift://zq/production?auth=v1", f"'{uri}'"),
        ("swift://zq/copy?auth=v1", f"'{copy}'"),
        ("/tmp/", f"{tmp_path}/"),
        ("zq-server ", f"{sys.executable} -m zq.server "),
    ):
        assert old in lines
        lines = lines.replace(old, new)
    posted(machine("first"), 0, 10)
    done = subprocess.run(["bash", "-euc", lines], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "epoch: 1" in done.stdout
    assert embedded(tmp_path / "zq-now") == numbers(10)
    assert 0 < len(embedded(tmp_path / "zq-early")) < 6
