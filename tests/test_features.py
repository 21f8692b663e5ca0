# SPDX-License-Identifier: Apache-2.0
"""Optional features: without a feature's folder and its lines in ``zq.serving``, the rest of zq works."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.servers import ZqServer

ROOT = Path(__file__).parent.parent
# Paths of each feature, which answer 404 without its folder.
FEATURES = {
    "administration": ["/v2/admin/projects", "/v2/admin/project", "/v2/admin/rekey"],
    "console": ["/console", "/console/"],
    "figures": ["/v2/figures", "/v2/servers"],
    "pools": ["/v2/pools", "/v2/pools/p", "/v2/flavors", "/v2/flavors/f"],
    "sqs": ["/v2/admin/sqs-keys", "/000000000000/jobs?Action=ReceiveMessage"],
    "subscriptions": [
        "/v2/queues/jobs/subscriptions",
        "/v2/topics/news/subscriptions/a/confirm",
        "/v2/queues/jobs/subscriptions/a/deliveries",
    ],
    "tracing": [],
    "websocket": ["/v2/ws"],
}
# Paths that accept only WebSocket handshakes.
SOCKETS = ["/v2/ws"]
# Options of a server with every feature.
EVERYTHING = {
    **{"OS_DEFAULT__ADMIN_MODE": "true", "OS_DEFAULT__POOLING": "true", "OS_SERVER__TRUST_NETWORK": "true"},
    **{"OS_SQS__ENABLED": "true", "OS_SQS__AUTH": "none", "OS_WEBSOCKET__ENABLED": "true"},
    "OS_TRACING__ENABLED": "true",
}
# Modules of the server that list features.
LISTS = ["features.py", "sections.py"]
# A program that posts, claims and deletes a message over HTTP in the changed source tree.
CORE = """
from zq.testing import server

with server() as served, served.client() as client:
    queue = client.queue("jobs")
    queue.post("x")
    claim = queue.claim(1)
    assert [message.body for message in claim.messages] == ["x"]
    queue.settle(claim.id, delete=[claim.messages[0].id])
    assert queue.stats().total == 0
"""


def without_lines_of(name: str, source: str) -> str:
    """Delete the imports, assignments and list items that name a feature."""
    tree, named, lines = ast.parse(source), re.compile(rf"\b{name}", re.IGNORECASE), source.splitlines(keepends=True)
    kinds = ast.Import | ast.ImportFrom | ast.Assign | ast.If
    removable: list[ast.stmt | ast.expr] = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    removable += [item for node in ast.walk(tree) if isinstance(node, ast.List) for item in node.elts]
    removable += [
        node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and named.match(ast.unparse(node.target))
    ]
    for node in removable:
        if named.search(ast.unparse(node)):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (1 + (node.end_lineno or 0) - node.lineno)
    return "".join(lines)


@pytest.fixture(params=FEATURES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def without(name: str, tmp_path: Path) -> Path:
    """Copy the sources without one feature."""
    shutil.copytree(ROOT / "zq", tmp_path / "zq", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "zq" / name)
    for module in LISTS:
        file = tmp_path / "zq" / "serving" / module
        file.write_text(without_lines_of(name, file.read_text()))
    return tmp_path


def test_the_core_works_without_the_folder_of_a_feature(without: Path) -> None:
    """Nothing else imports the feature, and a message can be posted, claimed and deleted."""
    environment = {**os.environ, "PYTHONPATH": str(without), "PYTHONDONTWRITEBYTECODE": "1"}
    for command in (["-c", CORE], ["-m", "zq.serving.features"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=without, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_a_server_starts_without_the_folder_of_a_feature(name: str, without: Path) -> None:
    """The server answers, and the feature's paths exist only with its folder."""
    headers = {"Client-ID": str(uuid4()), "X-Project-ID": "acme", "X-Roles": "admin"}
    for sources, is_there in ((ROOT, True), (without, False)):
        environment = {**EVERYTHING, "PYTHONPATH": str(sources), "PYTHONSAFEPATH": "1"}
        with ZqServer("memory:", engine="granian", env=environment) as served:
            assert httpx.get(f"{served.url}/v2/queues", headers=headers).status_code == 200
            for path in FEATURES[name]:
                answer = httpx.get(served.url + path, headers=headers)
                found = answer.status_code != 404 or "X-Zq-Error" in answer.headers
                assert found is (is_there and path not in SOCKETS), path
