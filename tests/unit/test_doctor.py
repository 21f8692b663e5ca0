# SPDX-License-Identifier: Apache-2.0
"""Findings and advice of ``zq-server doctor`` and ``zq-server --check`` for one planted fault of each kind."""

import io
import json
import os
import resource
import shutil
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.blocks import ROOT
from tests.certificates import issue
from tests.commands import Done, run
from tests.servers import ZqServer, free_port, wait_for
from tests.sites import Site
from tests.tables import every_row
from zq import __version__, auth, diagnosis
from zq.clock import local_time
from zq.diagnosis import Check, Finding, Result, Status, fail, ok, warn
from zq.errors import Invalid, NotAuthorized, NotBuilt, NotFound, StartRefused, Unavailable
from zq.serving import doctor, server
from zq.serving.level_watch import ProcessRecord
from zq.serving.upgrade_command import UpgradeStatus
from zq.storage import diagnose
from zq.storage.mongodb import doctor as mongodb_doctor
from zq.storage.mongodb.client import Client
from zq.storage.ordered import layout
from zq.storage.rocksdb import BACKED_UP
from zq.storage.rocksdb import doctor as rocksdb_doctor

pytestmark = pytest.mark.one_store
KEY = "2026-11 MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture(autouse=True)
def few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor measure few writes, because a slow disk would slow the tests."""
    monkeypatch.setattr(rocksdb_doctor, "WRITES", 5)


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set up a configuration in which no check fails; return the folder of the store and the configuration's files."""
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("OS_STORAGE__URI", f"rocksdb://{folder}")
    monkeypatch.setenv("OS_SERVER__PORT", str(free_port()))
    return tmp_path


def examine() -> tuple[int, dict[str, Result]]:
    """Return the exit code of ``zq-server doctor --json``, and the results by check."""
    done = run("doctor", "--json")
    results = [Result(**json.loads(line)) for line in done.said.splitlines()]
    assert len({result.check for result in results}) == len(results)
    return done.code, {result.check: result for result in results}


def found(check: str, status: str) -> str:
    """Return the finding of a check; assert its status, and that a problem has advice."""
    code, results = examine()
    assert results[check].status == status, results[check]
    assert code >= {"ok": 0, "skip": 0, "warn": 1, "fail": 2}[status]
    return results[check].found


def check_start() -> Done:
    return run("--check")


def test_results_keep_the_order_and_the_worst_is_the_exit_code() -> None:
    """A check whose requirement failed is skipped."""
    checks = [
        Check("a", lambda: ok("Fine.")),
        Check("b", lambda: warn("Old redis://u:secret@h.", "Renew it.")),
        Check("c", lambda: fail("No.", "Stop it.")),
        Check("d", lambda: ok("Fine."), needs="c"),
        Check("e", lambda: ok("Fine."), needs="b"),
    ]
    results = [*diagnosis.run(checks)]
    assert [result.status for result in results] == ["ok", "warn", "fail", "skip", "ok"]
    assert results[1].line == "warn  b: Old redis://***@h. Renew it."
    assert [diagnosis.exit_code(results[:number]) for number in (0, 1, 2, 5)] == [0, 0, 1, 2]


@every_row(
    ("error", "status"),
    [
        (StartRefused("No."), "fail"),
        (Unavailable(), "fail"),
        (NotAuthorized("No."), "skip"),
        (NotFound("No."), "skip"),
        (NotBuilt("No."), "skip"),
        (Invalid("No."), "warn"),
        (KeyError("x"), "warn"),
        (PermissionError(13, "No", "file"), "warn"),
    ],
    ids=repr,
)
def test_an_error_of_a_check_determines_its_status(error: Exception, status: str) -> None:
    """An unexpected error is a warning, or has the status that the caller chose."""

    def broken() -> diagnosis.Finding:
        raise error

    def run(unknown: diagnosis.Status) -> str:
        result = next(diagnosis.run([Check("a", broken)], unknown))
        assert bool(result.advice) == (result.status != "skip")
        return result.status

    assert (run("warn"), run("fail")) == (status, "fail" if status == "warn" else status)


