# SPDX-License-Identifier: Apache-2.0
"""Policy, quotas and audit log of a server, loaded at start and at SIGHUP, on both engines (tenancy 4, 6, 9)."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Answer, ZqServer, ask, wait_for

pytestmark = pytest.mark.one_store

SECRET = "0123456789abcdef0123456789abcdef"
WITHIN = 60
QUEUE = "/v2/queues/jobs"


class Deployment:
    """A server behind an authenticating proxy, and the files that its operator writes."""

    def __init__(self, folder: Path, engine: str, store: str = "memory:") -> None:
        self.policy, self.audit, self._file = folder / "policy.yaml", folder / "audit.log", folder / "zq.conf"
        self._secrets = folder / "secrets"
        self._secrets.write_text(SECRET + "\n")
        self._secrets.chmod(0o600)
        self.policy.write_text('"queues:create": "role:operator"\n')
        self.write(queues=1, requests=500)
        self.server = ZqServer(store, "--config", str(self._file), engine=engine)

    def write(self, workers: int = 1, **quota: int) -> None:
        self._file.write_text(
            "\n".join(
                [
                    *("[server]", f"workers = {workers}"),
                    *("[DEFAULT]", "auth_strategy = proxy", "[auth]", f"proxy_secret_file = {self._secrets}"),
                    *("[oslo_policy]", f"policy_file = {self.policy}", "[log]", f"audit = {self.audit}"),
                    *("[quota]", *(f"{name} = {value}" for name, value in quota.items())),
                ]
            )
        )

    def ask(self, method: str, path: str, document: Any = None, roles: str = "member", agent: str = "test") -> Answer:
        headers = {"X-ZQ-Proxy-Secret": SECRET, "X-Roles": roles, "User-Agent": agent}
        return ask(self.server.url, method, path, document, headers=headers)

    def hang_up(self) -> None:
        os.kill(self.server.pid, signal.SIGHUP)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()]


@pytest.fixture(params=["gunicorn", "granian"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path, request.param)
    yield made
    made.server.close()


def is_allowed(deployment: Deployment, roles: str, name: str) -> Callable[[], bool]:
    return lambda: deployment.ask("PUT", f"/v2/queues/{name}", {}, roles).status in (201, 204)


def test_policy_quotas_and_audit_of_a_server(deployment: Deployment) -> None:
    """The files apply at start and at HUP; an invalid policy changes nothing at HUP."""
    deployment.server.start()
    assert deployment.ask("PUT", QUEUE, {}).status == 403
    assert deployment.ask("PUT", QUEUE, {}, "operator").status == 201
    refused = deployment.ask("PUT", "/v2/queues/more", {}, "operator")
    assert (refused.status, refused.document["title"]) == (403, "Quota exceeded")
    assert [line["why"] for line in deployment.lines()] == [
        "This credential does not allow queues:create on queue jobs.",
        "The project may have at most 1 queues.",
    ]

    deployment.policy.write_text('"queues:create": "role:nobody"\n"queues:gat": "@"\n')
    deployment.write(queues=2, requests=500)
    deployment.hang_up()
    wait_for(lambda: "The previous policy stays in use" in deployment.server.stderr, WITHIN, "the file was refused")
    wait_for(is_allowed(deployment, "operator", "more"), WITHIN, "the new quota counts, the old policy too")

    deployment.policy.write_text('"queues:create": "role:member"\n')
    deployment.hang_up()
    wait_for(is_allowed(deployment, "member", "more"), WITHIN, "the new policy counts")

    def told() -> list[tuple[str, str]]:
        return [(line["object"], line["outcome"]) for line in deployment.lines() if line["method"] == "HUP"]

    wait_for(lambda: len(told()) >= 2, WITHIN, "the audit log tells of both")
    assert told() == [("policy", "refused"), ("policy", "done")]

    deployment.write(requests=1)
    deployment.hang_up()
    wait_for(lambda: deployment.ask("GET", "/v2/queues").status == 429, WITHIN, "the new rate counts")
    refused = deployment.ask("GET", "/v2/queues")
    assert (refused.status, refused.document["limit"]) == (429, "requests")
    assert refused.headers["ratelimit-policy"].startswith('"requests";q=1;w=1')
    assert deployment.ask("GET", "/v2/queues", agent="python-requests/2.32").status == 503
    assert SECRET not in deployment.audit.read_text() + deployment.server.output


def test_requests_that_waited_give_their_share_of_the_threads_back(deployment: Deployment) -> None:
    """Ten requests at a time exceed the share. This holds for the engine that suspends them and for the other."""
    deployment.server.start()
    deployment.ask("PUT", QUEUE, {}, "operator")
    for _ in range(2):
        with ThreadPoolExecutor(10) as pool:
            waits = [pool.submit(deployment.ask, "POST", f"{QUEUE}/claims?wait=1", {}) for _ in range(10)]
        assert {wait.result().status for wait in waits} == {204}
    assert deployment.ask("GET", "/v2/queues").status == 200


def test_a_server_does_not_start_with_a_wrong_policy(deployment: Deployment) -> None:
    """The command exits with code 2 and one error message."""
    deployment.policy.write_text('"queues:gat": "@"\n')
    deployment.server.launch()
    assert deployment.server.wait(WITHIN) == 2
    assert deployment.server.stderr.strip().splitlines()[-1] == (
        f"zq-server: [oslo_policy] policy_file {deployment.policy} cannot be used: 'queues:gat' is not a rule; "
        "api-ref/policy.md lists all rules."
    )


def test_a_server_does_not_start_where_it_cannot_write_the_audit_log(deployment: Deployment) -> None:
    deployment.audit.mkdir()
    deployment.server.launch()
    assert deployment.server.wait(WITHIN) == 2
    assert f"The [log] audit file {deployment.audit} cannot be written: Is a directory." in deployment.server.stderr
