# SPDX-License-Identifier: Apache-2.0
"""One store of each layout ever released, from ``tests/data``: it is opened, or refused without a change."""

import hashlib
import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack, structs
from rocksdict import Options, Rdict

from tests.data import make_released
from tests.data.make import NOW
from tests.data.make_attributes import IDS, STORED
from tests.dictionary import Dictionary
from zq import __version__
from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.errors import StartRefused
from zq.model import ClaimRequest, Lease, QueueRef, levels
from zq.model.attributes import NO_ATTRIBUTES, decode_attributes
from zq.model.expiry import Expiry
from zq.model.levels import StoreLevel
from zq.storage import check, salvage
from zq.storage import object as object_store
from zq.storage.object import offline
from zq.storage.object.epochs import Opening, read, write
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store

DATA = Path(__file__).parent.parent / "data"
STORES = {int(file.name.removesuffix(".tar.xz").rpartition("-")[2]): file for file in DATA.glob("layout-*.tar.xz")}
TODAY = int(layout.VERSION)


def unpacked(number: int, tmp_path: Path) -> Path:
    """Return a copy of the store with this layout."""
    return extracted(STORES[number], tmp_path)


def extracted(file: Path, tmp_path: Path) -> Path:
    """Return a copy of the store in an archive."""
    path = tmp_path / "store"
    with tarfile.open(file) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no extraction filters.
        archive.extractall(path)
    return path


def digests(path: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}


def open_for_writing(path: Path) -> None:
    connect(f"rocksdb://{path}", sync="never", max_clock_jump=0).close()


def check_it(path: Path) -> None:
    check(f"rocksdb://{path}")


def salvage_it(path: Path) -> None:
    salvage(f"rocksdb://{path}", str(path.with_name("new")))


def ship_it(path: Path) -> None:
    object_store.ship(f"rocksdb://{path}", "", str)


def test_there_is_a_store_of_each_layout() -> None:
    """A new layout needs a store too, which ``tests/data/make.py`` creates."""
    assert sorted(STORES) == list(range(1, TODAY + 1))


@pytest.mark.parametrize("use", [open_for_writing, check_it, salvage_it, ship_it])
@pytest.mark.parametrize("number", range(1, TODAY))
def test_a_store_of_a_former_layout_is_refused_unchanged(
    number: int, use: Callable[[Path], None], tmp_path: Path, bucket: Dictionary
) -> None:
    """The version that wrote the store can still open it, because no file has changed."""
    path = unpacked(number, tmp_path)
    before = digests(path)
    with pytest.raises(StartRefused, match=f"has layout {number}, but this version of zq requires {TODAY}"):
        use(path)
    assert digests(path) == before
    assert [file.name for file in tmp_path.iterdir()] == ["store"], "nothing else is left behind"
    assert bucket._values == {}


def test_no_level_belongs_to_a_later_version() -> None:
    """Error messages name the versions of levels, so that users install these versions."""
    numbers = [tuple(map(int, version.split("."))) for version in (*levels.VERSIONS, __version__)]
    assert numbers == sorted(set(numbers))


def raise_level(path: Path) -> None:
    with closing(connect(f"rocksdb://{path}", sync="never", max_clock_jump=0)) as storage:
        assert storage.replace_level(None, levels.encode(StoreLevel(2, 2, "0.2.0")))


@pytest.mark.parametrize("use", [open_for_writing, check_it, salvage_it, ship_it])
def test_a_store_of_a_higher_level_is_refused_unchanged(
    use: Callable[[Path], None], tmp_path: Path, bucket: Dictionary
) -> None:
    path = unpacked(TODAY, tmp_path)
    raise_level(path)
    before = digests(path)
    with pytest.raises(StartRefused, match=r"upgraded to level 2 with zq 0\.2\.0"):
        use(path)
    assert digests(path) == before
    assert bucket._values == {}


