# SPDX-License-Identifier: Apache-2.0
"""The level of a store: the driver replaces it in one step, and checks it at the start (operations, section 8)."""

from contextlib import closing

import pytest

from zq.conformance.builders import OpenStore
from zq.errors import StartRefused
from zq.model import levels
from zq.model.levels import StoreLevel
from zq.storage.api import Storage
from zq.storage.capabilities import LevelledStorage

pytestmark = pytest.mark.fresh_store

SECOND = levels.encode(StoreLevel(2, 2, "0.2.0"))
# A level that an interrupted upgrade has announced.
ANNOUNCED = levels.encode(StoreLevel(1, 2, "0.2.0"))


def support(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """Let this version of zq support as many levels as there are versions."""
    monkeypatch.setattr(levels, "VERSIONS", versions)


def levelled(storage: object) -> LevelledStorage:
    if not isinstance(storage, LevelledStorage):
        pytest.skip("The driver has no levels.")
    return storage


def test_a_new_store_without_a_record_has_level_1(storage: Storage) -> None:
    store = levelled(storage)
    assert store.read_level() is None
    assert levels.check(store.read_level()) == StoreLevel()


@pytest.mark.durable
def test_a_new_store_has_the_highest_level_of_its_version(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    support(monkeypatch, "0.1", "0.2", "0.3")
    for _ in range(2):
        with closing(open_store()) as storage:
            assert levels.check(levelled(storage).read_level()).level == 3


def test_replace_level_changes_only_the_expected_record(storage: Storage) -> None:
    """Two commands that finish an upgrade cannot undo each other's change."""
    store = levelled(storage)
    assert not store.replace_level(SECOND, ANNOUNCED)
    assert store.read_level() is None
    for _ in range(2):  # after a lost answer, the client of the driver repeats the command
        assert store.replace_level(None, ANNOUNCED)
    assert not store.replace_level(None, SECOND)
    assert store.read_level() == ANNOUNCED
    assert store.replace_level(ANNOUNCED, SECOND)
    assert store.read_level() == SECOND


@pytest.mark.durable
@pytest.mark.parametrize("record", [SECOND, ANNOUNCED])
def test_a_store_of_a_higher_level_is_refused_unchanged(
    open_store: OpenStore, record: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the version to use. This version opens the store again."""
    with closing(open_store()) as storage:
        assert levelled(storage).replace_level(None, record)
    with pytest.raises(StartRefused, match=r"upgraded to level 2 with zq 0\.2\.0.*Use zq 0\.2\.0 or newer"):
        open_store()
    support(monkeypatch, "0.1", "0.2")
    with closing(open_store()) as storage:
        assert levelled(storage).read_level() == record


@pytest.mark.durable
def test_a_store_two_levels_behind_is_refused_unchanged(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the version in between."""
    with closing(open_store()) as storage:
        levelled(storage)
    support(monkeypatch, "0.1", "0.2", "0.3")
    with pytest.raises(StartRefused, match=r"has level 1.*requires level 2\. Start zq 0\.2 .* and then start zq 0\.3"):
        open_store()
    support(monkeypatch, "0.1", "0.2")
    with closing(open_store()) as storage:
        assert levelled(storage).read_level() is None
