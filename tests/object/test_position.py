# SPDX-License-Identifier: Apache-2.0
"""``fencing = position``: an owner learns from its own upload that it was deposed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from tests.object.conftest import Open
from tests.object.test_checkpoints import head, numbers, posted
from tests.object.test_clouds import answering
from tests.object.work import bodies, post
from tests.servers import wait_for
from tests.swift import Swift
from zq.errors import Deposed, StartRefused
from zq.storage import check, connect, restore
from zq.storage.object import entries
from zq.storage.object.epochs import Opening, Proof, log_name, read
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import WINDOW

pytestmark = pytest.mark.slow

BY_POSITION = {"fencing": "position"}


IN_S3 = pytest.mark.parametrize("uri", ["s3"], indirect=True)


def test_swift_is_refused(swift: Swift, tmp_path: Path) -> None:
    """Swift may report success to several writers of one name."""
    with pytest.raises(StartRefused, match="which Swift does not have"):
        connect(swift.uri(uuid4().hex), {"cache": str(tmp_path / "cache"), **BY_POSITION})


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize("begun", [404, 200])
def test_a_store_that_gives_a_name_to_several_is_refused(tmp_path: Path, begun: int) -> None:
    """The check runs at each start, also if the store began with the other fencing."""
    with answering(200, begun) as endpoint, pytest.raises(StartRefused, match="does not support conditional writes"):
        connect(
            f"s3://zq-stores/prefix?endpoint={endpoint}",
            {"cache": str(tmp_path / "cache"), "takeover": "now", **BY_POSITION},
        )


@IN_S3
def test_a_commit_does_not_look(machine: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Consecutive commits prove the ownership for each other and for reads."""
    looks, look = [], Proof.check_fence

    def noted(proof: Proof) -> None:
        looks.append(proof)
        look(proof)

    storage = machine("first", lease=60, **BY_POSITION)
    monkeypatch.setattr(Proof, "check_fence", noted)
    posted(storage, 0, 30)
    assert bodies(storage) == numbers(30)
    assert not looks


@IN_S3
def test_a_deposed_owner_learns_it_from_its_upload(machine: Open, objects: Objects) -> None:
    """The deposed owner acknowledges nothing more, and later owners have everything that it acknowledged before."""
    first = machine("first", lease=60, **BY_POSITION)
    posted(first, 0, 10)
    with ThreadPoolExecutor(1) as other:
        second = other.submit(machine, "second", lease=1, **BY_POSITION)
        wait_for(lambda: objects.exists("open/2"), 60, "the second one takes over")
        with pytest.raises(Deposed):
            post(first, "too late")
        with pytest.raises(Deposed):
            bodies(first)
        posted(second.result(), 10, 20)
    second.result().close()
    assert bodies(machine("third", **BY_POSITION)) == numbers(20)


@IN_S3
def test_an_old_record_behind_the_fence_is_void(machine: Open, objects: Objects, uri: str, tmp_path: Path) -> None:
    """The record was stored before the takeover, but the one before it never was.

    The names that records before it might have had are taken. Later readers of the log and a standby ignore the record.
    """
    first = machine("first", owner_timeout=3, **BY_POSITION)
    posted(first, 0, 5)
    last = wait_for(lambda: head(objects).acknowledged, 60, "the owner's word")
    while objects.exists(log_name(1, last + 1, True)):
        last += 1
    record = entries.decode(objects.get(log_name(1, last, True)) or b"", "the last record")
    lost, _ = entries.encode(1, last + 2, last, record.moment, record.checksum, record.batches)
    assert objects.put_new(log_name(1, last + 2, True), lost)
    second = machine("second", **BY_POSITION)
    opening = read(objects, "open/2", Opening)
    assert opening is not None
    assert opening.chain[-1].last == last + WINDOW
    assert all(objects.exists(log_name(2, place, True)) for place in range(last + 1, last + WINDOW + 1))
    posted(second, 5, 10)
    second.close()
    to = f"rocksdb://{tmp_path}/restored"
    assert restore(uri, to, None, last + 3) == (last, pytest.approx(record.moment / 1000)), "between two owners"
    report = check(uri)
    assert report is not None
    assert not report.contradictions
    assert bodies(machine("third", **BY_POSITION)) == numbers(10)


@IN_S3
def test_the_fencing_may_change(machine: Open) -> None:
    """Each owner may use another fencing, and all messages are kept."""
    for number, fencing in enumerate(("look", "position", "position", "look", "look", "position")):
        storage = machine(f"{number}", fencing=fencing, lease=1)
        assert bodies(storage) == numbers(5 * number)
        posted(storage, 5 * number, 5 * number + 5)
        if number % 2:  # otherwise the next one deposes it
            storage.close()
    assert bodies(machine("last")) == numbers(30)
