# SPDX-License-Identifier: Apache-2.0
"""Reading of a damaged store: entries of damaged blocks are missing, and the store is not changed."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.damaged import cut, flip, table_of
from zq.errors import StoreDamaged
from zq.storage.rocksdb.store import Store
from zq.storage.rocksdb.survey import Survey

FAMILIES = ("default", "rows")
ROWS = 3000
TOP = b"\xff" * 64


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store of 3,000 rows of 100 bytes in one table file."""
    path = tmp_path / "store"
    store = Store(path, FAMILIES, "never", 0)
    store.write([("rows", key(number), os.urandom(100)) for number in range(ROWS)])
    store.compact("rows")
    store.close()
    return path


@contextmanager
def surveyed(path: Path) -> Iterator[Survey]:
    survey = Survey(path)
    try:
        yield survey
    finally:
        survey.close()


def read(survey: Survey) -> set[int]:
    return {int.from_bytes(found) for found, _ in survey.scan("rows", b"", TOP)}


def contents(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def test_exactly_the_rows_of_the_damaged_blocks_are_missing(path: Path) -> None:
    """The scan finds every row that a get finds, also between two damaged blocks.

    Each gap has its range, its file and an estimate of its number of entries.
    """
    file = table_of(path, "rows")
    flip(file, 0.3)
    flip(file, 0.32)
    before = contents(path)
    with surveyed(path) as survey:
        found, gaps = read(survey), survey.gaps()
        lost = set()
        for number in range(ROWS):
            try:
                assert survey.get("rows", key(number)) is not None
            except StoreDamaged:
                lost.add(number)
    assert found == set(range(ROWS)) - lost
    assert 2 * 20 <= len(lost) <= 2 * 60, "two blocks of 4 KB, of about 38 rows each"
    assert len(gaps) == 2
    assert {number for number in range(ROWS) if any(gap.lower <= key(number) < gap.upper for gap in gaps)} == lost
    assert all(gap.file == file.name and gap.family == "rows" for gap in gaps)
    assert len(lost) / 2 <= sum(gap.entries for gap in gaps) <= len(lost) * 2
    assert contents(path) == before


@pytest.mark.parametrize(
    "harm",
    [lambda file: cut(file, 0.5), lambda file: flip(file, 0.999), Path.unlink],
    ids=["cut short", "footer", "gone"],
)
def test_a_file_that_cannot_be_opened_is_one_gap(path: Path, harm: Callable[[Path], None]) -> None:
    """Rows in other files are read, here one above the gap."""
    store = Store(path, FAMILIES, "never", 0)
    store.write([("rows", key(ROWS + 5), b"above")])
    store.close()
    file = table_of(path, "rows")
    harm(file)
    with surveyed(path) as survey:
        assert read(survey) == {ROWS + 5}
        (gap,) = survey.gaps()
        assert survey.get("rows", key(ROWS + 5)) == b"above"
        with pytest.raises(StoreDamaged):
            survey.get("rows", key(7))
    assert gap.file == file.name
    assert gap.lower <= key(0)
    assert gap.upper > key(ROWS - 1)


def test_a_newer_file_is_read_where_an_older_one_is_damaged(path: Path) -> None:
    """A get finds a row that was written again after the damaged block."""
    store = Store(path, FAMILIES, "never", 0)
    store.write([("rows", key(number), b"new") for number in range(0, ROWS, 2)])
    store._views["rows"].flush()
    store.close()
    flip(table_of(path, "rows"))
    with surveyed(path) as survey:
        read(survey)
        (gap,) = survey.gaps()
        inside = [number for number in range(ROWS) if gap.lower <= key(number) < gap.upper]
        assert len(inside) >= 20
        assert all(survey.get("rows", key(number)) == b"new" for number in inside if number % 2 == 0)


@pytest.mark.parametrize("part", [0.5, None], ids=["in the middle", "torn"])
def test_a_damaged_log_is_reported_and_read_up_to_its_damage(path: Path, part: float | None) -> None:
    """The log ends within a record, as after a power failure, or is damaged in the middle."""
    store = Store(path, FAMILIES, "never", 0)
    for number in range(ROWS, ROWS + 100):
        store.write([("rows", key(number), os.urandom(100))])
    killed = Path(shutil.copytree(path, path.with_name("killed")))
    store.close()
    log = max(killed.glob("*.log"), key=lambda file: file.stat().st_size)
    if part is None:
        os.truncate(log, log.stat().st_size - 20)
    else:
        flip(log, part)
    with surveyed(killed) as survey:
        assert set(range(ROWS + 40)) <= read(survey) < set(range(ROWS + 100))
        assert len(survey.notes) == 1
        assert "log" in survey.notes[0]