def test_a_salvaged_store_keeps_its_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, an earlier version would open it."""
    path = unpacked(TODAY, tmp_path)
    raise_level(path)
    monkeypatch.setattr(levels, "VERSIONS", ("0.1", "0.2"))
    salvage_it(path)
    with closing(connect(f"rocksdb://{path.with_name('new')}", sync="never", max_clock_jump=0)) as storage:
        assert levels.check(storage.read_level()).level == 2


def test_a_store_of_todays_layout_hands_out_its_messages(tmp_path: Path) -> None:
    """Version 0.1.0 wrote the store."""
    storage = connect(f"rocksdb://{unpacked(TODAY, tmp_path)}", sync="never", max_clock_jump=0)
    try:
        for queue in ("jobs", "other"):
            request = ClaimRequest(Lease("a" * 24, 60, 60), 20)
            claim = storage.claims.create(QueueRef("acme", queue), request, NOW + 1)
            bodies = [json.loads(message.body) for message in claim.claim.messages]
            assert bodies == [*(f"{number}" for number in range(9)), "x" * 2000]
    finally:
        storage.close()


def test_the_store_of_the_released_version_has_all_its_contents(tmp_path: Path) -> None:
    """The store has every kind of content, and is consistent after it has been used."""
    described = make_released.read_descriptions()["rocksdb"]
    uri = f"rocksdb://{extracted(DATA / 'released.tar.xz', tmp_path)}"
    kept = Expiry(delete_on_read=False, compaction_filter=False)
    with closing(connect(uri, kept, sync="never", max_clock_jump=0)) as storage:
        scene = Scene(storage, ManualClock(described["now"]), make_released.JOBS)
        assert list(make_released.find_differences(described, make_released.describe(scene))) == []
        assert scene.fence("job").epoch == 3
        posted = scene.post(1)
        assert posted[0] in scene.claimable()
    report = check(uri)
    assert report is not None
    assert (report.contradictions, report.damage) == (0, []), report.examples


def test_stored_arrays_only_grow_at_their_end() -> None:
    """Servers of the released version and of this one can read each other's arrays."""
    current = make_released.find_arrays()
    for name, released in json.loads((DATA / "released.json").read_text()).items():
        assert name in current, f"{name} is missing. If it was renamed, rename it in released.json."
        fields = structs.fields(current[name])
        assert [field.name for field in fields[: len(released)]] == released, name
        assert not [field.name for field in fields[len(released) :] if field.required], name


def test_attributes_that_earlier_code_stored_are_read_as_they_were(tmp_path: Path) -> None:
    """The messages are claimed, dead-lettered, deleted and ready."""
    path, jobs = extracted(DATA / "attributes.tar.xz", tmp_path), QueueRef("acme", "jobs")
    storage = connect(f"rocksdb://{path}", sync="never", max_clock_jump=0)
    with closing(storage):
        [deleted] = storage.history.get(jobs, [IDS[2]], NOW)
        found = storage.messages.get(jobs, IDS, NOW) + storage.messages.get(QueueRef("acme", "dead"), IDS, NOW)
    attributes = {message.id: decode_attributes(message.attributes) for message in [*found, deleted.message]}
    assert attributes == dict.fromkeys(IDS[:4], decode_attributes(STORED)) | {IDS[4]: NO_ATTRIBUTES}
    assert {message.id: (message.claim_count, message.reason) for message in found} == {
        IDS[0]: (1, ""),
        IDS[1]: (0, "no use"),
        IDS[3]: (0, ""),
        IDS[4]: (0, ""),
    }


@pytest.mark.parametrize("gone", ["lines", "due"])
def test_a_refused_start_makes_no_family(tmp_path: Path, gone: str) -> None:
    """RocksDB would create the missing column families, and older versions could not open the store any more."""
    path = tmp_path / "store"
    store = Store(path, [name for name in layout.FAMILIES if name != gone], "never", 0)
    store.write([("default", b"version", b"4")])
    store.close()
    before = digests(path)
    with pytest.raises(StartRefused, match="has layout 4"):
        open_for_writing(path)
    assert gone not in Rdict.list_cf(str(path))
    assert digests(path) == before


