# SPDX-License-Identifier: Apache-2.0
"""``zq jobs``: the stages, fences and commits of batch jobs, and dropping a stage."""

import re
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Zq
from zq.client import Client


@pytest.fixture
def client(zq: Zq) -> Iterator[Client]:
    with Client(zq.env["ZQ_URL"], zq.env["ZQ_PROJECT"]) as opened:
        yield opened


def test_what_jobs_have_is_listed(zq: Zq, client: Client) -> None:
    """JSON lines have all members of the API; tables have durations."""
    client.queue("out").stage("night", ["one", "two"])
    client.fence("etl")
    client.commit("etl", 17)
    [stage], [fence], [commit] = zq("jobs", "stages"), zq("jobs", "fences"), zq("jobs", "commits")
    assert (stage["name"], stage["messages"], stage["bytes"]) == ("night", 2, 10)
    assert 3500 < stage["dropped_in"] <= 3600
    assert (fence["name"], fence["epoch"]) == ("etl", 1)
    assert (commit["producer"], commit["batch"], commit["published"], commit["open"]) == ("etl", 17, 0, False)
    table = zq.run("jobs", "stages", "--table").stdout
    assert "dropped in" in table
    assert re.search(r" (59m .*s|1h)$", table, re.MULTILINE)


def test_stages_are_dropped(zq: Zq, client: Client) -> None:
    """Dropping a stage that does not exist is not an error."""
    for name in ("a", "b", "c"):
        client.queue("out").stage(name, [1])
    assert zq("jobs", "drop", "a", "c", "none") == [{"name": name, "dropped": True} for name in ("a", "c", "none")]
    assert [stage["name"] for stage in zq("jobs", "stages")] == ["b"]
