# SPDX-License-Identifier: Apache-2.0
"""Damage to the files of a closed embedded store: flipped bits, truncated and removed files."""

import gc
import os
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from zq.storage.ordered import layout
from zq.storage.rocksdb.store import Store


def flushed(path: Path) -> Path:
    """Move all data of a store to table files, one for each family with data, and return its path."""
    store = Store(path, layout.FAMILIES, "never", 0)
    for family in layout.FAMILIES:
        store.compact(family)
    store.close()
    return path


def table_of(path: Path, family: str) -> Path:
    """Return the largest table file of a family."""
    families = {name: Options(raw_mode=True) for name in Rdict.list_cf(str(path))}
    db = Rdict(str(path), Options(raw_mode=True), families, AccessType.read_only(False))
    told = db.get_column_family(family).property_value("rocksdb.sstables")
    db.close()
    del db
    gc.collect()
    files = [path / f"{file.stem}.sst" for file in path.glob("*.sst") if f" {int(file.stem)}:" in told]
    return max(files, key=lambda file: file.stat().st_size)


def flip(file: Path, at: float = 0.3, count: int = 8) -> None:
    """Flip bits at a fraction of the file's length; by default in a data block, if the file has several."""
    content = bytearray(file.read_bytes())
    begin = int(at * len(content))
    for place in range(begin, begin + count):
        content[place] ^= 0xFF
    file.write_bytes(content)


def cut(file: Path, at: float) -> None:
    """Truncate a file to a fraction of its length."""
    os.truncate(file, int(file.stat().st_size * at))