def test_a_store_of_a_later_layout_is_refused_unchanged(tmp_path: Path) -> None:
    """Column families that this version does not know do not change the error message."""
    path = tmp_path / "store"
    store = Store(path, [*layout.FAMILIES, "novelties"], "never", 0)
    store.write([("default", b"version", b"6")])
    store.close()
    before = digests(path)
    with pytest.raises(StartRefused, match=f"has layout 6, but this version of zq requires {TODAY}"):
        open_for_writing(path)
    assert digests(path) == before


def test_a_database_of_another_program_is_refused_unchanged(tmp_path: Path) -> None:
    """The database has no layout number, and column families that no zq store has."""
    path = tmp_path / "store"
    database = Rdict(str(path), Options(raw_mode=True))
    database.create_column_family("users", Options(raw_mode=True))
    database[b"key"] = b"value"
    database.close()
    before = digests(path)
    with pytest.raises(StartRefused, match="another program, with the column families users"):
        open_for_writing(path)
    assert digests(path) == before


def test_a_first_start_that_was_interrupted_is_a_new_store(tmp_path: Path) -> None:
    """The interrupted start created some column families, but did not write the layout number."""
    path = tmp_path / "store"
    Store(path, layout.FAMILIES[:5], "never", 0).close()
    open_for_writing(path)
    open_for_writing(path)


def test_a_directory_without_its_list_of_files_is_refused_unchanged(tmp_path: Path) -> None:
    """RocksDB would create a new database in the directory and remove the files of the former one."""
    path = unpacked(TODAY, tmp_path)
    (path / "CURRENT").unlink()
    before = digests(path)
    with pytest.raises(StartRefused, match=r"its file CURRENT is missing.*zq-server salvage"):
        open_for_writing(path)
    assert digests(path) == before


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Dictionary:
    """Return an object store in memory."""
    objects = Dictionary()
    monkeypatch.setattr("zq.storage.object.objects_of", lambda uri: objects)
    return objects


def own(tmp_path: Path, name: str, **options: Any) -> OrderedStorage:
    """Open the store in the bucket from a machine with this name."""
    return object_store.connect("s3://bucket/x", cache=str(tmp_path / name), lease=0.2, max_clock_jump=0, **options)


@pytest.mark.parametrize("takeover", ["wait", "refuse", "now"])
def test_an_object_store_of_another_layout_is_refused_unchanged(
    bucket: Dictionary, tmp_path: Path, takeover: str
) -> None:
    """The owner of a later version is not deposed, whether it runs or has stopped, and the store is not restored."""
    own(tmp_path, "first").close()
    opening = read(bucket, "open/1", Opening)
    assert opening is not None
    assert opening.layout == layout.VERSION.decode()
    write(bucket, "open/1", structs.replace(opening, layout="6"))
    before = dict(bucket._values)
    with pytest.raises(StartRefused, match=f"has layout 6, but this version of zq requires {TODAY}"):
        own(tmp_path, "second", takeover=takeover)
    with pytest.raises(StartRefused, match=f"has layout 6, but this version of zq requires {TODAY}"):
        object_store.restore("s3://bucket/x", f"rocksdb://{tmp_path}/restored")
    assert bucket._values == before
    assert not (tmp_path / "restored").exists()


def test_an_object_store_without_a_number_is_opened(bucket: Dictionary, tmp_path: Path) -> None:
    """Version 0.1.0 does not write the layout number, and ignores the one that this version writes."""
    own(tmp_path, "first").close()
    opening = msgpack.decode(bucket._values["open/1"])
    assert opening.pop("layout") == layout.VERSION.decode()
    bucket._values["open/1"] = msgpack.encode(opening)
    own(tmp_path, "second").close()


def test_an_object_store_is_restored_as_the_layout_that_it_has(bucket: Dictionary, tmp_path: Path) -> None:
    """The checkpoint's own layout decides, not the one that the owner wrote."""
    path = unpacked(4, tmp_path)
    offline.ship(path, bucket, offline.StoreFormat(str(TODAY), sorted(Rdict.list_cf(str(path))), lambda _: None), 0)
    with pytest.raises(StartRefused, match="has layout 4"):
        object_store.restore("s3://bucket/x", f"rocksdb://{tmp_path}/restored")
    assert not (tmp_path / "restored").exists()
