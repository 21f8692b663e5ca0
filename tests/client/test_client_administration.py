# SPDX-License-Identifier: Apache-2.0
"""The administrator's methods of the Python client: pools, flavors and project limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.client_kinds import client_of
from tests.servers import ZqServer
from zq import errors
from zq.testing import server

CONFIG = """\
[DEFAULT]
admin_mode = true
pooling = true
[server]
trust_network = true
[pooling:catalog]
allowed_hosts = memory:, rocksdb:
"""


@pytest.fixture(scope="module")
def pooling() -> Iterator[ZqServer]:
    with ZqServer("memory:", config=CONFIG) as running:
        yield running


def as_admin(request: Any) -> Any:
    """Add the admin role, which a server without authentication trusts."""
    request.headers["X-Roles"] = "admin"
    return request


def test_pools_and_flavors_are_created_changed_listed_and_deleted(
    pooling: ZqServer, kind: str, project: str, tmp_path: Path
) -> None:
    with client_of(kind, pooling.url, project, auth=as_admin) as client:
        client.put_pool("fast", "memory:", 10, options={"a": 1})
        client.put_pool("slow", f"rocksdb://{tmp_path}/pool", 1)
        assert client.update_pool("fast", weight=20)["weight"] == 20
        assert [(each["name"], each["weight"]) for each in client.pools(page=1)] == [("fast", 20), ("slow", 1)]
        assert next(iter(client.pools(detailed=True)))["options"] == {"a": 1}
        with pytest.raises(errors.PoolConflict):
            client.put_pool("other", "memory:", 1)
        with pytest.raises(errors.FlavorRefused):
            client.put_flavor("gold", ["missing"])
        client.put_flavor("gold", ["fast"])
        assert client.update_flavor("gold", ["slow"])["pool_list"] == ["slow"]
        assert [(each["name"], each["pool_list"]) for each in client.flavors()] == [("gold", ["slow"])]
        with pytest.raises(errors.PoolInUse):
            client.delete_pool("slow")
        client.delete_flavor("gold")
        client.delete_pool("slow")
        client.delete_pool("fast")
        assert [*client.pools()] == [*client.flavors()] == []


def test_the_limits_of_a_project_are_set_and_removed(kind: str, project: str) -> None:
    with (
        server(auth_strategy="token") as guarded,
        client_of(kind, guarded.url, "root", token=guarded.token("root", roles=["admin"])) as client,
    ):
        assert client.project(project).limits == {}
        assert client.set_limits(project, {"queues": 5}).limits == {"queues": 5}
        assert [(each.project, each.limits) for each in client.projects()] == [(project, {"queues": 5})]
        assert client.set_limits(project, {}).limits == {}
        with pytest.raises(errors.Invalid, match="limits may contain"):
            client.set_limits(project, {"queue": 5})
