# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks of a store in an object store."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.object.conftest import Open
from zq import diagnosis
from zq.clock import local_time
from zq.diagnosis import Status
from zq.storage import diagnose
from zq.storage.object import doctor


def statuses(uri: str, **options: object) -> Mapping[str, Status]:
    opened = diagnose(uri, local_time, options)
    assert opened is not None
    with opened as checks:
        return {result.check: result.status for result in diagnosis.run(checks)}


def test_an_owner_that_is_silent_is_a_warning_until_it_releases_the_store(uri: str, machine: Open) -> None:
    """If there is no store yet, its owner is not checked. With a negative timeout, each owner is silent."""
    assert statuses(uri)["owner"] == "skip"
    storage = machine("first")
    assert statuses(uri)["owner"] == "ok"
    assert statuses(uri, owner_timeout=-1)["owner"] == "warn"
    storage.close()
    assert statuses(uri, owner_timeout=-1)["owner"] == "ok"


def test_a_clock_behind_the_clock_of_the_owner_is_found(
    uri: str, machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert statuses(uri)["store clock"] == "skip"
    machine("first")
    assert statuses(uri)["store clock"] == "ok"
    known = {**doctor.owner(uri)}
    for seconds, status in ((3, "warn"), (90, "fail")):
        monkeypatch.setattr(doctor, "owner", lambda _uri, ahead=seconds: known | {doctor.AGE: -ahead})
        assert statuses(uri)["store clock"] == status


def test_little_space_for_the_cache_is_a_warning_because_the_server_accepts_posts(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    for free, status in ((5 << 40, "ok"), (15 << 30, "warn"), (5 << 30, "warn")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(total=10 << 40, free=free))
        assert statuses(uri)["disk space"] == status
