# SPDX-License-Identifier: Apache-2.0
"""``zq doctor``: its output and exit codes, and a planted fault for each check."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from tests.certificates import issue
from tests.cli.conftest import Zq
from tests.servers import free_port
from tests.sites import Response, Site
from tests.tables import every_row
from zq import __version__, diagnosis
from zq.cli import doctor
from zq.client import Client, Retries
from zq.diagnosis import Result
from zq.testing import server

NAMES = [
    *("reach", "tls", "readiness", "clock", "store clock", "credential", "permissions", "version", "limits", "quotas"),
    *("message", "backlog", "dead letters", "servers"),
]

TIME = "2026-01-01T00:00:00.000Z"


def by_check(lines: list[dict[str, str]]) -> dict[str, Result]:
    return {line["check"]: Result(**line) for line in lines}


def test_a_sound_server_has_no_warnings_and_no_queue_stays(zq: Zq) -> None:
    """Standard output has JSON lines if it is a pipe."""
    results = by_check(zq("doctor"))
    assert [*results] == NAMES
    assert {name: result.status for name, result in results.items() if result.status != "ok"} == {
        "quotas": "skip",
        "servers": "skip",
    }
    assert results["servers"].found == "The caller does not have the permission admin:server."
    assert zq("queue", "list") == []


def test_a_table_has_one_line_per_check_with_the_advice(zq: Zq, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead letters and messages without a consumer are warnings, so the exit code is 1."""
    monkeypatch.setattr(doctor, "MAX_READY_AGE", -1)
    zq("queue", "create", "orders", "_dead_letter_queue=dead", "_max_claims=1")
    zq("post", "dead", "1")
    done = zq.run("doctor", "--table")
    assert (done.exit_code, done.stderr) == (1, ""), done.output
    lines = done.stdout.splitlines()
    assert len(lines) == len(NAMES)
    assert "warn  dead letters: Dead letters wait in dead (1). Find the cause with zq dlq list, then" in done.stdout
    assert [line.split()[1] for line in lines if line.startswith("warn")] == ["backlog:", "dead"]


