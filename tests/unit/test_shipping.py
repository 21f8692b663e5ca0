# SPDX-License-Identifier: Apache-2.0
"""Shipping when the object store already has a newer object: only an identical record counts as stored."""

from collections.abc import Iterator

import pytest

from zq.errors import Deposed, Unavailable
from zq.storage.object.epochs import Proof
from zq.storage.object.objects import Objects
from zq.storage.object.shipping import Shipper


class Younger(Objects):
    """An object store that loses the reply of the first attempt and then reports a newer object."""

    def __init__(self, ours: bool) -> None:
        self._ours = ours
        self._there = b""
        self.puts = 0

    def put(self, name: str, value: bytes) -> bool:
        self.puts += 1
        if self.puts == 1:
            self._there = value if self._ours else b"another one's"
            raise Unavailable
        return False

    def get(self, name: str) -> bytes | None:
        return self._there

    def exists(self, name: str) -> bool:
        return False


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Younger:
    return Younger(request.param)


@pytest.fixture
def shipper(objects: Younger) -> Iterator[Shipper]:
    proof = Proof(objects, 1, 1e9, lambda: 0.0)
    proof.check_fence()
    made = Shipper(objects, proof, 0, patience=20, now=lambda: 0.0)
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("objects", [True], indirect=True)
def test_the_same_record_is_stored(shipper: Shipper, objects: Younger) -> None:
    """The first attempt had succeeded."""
    shipper.append([("default", b"key", b"value")], [])
    shipper.wait()
    assert (shipper.acknowledged, objects.puts) == (1, 2)
    assert shipper.uploads == {"stored": 1, "failed": 1, "refused": 0}


@pytest.mark.parametrize("objects", [False], indirect=True)
def test_another_record_is_not_acknowledged(shipper: Shipper) -> None:
    """Another writer must have taken over the store, so that no record is acknowledged any more."""
    shipper.append([("default", b"key", b"value")], [])
    with pytest.raises(Deposed):
        shipper.wait()
    assert shipper.acknowledged == 0