@every_row(
    ("status", "advice"),
    [("ok", "Rest."), ("skip", "Rest."), ("warn", ""), ("fail", "")],
)
def test_a_finding_has_advice_if_it_is_a_problem(status: Status, advice: str) -> None:
    with pytest.raises(ValueError, match="advice"):
        Finding(status, "Found.", advice)


@every_row(("offset", "status"), [(0.4, "ok"), (-3, "warn"), (61, "fail")])
def test_a_clock_offset_is_judged_in_both_directions(offset: float, status: str) -> None:
    assert diagnosis.judge_clock(offset, "Redis").status == status


def test_a_sound_configuration_has_no_failure_and_is_not_changed(configured: Path) -> None:
    """The doctor leaves no file in the store's folder, and ``--check`` ends with 0."""
    code, results = examine()
    assert code <= 1
    assert [result.check for result in results.values() if result.status == "fail"] == []
    assert len(results) == 26
    done = check_start()
    assert (done.code, done.error) == (0, "")
    assert len(done.said.splitlines()) == 13
    assert [*(configured / "store").iterdir()] == []


def test_an_invalid_option_is_the_only_result(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--check`` prints the error message of the start."""
    monkeypatch.setenv("OS_SERVER__THREADS", "many")
    code, results = examine()
    assert (code, [*results]) == (2, ["options"])
    assert check_start() == Done(2, "", f"zq-server: {results['options'].found}\n")


def test_a_misspelt_variable_is_a_warning(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_SERVER__PROT", "1")
    assert "OS_SERVER__PROT" in found("options", "warn")


def test_open_access_without_authentication_fails(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--check`` prints the other results too, and then the error message of the start."""
    monkeypatch.setenv("OS_SERVER__BIND", "0.0.0.0")
    sentence = found("access", "fail")
    done = check_start()
    assert (done.code, done.error) == (2, f"zq-server: {sentence}\n")
    assert len(done.said.splitlines()) == 13
    monkeypatch.setenv("OS_SERVER__TRUST_NETWORK", "true")
    assert "everyone who reaches" in found("access", "warn")


def test_an_unknown_scheme_and_a_missing_policy_fail(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_STORAGE__URI", "nats://h")
    monkeypatch.setenv("OS_OSLO_POLICY__POLICY_FILE", str(configured / "policy.yaml"))
    assert "nats" in found("driver", "fail")
    assert "policy.yaml" in found("policy", "fail")


@every_row("variable", ["OS_TRANSPORT__MESSAGE_ENCRYPTION_KEY_FILE", "OS_SQS__KEY_FILE"])
def test_a_world_readable_key_file_fails(configured: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    file = configured / "keys"
    file.write_text(KEY)
    monkeypatch.setenv(variable, str(file))
    for mode, status in ((0o644, "fail"), (0o600, "ok")):
        file.chmod(mode)
        assert str(file) in found("keys", status) or status == "ok"
        assert check_start().code == (2 if status == "fail" else 0)


@every_row(
    ("content", "mode", "complaint"),
    [
        (None, 0o600, "cannot be read"),
        ("\n", 0o600, "must contain only a token"),
        ("a b\n", 0o600, "must contain only a token"),
        ("secret\n", 0o644, "must be readable only by its owner"),
    ],
)
def test_a_token_file_of_the_metrics_that_cannot_be_used_fails(
    configured: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, mode: int, complaint: str
) -> None:
    file = configured / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    monkeypatch.setenv("OS_METRICS__TOKEN_FILE", str(file))
    assert found("keys", "fail").startswith(f"[metrics] token_file {complaint}")
    assert check_start().code == 2


def test_a_missing_key_set_fails(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_DEFAULT__AUTH_STRATEGY", "jwt")
    for option in ("ISSUER", "AUDIENCE", "JWKS"):
        monkeypatch.setenv(f"OS_AUTH__JWT_{option}", str(configured / "missing"))
    assert "jwt_jwks" in found("keys", "fail")


def test_a_missing_http_server_stops_the_start_and_the_check(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 2, so that systemd does not start the server again."""
    monkeypatch.setattr("zq.serving.startup.find_spec", lambda name: None if name == "granian" else name)
    sentence = "[server] engine = granian requires an extra: pip install 'zq-queue[granian]'."
    monkeypatch.setenv("OS_SERVER__ENGINE", "granian")
    assert found("engine", "fail") == sentence
    for arguments in (("--check",), ()):
        done = run(*arguments)
        assert (done.code, done.error) == (2, f"zq-server: {sentence}\n")


def test_keystone_that_cannot_be_used_stops_the_start_and_the_check(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The section has an unknown plugin or an invalid value, or the extra is missing."""
    file = configured / "zq.conf"
    monkeypatch.setenv("OS_DEFAULT__AUTH_STRATEGY", "keystone")
    for option, sentence in (
        ("auth_type = password\nauth_url = http://127.0.0.1:1", ""),
        ("auth_type = nonsense", "[keystone_authtoken] cannot be used"),
        (
            "auth_type = password\nauth_url = http://127.0.0.1:1\ntoken_cache_time = 301",
            "token_cache_time must be from 0 to 300 seconds",
        ),
    ):
        file.write_text(f"[keystone_authtoken]\n{option}\n")
        done = run("--check", "--config", file)
        assert (done.code, sentence in done.error) == (2 if sentence else 0, True), done
        if sentence:
            start = run("--config", file)
            assert (start.code, start.error.splitlines()[-1]) == (2, done.error.splitlines()[-1])
    monkeypatch.setitem(sys.modules, "keystonemiddleware.auth_token", None)
    monkeypatch.delitem(sys.modules, "zq.auth.keystone")
    monkeypatch.delattr(auth, "keystone")
    done = run("--check")
    assert (done.code, "pip install 'zq-queue[keystone]'" in done.error) == (2, True), done


@pytest.fixture
def tls(configured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for the server's certificate ``server.pem``, which the authority ``ca`` issues."""
    issue(configured, "ca", "CN=authority")
    monkeypatch.setenv("OS_SERVER__TLS_CERT", str(configured / "server.pem"))
    monkeypatch.setenv("OS_SERVER__TLS_KEY", str(configured / "server.key"))
    return configured


@every_row(("days", "status"), [(3.1, "warn"), (90, "ok"), (-0.5, "fail")])
def test_a_certificate_is_judged_by_its_expiry(tls: Path, days: float, status: str) -> None:
    """The server starts with an expired certificate, so ``--check`` only prints a warning."""
    issue(tls, "server", "CN=server", "ca", days)
    (tls / "server.key").chmod(0o600)
    sentence = found("certificate", status)
    assert "expired" in sentence if days < 0 else f"in {days:.0f} days" in sentence
    done = check_start()
    assert (done.code, "warn  certificate:" in done.said) == (0, days < 90)


@every_row(("days", "status"), [(3.1, "warn"), (90, "ok"), (-0.5, "fail")])
def test_the_authority_of_client_certificates_is_judged_by_its_expiry(
    tls: Path, monkeypatch: pytest.MonkeyPatch, days: float, status: str
) -> None:
    issue(tls, "server", "CN=server", "ca")
    (tls / "server.key").chmod(0o600)
    issue(tls, "clients", "CN=clients", days=days)
    monkeypatch.setenv("OS_SERVER__TLS_CLIENT_CA", str(tls / "clients.pem"))
    sentence = found("client authority", status)
    assert "has expired" in sentence if days < 0 else f"in {days:.0f} days" in sentence
    with (tls / "clients.pem").open("a") as file:
        file.write((tls / "ca.pem").read_text())
    assert "another one is valid" in found("client authority", "warn") if days < 0 else True
    monkeypatch.setenv("OS_SERVER__TLS_CLIENT_CA", str(tls / "server.pem"))
    assert "no certificate of an authority" in found("client authority", "warn")


def test_a_certificate_that_few_clients_accept_is_a_warning_and_the_server_starts(tls: Path) -> None:
    """TLS libraries do not offer the curve of the key by default."""
    issue(tls, "server", "CN=server", "ca", curve=ec.BrainpoolP256R1)
    assert "NO_SHARED_CIPHER" in found("certificate", "warn")
    server = ZqServer("memory:")
    with closing(server.launch()):
        wait_for(server.accepts, 20, "the server listens")


def test_a_world_readable_private_key_is_a_warning(tls: Path) -> None:
    issue(tls, "server", "CN=server", "ca")
    for mode, status in ((0o644, "warn"), (0o700, "ok"), (0o640, "ok")):
        (tls / "server.key").chmod(mode)
        assert "mode 0644" in found("keys", status) or status == "ok"


@every_row(("path", "status"), [("missing/audit.log", "fail"), ("store", "fail"), ("audit.log", "ok")])
def test_an_audit_log_that_cannot_be_written_fails(
    configured: Path, monkeypatch: pytest.MonkeyPatch, path: str, status: str
) -> None:
    """The file's folder is missing, or its path is a directory; no file is created."""
    monkeypatch.setenv("OS_LOG__AUDIT", str(configured / path))
    assert path in found("audit log", status)
    assert check_start().code == (2 if status == "fail" else 0)
    assert not (configured / "audit.log").exists()


def test_an_address_of_another_machine_fails(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_SERVER__BIND", "192.0.2.1")
    monkeypatch.setenv("OS_SERVER__TRUST_NETWORK", "true")
    done = check_start()
    assert done.code == 2
    assert "cannot listen on 192.0.2.1" in done.error


@every_row(
    ("variable", "value"),
    [("OS_METRICS__BIND", "192.0.2.1"), ("OS_METRICS__BIND", "missing.invalid"), ("OS_PROBES__BIND", "192.0.2.1:8890")],
)
def test_an_address_of_metrics_or_probes_that_cannot_be_used_is_a_warning(
    configured: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    done = check_start()
    assert done.code == 0
    assert f"are not served: cannot listen on {value}" in done.said
    assert "warn  listeners: " in done.said


def test_an_address_of_metrics_that_a_program_uses_is_no_warning(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program can be the server that is to be restarted."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        monkeypatch.setenv("OS_METRICS__PORT", str(used.getsockname()[1]))
        assert "ok    listeners: " in check_start().said


@every_row(
    ("path", "expected"),
    [
        ("missing/control.sock", "warn  control socket: No socket can be created in "),
        ("x" * 108, "exceeds 107 bytes"),
        ("store", "store exists and is no socket"),
        ("store/control.sock", "ok    control socket: "),
        ("none", "skip  control socket: "),
    ],
)
def test_a_path_at_which_no_control_socket_can_be_created_is_a_warning(
    configured: Path, monkeypatch: pytest.MonkeyPatch, path: str, expected: str
) -> None:
    monkeypatch.setenv("OS_SERVER__CONTROL", path if path == "none" else str(configured / path))
    done = check_start()
    assert (done.code, expected in done.said) == (0, True), done


def test_a_control_socket_in_the_folder_of_a_new_store_is_no_warning(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_STORAGE__URI", f"rocksdb://{configured}/new")
    assert "ok    control socket: The server creates " in check_start().said


@pytest.mark.parametrize(("state", "status"), [(5, "warn"), (0, "ok"), (-1, "skip")])
def test_an_unsynchronised_clock_is_a_warning(
    configured: Path, monkeypatch: pytest.MonkeyPatch, state: int, status: str
) -> None:
    class Library:
        def adjtimex(self, _buffer: object) -> int:
            return state

    monkeypatch.setattr("ctypes.CDLL", lambda _name: Library())
    found("machine clock", status)


@pytest.fixture
def metrics(configured: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Serve the metrics of a stub server; yield its labels and values by metric."""
    shown = {"info": f'{{version="{__version__}"}} 1', "store_up": " 1"}
    shown |= {"queue_oldest_ready_seconds": " 0", "queue_oldest_dead_letter_seconds": " 0"}
    shown |= {"mode": " 0", "quota_used_ratio": '{limit="stored_bytes"} 0.5'}

    class Page(dict[str, object]):
        def get(self, path: str, _default: object = None) -> object:
            if path == "/readyz":
                return int(shown.get("readyz", 200)), {}, {"description": "The store is away."}
            return 200, {}, "".join(f"zq_{name}{value}\n" for name, value in shown.items())

    with Site(Page()) as site:
        monkeypatch.setenv("OS_SERVER__PORT", str(site.port))
        monkeypatch.setenv("OS_METRICS__PORT", str(site.port))
        yield shown


@every_row(
    ("check", "metric", "value", "status"),
    [
        ("server", "readyz", "503", "fail"),
        ("server", "readyz", "404", "fail"),
        ("metrics", "info", '{version="0.0.9"} 1', "warn"),
        ("metrics", "info", "", "fail"),
        ("server's store", "store_up", None, "skip"),
        ("mode", "mode", " 1", "warn"),
        ("mode", "mode", " 2", "warn"),
        ("mode", "mode", None, "skip"),
        ("backlog", "queue_oldest_ready_seconds", None, "skip"),
        ("dead letters", "queue_oldest_dead_letter_seconds", None, "skip"),
        ("server's store", "store_up", " 0", "fail"),
        ("server's store", "store_corruptions_total", " 2", "fail"),
        ("backlog", "queue_oldest_ready_seconds", ' {queue="a"} 1000', "warn"),
        ("dead letters", "queue_oldest_dead_letter_seconds", " 2000", "warn"),
        ("quotas", "quota_used_ratio", None, "skip"),
        ("quotas", "quota_used_ratio", '{limit="stored_bytes"} 0.91', "warn"),
        ("quotas", "quota_used_ratio", '{limit="stored_bytes"} 1', "fail"),
    ],
)
def test_faults_of_a_running_server_are_found(
    metrics: dict[str, str], check: str, metric: str, value: str | None, status: str
) -> None:
    """A metric is missing if it has no value."""
    found(check, "ok")
    sound = dict(metrics)
    metrics.pop(metric, None)
    if value is not None:
        metrics[metric] = value
    _, results = examine()
    assert results[check].status == status
    metrics.clear()
    metrics |= sound


def test_the_advice_for_metrics_that_cannot_be_read_names_the_options(metrics: dict[str, str]) -> None:
    metrics["info"] = ""
    assert examine()[1]["metrics"].advice.startswith("Check [metrics] bind, port and token_file")


def test_the_level_of_the_store_is_shown(metrics: dict[str, str]) -> None:
    metrics["store_level"] = " 2"
    assert examine()[1]["server's store"].found == "The store responds to the server, and has level 2."


def test_a_server_is_not_confused_with_another_one_on_the_machine(
    metrics: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server has a metrics page. The configured server does not respond, or does not run."""
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        monkeypatch.setenv("OS_SERVER__PORT", str(port))
        monkeypatch.setattr("zq.serving.doctor.TIMEOUT", 0.1)
        assert f"127.0.0.1:{port} does not respond" in found("server", "fail")
        assert "skip  address: A program, perhaps this server, listens" in check_start().said
    _, results = examine()
    assert [results[name].status for name in ("server", "metrics", "server's store", "backlog")] == ["skip"] * 4


def test_a_running_server_is_checked_through_its_control_socket(
    configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a real server has another limit of open files and another version than the doctor."""
    with ZqServer(f"rocksdb://{configured}/store") as server:
        monkeypatch.setenv("OS_SERVER__PORT", str(server.port))
        for process in server.worker_pids:
            resource.prlimit(process, resource.RLIMIT_NOFILE, (1000, 1000))
        assert "1,000 files" in found("open files", "warn")
        _, results = examine()
        assert (results["servers"].status, results["level"].status) == ("ok", "ok")
        assert f"The store has layout {layout.VERSION.decode()} and level " in results["level"].found
        monkeypatch.setattr("zq.serving.doctor.__version__", "9.9")
        assert f"run zq {__version__}, but zq 9.9 is installed" in found("servers", "warn")


@every_row(
    ("versions", "installed", "status"),
    [((), "2.0", "ok"), (("2.0", "2.0"), "2.0", "ok"), (("1.0", "2.0"), "2.0", "warn"), (("1.0",), "2.0", "warn")],
)
def test_servers_of_different_versions_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, versions: tuple[str, ...], installed: str, status: str
) -> None:
    monkeypatch.setattr(doctor, "__version__", installed)
    processes = [ProcessRecord("a:8888", number, version, 1) for number, version in enumerate(versions)]
    seen = doctor.check_servers(lambda: UpgradeStatus(installed, 1, 1, False, processes))
    assert seen.status == status
    assert all(f"zq {version}" in seen.found for version in versions)


@every_row(("level", "is_begun", "status"), [(2, False, "ok"), (1, False, "warn"), (1, True, "warn")])
def test_a_level_below_the_supported_one_is_a_warning(level: int, is_begun: bool, status: str) -> None:
    seen = doctor.check_level(lambda: UpgradeStatus("2.0", 2, level, is_begun, []))
    assert seen.status == status
    assert ("has begun" in seen.found) is is_begun
    assert ("upgrade --finish" in seen.advice) is (status == "warn")


def test_the_state_of_a_server_with_tls_is_read_without_verification(
    tls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The certificate need not be valid for the address; a program without TLS on the port is a warning."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issue(tls, "server", "CN=server", "ca"), tls / "server.key")
    with Site({"/readyz": (200, {}, {})}) as site:
        monkeypatch.setenv("OS_SERVER__PORT", str(site.port))
        found("server", "warn")
        site.socket = context.wrap_socket(site.socket, server_side=True)
        found("server", "ok")
        monkeypatch.setenv("OS_SERVER__TLS_CLIENT_CA", str(tls / "ca.pem"))
        assert "client certificates" in found("server", "warn")


def test_the_sample_configuration_passes_the_check(configured: Path) -> None:
    done = run("--check", "--config", ROOT / "etc" / "zq.conf.sample")
    assert (done.code, done.error) == (0, ""), done


def test_output_that_cannot_be_written_gives_no_traceback(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed pipe is ignored. A full disk is an error."""
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    reader, writer = os.pipe()
    os.close(reader)
    full = "zq-server: The output cannot be written: No space left on device.\n"
    for target, expected in ((writer, (0, "")), ("/dev/full", (2, full))):
        error = io.StringIO()
        with open(target, "w") as output, redirect_stdout(output), redirect_stderr(error):
            assert (server.main(["--check"]), error.getvalue()) == expected


def test_an_interrupt_ends_a_check_without_a_traceback(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_host: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("zq.serving.listening.resolve", interrupt)
    with pytest.raises(SystemExit) as ended:
        run("--check")
    assert ended.value.code == 130


def test_a_store_in_a_place_that_cannot_be_written_fails(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of the driver that need the folder are omitted."""
    (configured / "file").touch()
    monkeypatch.setenv("OS_STORAGE__URI", f"rocksdb://{configured}/file/store")
    assert "cannot be opened" in found("store", "fail")
    assert "disk space" not in examine()[1]
    assert check_start().code == 2


def store_results(folder: Path, now: float = 0, **options: object) -> dict[str, str]:
    """Return the statuses of the embedded store's checks; the clock is ``now`` seconds ahead."""
    opened = diagnose(f"rocksdb://{folder}", lambda: local_time() + now, options)
    assert opened is not None
    with opened as checks:
        return {result.check: result.status for result in diagnosis.run(checks)}


def test_faults_of_an_embedded_store_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fault changes the status of its check; the folder has only the files that the checks read."""
    tmp_path.chmod(0o700)
    (tmp_path / "CURRENT").touch()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(total=10 << 40, free=5 << 40))
    assert store_results(tmp_path)["backup"] == "warn"
    (tmp_path / BACKED_UP).touch()
    assert {*store_results(tmp_path).values()} == {"ok"}
    assert store_results(tmp_path, now=100_000)["backup"] == "warn"
    assert store_results(tmp_path, sync="never")["durability"] == "warn"
    for free, minimum, status in (
        (90 << 30, None, "ok"),
        (15 << 30, None, "warn"),
        (9 << 30, None, "fail"),
        (90 << 30, 100 << 30, "fail"),
        (90 << 30, 50 << 30, "warn"),
        (1 << 20, 0, "ok"),
    ):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(total=2 << 40, free=free))
        assert store_results(tmp_path, min_free_space=minimum)["disk space"] == status
    tmp_path.chmod(0o755)
    assert store_results(tmp_path)["store folder"] == "warn"
    monkeypatch.setattr(rocksdb_doctor, "SLOW_SYNC", 0.0)
    assert store_results(tmp_path)["disk sync"] == "warn"
    monkeypatch.setattr(rocksdb_doctor, "MAX_SYNC_SECONDS", 1e-9)
    monkeypatch.setattr(rocksdb_doctor, "WRITES", 1 << 40)
    assert store_results(tmp_path)["disk sync"] == "warn"
    assert {*os.listdir(tmp_path)} == {"CURRENT", BACKED_UP}


@every_row(
    ("hours", "size", "states", "statuses"),
    [(1, 950, (1, 2), ("warn", "ok")), (1, 100, (1, 8), ("ok", "fail")), (48, 950, (1, 2, 7), ("ok", "ok"))],
)
def test_faults_of_a_replica_set_are_found(
    monkeypatch: pytest.MonkeyPatch, hours: int, size: int, states: tuple[int, ...], statuses: tuple[str, str]
) -> None:
    """A full oplog that covers few hours, and a member that is down."""

    def reply(_client: object, _database: str, command: dict[str, Any]) -> dict[str, Any]:
        moment = SimpleNamespace(time=hours * 3600 if command.get("sort") == {"$natural": -1} else 0)
        return {
            "hello": {"hosts": [*states]},
            "replSetGetStatus": {"members": [{"name": f"m{state}", "state": state} for state in states]},
            "collStats": {"size": size, "maxSize": 1000},
            "find": {"cursor": {"firstBatch": [{"ts": moment}]}},
        }[next(iter(command))]

    monkeypatch.setattr(mongodb_doctor, "run", reply)
    client = cast(Client, None)
    found = mongodb_doctor.check_oplog(client, False), mongodb_doctor.check_members(client, False)
    assert tuple(each.status for each in found) == statuses


def test_a_store_without_checks_and_pools_are_skipped(configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_STORAGE__URI", "memory:")
    monkeypatch.setenv("OS_DEFAULT__POOLING", "true")
    results = examine()[1]
    assert (results["store"].status, results["pools"].status) == ("skip", "skip")
    assert check_start().code == 0


@every_row("words", [["--check", "owner"], ["--json"], ["--json", "owner"], ["doctor", "--keep", "1"]], ids=" ".join)
def test_an_option_of_another_command_is_refused(configured: Path, words: list[str]) -> None:
    done = run(*words)
    assert (done.code, done.said) == (2, "")
    assert "does not apply" in done.error