def test_findings_about_many_queues_name_their_number(zq: Zq, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first queues are examined."""
    monkeypatch.setattr(doctor, "MAX_QUEUES", 2)
    for name in ("a", "b", "c"):
        zq("queue", "create", name)
    results = by_check(zq("doctor"))
    assert results["backlog"].found == "No queue of the first 2 has old messages without a consumer."


def test_an_unreachable_server_fails_and_the_other_checks_are_skipped(zq: Zq) -> None:
    done = zq.run("doctor", "--table", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.exit_code, done.stderr) == (2, "")
    first, *others = done.stdout.splitlines()
    assert first.startswith("fail  reach: The server at 127.0.0.1:")
    assert {line[:4] for line in others} == {"skip"}
    assert "Traceback" not in done.output


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def identity(expires: str | None) -> Response:
    return 200, {}, {"project": "acme", "scopes": ["produce:orders"], "expires": expires}


def me(**members: object) -> Response:
    return 200, {}, {"auth": "token", "rules": ["messages:create"], "version": __version__, **members}


def date(seconds: float) -> Response:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return 200, {"Date": format_datetime(moment, usegmt=True)}, {"status": "ok"}


def servers(*versions: str) -> Response:
    about = {"server": "a:1", "process": 1, "since": TIME, "as_of": TIME, "store": "memory", "engine": "granian"}
    loads = {"requests": 0.0, "p95": None, "waiters": 0, "max_waiters": 1, "streams": 0, "max_streams": 1}
    clocks = {"clock_offset": 0.0, "sweep_lag": None}
    return 200, {}, {"servers": [about | loads | clocks | {"version": version} for version in versions]}


def figures(offset: float) -> Response:
    depth = {"ready": 0, "delayed": 0, "claimed": 0, "oldest_ready": None, "at_least": False}
    lists = {name: [] for name in ("oldest", "deepest", "growing", "dead_letters", "quotas")}
    series = {"step": 10, "since": TIME, "as_of": TIME, "servers": 1, "depth": None, "rates": None}
    now = {"complete": True, "total": 0, "now": depth | {"in": 0.0, "out": 0.0}}
    return 200, {}, {**series, **now, "lists": lists, "clock_offset": offset, "sweep_lag": None}


def quota(used: int) -> Response:
    use = {"used": {"queues": used, "bytes": 7}, "exact": {}, "age": 0}
    return 200, {}, {"limits": {"queues": 10, "rate": 5, "bytes": 0}, "state": "active", **use}


@pytest.fixture
def responses() -> dict[str, Response]:
    return {"/healthz": (200, {}, {"status": "ok"})}


@pytest.fixture
def site(responses: dict[str, Response]) -> Iterator[Site]:
    with Site(responses) as running:
        yield running


def check(url: str) -> dict[str, Result]:
    """Return the results for the server at a URL."""
    with Client(url, "acme", token="", retries=Retries(attempts=1)) as client:
        return {result.check: result for result in diagnosis.run(doctor.Doctor(client, url).checks())}


@every_row(
    ("name", "path", "response", "status"),
    [
        ("readiness", "/readyz", (503, {}, {"title": "x", "description": "The store is away."}), "fail"),
        ("store clock", "/v2/figures", figures(-3.0), "warn"),
        ("permissions", "/v2/me", me(), "ok"),
        ("permissions", "/v2/me", me(rules=["queues:get"]), "warn"),
        ("version", "/v2/me", me(version="9.0.0"), "warn"),
        ("quotas", "/v2/quota", quota(7), "ok"),
        ("quotas", "/v2/quota", quota(8), "warn"),
        ("quotas", "/v2/quota", quota(10), "fail"),
        ("servers", "/v2/servers", servers("0.1.0", "0.1.0"), "ok"),
        ("servers", "/v2/servers", servers("0.1.0", "0.2.0"), "warn"),
        ("store clock", "/v2/figures", (200, {}, "not JSON"), "warn"),
        ("quotas", "/v2/quota", (200, {}, {}), "warn"),
        ("limits", "/v2/limits", (503, {}, {}), "fail"),
        ("reach", "/healthz", (200, {}, "<html>"), "fail"),
        ("reach", "/healthz", (200, {}, {"status": "up"}), "fail"),
        ("reach", "/healthz", (401, {}, {}), "fail"),
        ("reach", "/healthz", (403, {}, {}), "fail"),
        ("reach", "/healthz", (404, {}, {}), "fail"),
    ],
)
def test_a_fault_of_the_server_is_found(
    site: Site, responses: dict[str, Response], name: str, path: str, response: Response, status: str
) -> None:
    """Checks for which the stub has no response are skipped."""
    responses[path] = response
    result = check(site.url)[name]
    assert result.status == status, result
    assert status in ("warn", "fail") or not result.advice


def test_the_open_streams_of_all_servers_are_added_up(site: Site, responses: dict[str, Response]) -> None:
    responses["/v2/servers"] = servers("0.1.0", "0.1.0")
    assert check(site.url)["servers"].found.endswith(" Open streams: 0 of 2.")


@every_row(("ahead", "status"), [(0, "ok"), (-30, "warn"), (300, "fail")])
def test_the_clock_of_the_server_is_compared_with_this_machines(
    site: Site, responses: dict[str, Response], ahead: float, status: str
) -> None:
    responses["/healthz"] = date(ahead)
    assert check(site.url)["clock"].status == status


@every_row(("expires", "status"), [(None, "ok"), (6, "warn"), (60, "ok")])
def test_a_credential_is_judged_by_its_expiry(
    site: Site, responses: dict[str, Response], expires: float | None, status: str
) -> None:
    responses |= {"/v2/me": me(), "/v2/whoami": identity(None if expires is None else in_days(expires))}
    result = check(site.url)["credential"]
    assert result.status == status
    assert "produce:orders" in result.found


def check_with_token(*scopes: str) -> dict[str, Result]:
    """Return the results of a real server for a token with the scopes; without scopes, for an invalid token."""
    with server(auth_strategy="token") as running:
        token = running.token("acme", scopes=[*scopes]) if scopes else "zq_wrong"
        with Client(running.url, token=token, retries=Retries(attempts=1)) as client:
            return {result.check: result for result in diagnosis.run(doctor.Doctor(client, running.url).checks())}


def test_a_token_without_a_scope_skips_the_message() -> None:
    """The finding lists the abilities, and checks that the token does not allow are skipped."""
    results = check_with_token("produce:orders")
    assert results["permissions"].found == "The caller may post."
    assert results["message"].status == "skip"
    assert results["quotas"].status == "ok"
    assert {result.status for result in results.values()} <= {"ok", "skip"}


def test_a_token_for_certain_queues_skips_the_message() -> None:
    """The token has every ability, but only for other queues than the temporary one."""
    results = check_with_token("produce+consume+observe+manage:orders")
    assert results["message"].status == "skip"
    assert {result.status for result in results.values()} <= {"ok", "skip"}


def test_a_rejected_token_is_a_failure() -> None:
    results = check_with_token()
    assert {name for name, result in results.items() if result.status == "fail"} == {"credential"}
    assert "zq login" in results["credential"].advice


def test_a_message_that_cannot_be_posted_is_a_failure(site: Site, responses: dict[str, Response]) -> None:
    """The stub rejects posts."""
    responses["/v2/me"] = me(rules=[*doctor.ABILITIES])
    result = check(site.url)["message"]
    assert result.status == "fail"
    assert "could not be posted" in result.found


def test_a_certificate_is_judged_by_its_expiry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check verifies the certificate like the client does; a remote server without TLS is a warning."""
    authority = issue(tmp_path, "ca", "CN=authority")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    for days, status in ((3, "warn"), (90, "ok")):
        certificate = issue(tmp_path, "server", "CN=server", "ca", days)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, tmp_path / "server.key")
        with Site({"/healthz": (200, {}, {"status": "ok"})}) as site:
            site.socket = context.wrap_socket(site.socket, server_side=True)
            assert check(site.url.replace("http:", "https:"))["tls"].status == status
    with Client("http://queues.example.org", "acme") as client:
        assert doctor.Doctor(client, "http://queues.example.org").check_tls().status == "warn"
