# SPDX-License-Identifier: Apache-2.0
"""The vendored modules: byte-for-byte copies from npm, with correct metadata."""

import re
from hashlib import sha256

from zq.console.page import DOCUMENT, IMPORTS, ROOT

ROW = re.compile(
    r"^\| `([\w.]+)` \| (\w+) \| ([\d.]+) \| `([\w./]+)` \| ([\w.-]+) \| `([0-9a-f]{64})` \|$", re.MULTILINE
)
FOLDER = ROOT / "vendor"


def test_each_vendored_file_has_the_hash_that_is_written() -> None:
    """The folder contains no other files."""
    rows = {row[0]: row for row in ROW.findall((FOLDER / "VENDOR.md").read_text())}
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in FOLDER.iterdir() if path.suffix != ".md"}
    assert found == {name: row[5] for name, row in rows.items()}
    loaded = re.findall(r'src="{{tree}}/(vendor/[^"]+)"', (ROOT / DOCUMENT).read_text())
    assert {f"vendor/{name}" for name in rows} == {*IMPORTS.values(), *loaded}
    assert {row[4] for row in rows.values()} == {"MIT", "Apache-2.0"}
