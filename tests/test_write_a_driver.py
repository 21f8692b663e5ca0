# SPDX-License-Identifier: Apache-2.0
"""The steps of ``api-ref/write-a-driver.md``, followed outside of this repository, up to a store that passes."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests import first_driver
from tests.blocks import ROOT, blocks, only
from tests.reader import SHELL, succeed
from tests.sqlite_store import connect
from zq.storage import api, capabilities
from zq.storage.ordered import store

PAGE = "api-ref/write-a-driver.md"


# Test files of the suite that run here: every operation of the engine uses the same six methods of the store.
SOME = "test_queues or test_claims or test_topics or test_commits"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_leads_to_a_store_that_passes(tmp_path: Path) -> None:
    """The page's ``conftest.py`` and command, in an otherwise empty folder, run files of the suite on SQLite."""
    (tmp_path / "conftest.py").write_text(only(PAGE, "python"))
    told = succeed([*SHELL, f"{only(PAGE, 'sh').strip()} -k '{SOME}' -p no:cacheprovider"], tmp_path, within=580)
    [passed] = re.findall(r"(\d+) passed", told)
    assert int(passed) > 100
    assert "skipped" not in told


def test_the_files_of_the_page_are_there() -> None:
    """The modules and tests that the page names exist, and the example is as short as stated."""
    text = (ROOT / PAGE).read_text()
    files = re.findall(r"`((?:zq|tests)/[\w/]+\.py)`", text)
    assert [file for file in files if not (ROOT / file).is_file()] == []
    tests = set(re.findall(r"`(test_\w+)`", text))
    assert [name for name in tests if not (ROOT / "zq" / "conformance" / f"{name}.py").is_file()] == []
    assert len((ROOT / "tests" / "sqlite_store.py").read_text().splitlines()) <= 150


def test_the_page_opens_a_store_as_the_example_does() -> None:
    """The page's line of Python is in the example."""
    [line] = [block.text.strip() for block in blocks(ROOT / PAGE) if block.language == "text"]
    assert line in (ROOT / "tests" / "sqlite_store.py").read_text()


def test_the_entry_point_of_the_page_names_a_function() -> None:
    """The entry point is in the group in which zq searches for drivers."""
    told = ConfigParser()
    told.read_string(only(PAGE, "ini"))
    scheme, _, function = told["options.entry_points"]["zq.storage"].strip().partition(" = ")
    assert (scheme, function.rpartition(":")[2]) == ("sqlite", connect.__name__)


CORE = [api.QueueController, api.MessageController, api.ClaimController, api.DocumentController]
OPTIONAL = [capabilities.HistoryController, capabilities.TransactionController, capabilities.TopicController]


def methods(kind: type) -> set[str]:
    return {name for name, member in vars(kind).items() if callable(member) and not name.startswith("_")}


def test_the_page_names_the_methods_that_a_first_driver_needs() -> None:
    """The table has the core methods without inherited ones, and the page has their number and the total."""
    text = (ROOT / PAGE).read_text()
    table = dict(re.findall(r"^\| `(storage(?:\.\w+)?)` \| (.*) \|$", text, re.M))
    told = {name: set(re.findall(r"`(\w+)`", row)) for name, row in table.items()}
    names = ["storage.queues", "storage.messages", "storage.claims", "storage.documents"]
    needed = {name: methods(kind) for name, kind in zip(names, CORE, strict=True)}
    needed["storage.queues"] -= {"count"}
    needed["storage.messages"] -= {"browse"}
    needed["storage.claims"] -= {"list"}
    needed["storage"] = methods(api.Storage) - methods(api.Defaults)
    assert told == needed
    total = sum(len(methods(kind)) for kind in (*CORE, *OPTIONAL, api.Storage))
    assert f"A driver has {total} methods; a first version needs {sum(map(len, needed.values()))}." in text


BOUNDED = """import pytest
from zq.storage.memory import MemoryStore
from zq.storage.ordered import store as bounds
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.ordered.store import Housekeeping


class BoundedStore(MemoryStore):
    measures = Housekeeping.measures

    def write(self, writes, gone=()):
        assert len(writes) + len(gone) <= bounds.MAX_BATCH_WRITES
        assert max((len(key) for _, key, _ in writes), default=0) <= bounds.MAX_KEY_BYTES
        assert max((len(value or b"") for _, _, value in writes), default=0) <= bounds.MAX_VALUE_BYTES
        assert sum(len(key) + len(value or b"") for _, key, value in writes) <= bounds.MAX_BATCH_BYTES
        super().write(writes, gone)


def connect():
    store = BoundedStore()
    return OrderedStorage(lambda: store, None, store)


@pytest.fixture
def open_store():
    return connect
"""


@pytest.mark.slow
def test_a_store_with_the_stated_bounds_and_no_housekeeping_passes(tmp_path: Path) -> None:
    """The suite writes nothing that exceeds the bounds of ``Store``, and requires no method of ``Housekeeping``."""
    (tmp_path / "conftest.py").write_text(BOUNDED)
    command = "pytest --pyargs zq.conformance -m 'not shared and not durable' -p no:cacheprovider"
    [passed] = re.findall(r"(\d+) passed", succeed([*SHELL, command], tmp_path, within=300))
    assert int(passed) > 800


@pytest.mark.parametrize(
    "bound", ["keys of {MAX_KEY_BYTES:,} bytes", "of {MAX_BATCH_WRITES:,} writes"], ids=["key", "batch"]
)
def test_the_page_states_the_bounds_of_a_store(bound: str) -> None:
    """The page has the values of the code."""
    assert bound.format(**vars(store)) in (ROOT / PAGE).read_text()


FIRST = """import pytest
from tests.first_driver import FirstStorage


@pytest.fixture
def open_store():
    return FirstStorage
"""


@pytest.mark.slow
def test_the_suite_skips_what_a_first_driver_does_not_have(tmp_path: Path) -> None:
    """Tests of queues and claims pass; tests of history, transactions and topics are skipped with a reason."""
    assert issubclass(first_driver.FirstStorage, api.Defaults)
    (tmp_path / "conftest.py").write_text(FIRST)
    command = "pytest --pyargs zq.conformance -m 'not shared and not durable' -p no:cacheprovider -rs"
    some = "test_deletes or test_history or test_topics or test_commits or test_depths"
    told = succeed([*SHELL, f"{command} -k '{some}'"], tmp_path, within=300)
    [passed], [skipped] = re.findall(r"(\d+) passed", told), re.findall(r"(\d+) skipped", told)
    assert int(passed) > 20
    assert int(skipped) > 40
    for reason in ("not support history", "not support transactions", "not support topics", "inherits depths"):
        assert reason in told
