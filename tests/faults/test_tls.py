# SPDX-License-Identifier: Apache-2.0
"""TLS (tenancy 9): certificates, client certificates as credentials, reloads at HUP, and slow handshakes."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from tests.certificates import issue
from tests.commands import run
from tests.faults.refusal import sentence_of
from tests.servers import CLIENT, Answer, ZqServer, wait_for
from zq.client import Client, Retries
from zq.errors import Unavailable

ENGINES = ["gunicorn", "granian"]
SUBJECT = "CN=billing\\, all of it,O=Acme"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a CA, server certificates, and client certificates of this CA and of another."""
    made = tmp_path_factory.mktemp("tls")
    issue(made, "ca", "CN=authority")
    issue(made, "server", "CN=first", "ca")
    issue(made, "second", "CN=second", "ca")
    issue(made, "billing", SUBJECT, "ca")
    issue(made, "unknown", "CN=nobody,O=Acme", "ca")
    issue(made, "ca-other", "CN=another authority")
    return made


class Caller:
    """A client that uses TLS with or without a certificate."""

    def __init__(self, server: ZqServer, folder: Path, certificate: str = "") -> None:
        self._port = server.port
        self.context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        if certificate:
            self.context.load_cert_chain(folder / f"{certificate}.pem", folder / f"{certificate}.key")

    def ask(self, method: str, path: str, document: object = None, **headers: str) -> Answer:
        connection = HTTPSConnection("127.0.0.1", self._port, timeout=20, context=self.context)
        try:
            body = None if document is None else json.dumps(document)
            said = {"Client-ID": CLIENT, "Content-Type": "application/json"} | headers
            connection.request(method, path, body, said)
            reply = connection.getresponse()
            return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def serves(self) -> bool:
        try:
            return self.ask("GET", "/healthz").status == 200
        except OSError:
            return False

    def subject_of_server(self) -> object:
        plain = socket.create_connection(("127.0.0.1", self._port), 5)
        with self.context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped:
            found = wrapped.getpeercert()
            assert found is not None
            return found["subject"]


@contextmanager
def serving(
    folder: Path, store: Path, engine: str, certificate: str = "", more: str = "", first: str = "[server]"
) -> Iterator[tuple[ZqServer, Caller]]:
    """Run a server with the certificate ``server`` and a client; ``more`` are lines of ``[server]``."""
    config = f"{first}\ntls_cert = {store}/cert.pem\ntls_key = {store}/key.pem\n{more}"
    store.mkdir(exist_ok=True)
    put(folder, store, "server")
    server = ZqServer(f"rocksdb://{store}/store", engine=engine, config=config)
    caller = Caller(server, folder, certificate)
    with ExitStack() as ending:
        ending.callback(server.close)
        server.launch()
        wait_for(caller.serves, 60, f"it serves by TLS:\n{server.output}")
        yield server, caller


def put(folder: Path, place: Path, name: str) -> None:
    shutil.copy(folder / f"{name}.pem", place / "cert.pem")
    shutil.copy(folder / f"{name}.key", place / "key.pem")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_speaks_tls_and_nothing_else(engine: str, folder: Path, tmp_path: Path) -> None:
    """Small and large requests and responses are complete; plain text gets no response; TLS 1.2 is supported."""
    with serving(folder, tmp_path, engine) as (server, caller):
        assert f"starts with {engine} on https://" in server.output
        (left,) = re.findall(
            rb"^zq_certificate_expires_seconds (\S+)$", caller.ask("GET", "/metrics").body, re.MULTILINE
        )
        assert 80_000 < float(left) < 86_400
        bodies = [{"body": f"{number:02}" * 20_000} for number in range(20)]
        for each in range(0, 20, 5):
            posted = {"messages": bodies[each : each + 5]}
            assert caller.ask("POST", "/v2/queues/q/messages", posted, **{"X-Project-ID": "p"}).status == 201
        page = caller.ask("GET", "/v2/queues/q/messages?limit=20&echo=true", **{"X-Project-ID": "p"})
        assert [message["body"] for message in page.document["messages"]] == [each["body"] for each in bodies]
        with socket.create_connection(("127.0.0.1", server.port), 5) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in _last(plain)
        done = run("doctor", "--port", str(server.port), "--store", "memory:")  # without the options of TLS
        (line,) = (line for line in done.said.splitlines() if line.startswith("fail  server: "))
        assert line.isprintable()
        old = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", server.port), 5) as plain:
            assert old.wrap_socket(plain, server_hostname="127.0.0.1").version() == "TLSv1.2"


@pytest.mark.parametrize("engine", ENGINES)
def test_tls_min_refuses_what_is_older(engine: str, folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path, engine, more="tls_min = 1.3\n") as (_, caller):
        caller.context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            caller.ask("GET", "/healthz")


@pytest.mark.parametrize("engine", ENGINES)
def test_only_clients_of_the_authority_come_in(engine: str, folder: Path, tmp_path: Path) -> None:
    """``tls_client_ca``: a client without a certificate of this CA gets no response."""
    more = f"tls_client_ca = {folder}/ca.pem\n"
    with serving(folder, tmp_path, engine, "billing", more) as (server, caller):
        assert caller.ask("GET", "/v2/queues", **{"X-Project-ID": "p"}).status == 200
        for certificate in ("", "ca-other"):
            assert not Caller(server, folder, certificate).serves()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_python_client_trusts_the_authority_that_it_is_told_of(
    engine: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``SSL_CERT_FILE`` names the CA; without it the certificate is not trusted.

    Waits and streams work over TLS too.
    """
    once = Retries(attempts=1)
    with serving(folder, tmp_path, engine) as (server, _):
        url = f"https://127.0.0.1:{server.port}"
        with Client(url, "acme", retries=once) as stranger, pytest.raises(Unavailable, match="certificate"):
            stranger.queue("q").create()
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
        with Client(url, "acme") as client:
            queue = client.queue("q")
            queue.post_batch(["x" * 200_000, 2])
            assert [len(str(message.body)) for message in queue.claim(limit=5).messages] == [200_000, 1]
            began = time.monotonic()
            assert not queue.claim(limit=1, wait=1).messages
            assert time.monotonic() - began > 0.9


def test_a_certificate_is_a_credential(folder: Path, tmp_path: Path) -> None:
    """A file gives the subject a project, roles and scopes, and is reloaded at HUP; a token takes precedence."""
    holders = tmp_path / "holders.toml"
    holders.write_text(f"['{SUBJECT}']\nproject = 'acme'\nscopes = ['produce+manage:jobs']\n")
    first = f"[DEFAULT]\nauth_strategy = token\n[auth]\ncertificates = {holders}\n[server]"
    more = f"tls_client_ca = {folder}/ca.pem\n"
    with serving(folder, tmp_path / "store", "gunicorn", "billing", more, first) as (server, billing):
        posted = {"messages": [{"body": 1}]}
        assert billing.ask("POST", "/v2/queues/jobs/messages", posted).status == 201
        assert billing.ask("GET", "/v2/queues/jobs/messages").status == 403
        assert billing.ask("POST", "/v2/queues/jobs/messages", posted, **{"X-Project-ID": "other"}).status == 403
        assert billing.ask("POST", "/v2/queues/jobs/messages", posted, Authorization="Bearer zq_x").status == 401
        unknown = Caller(server, folder, "unknown")
        assert unknown.ask("GET", "/v2/queues").status == 401
        assert unknown.ask("GET", "/v2/queues", **{"zq.certificate": SUBJECT, "zq-certificate": SUBJECT}).status == 401
        holders.write_text("[nonsense]\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "File not reloaded" in server.output, 60, "the file is refused")
        assert billing.ask("POST", "/v2/queues/jobs/messages", posted).status == 201
        holders.write_text("['CN=nobody,O=Acme']\nproject = 'acme'\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: unknown.ask("GET", "/v2/queues").status == 200, 60, "it is read again")
        assert billing.ask("POST", "/v2/queues/jobs/messages", posted).status == 401


@pytest.mark.parametrize("engine", ENGINES)
def test_a_new_certificate_serves_from_hup_on(engine: str, folder: Path, tmp_path: Path) -> None:
    """The certificate applies to new connections; invalid files of the certificate or of the CA change nothing."""
    authority = tmp_path / "ca.pem"
    shutil.copy(folder / "ca.pem", authority)
    with serving(folder, tmp_path, engine, "billing", f"tls_client_ca = {authority}\n") as (server, caller):

        def is_refused(refusals: int) -> bool:
            os.kill(server.pid, signal.SIGHUP)
            wait_for(lambda: server.output.count("File not reloaded") == refusals, 60, "the files are refused")
            time.sleep(0.5)  # a new server of Granian would end the process by now
            return caller.subject_of_server() == ((("commonName", "first"),),)

        trusted = authority.read_text().replace("CERTIFICATE", "TRUSTED CERTIFICATE")  # only OpenSSL reads this format
        for refusals, content in enumerate((trusted, None), 1):
            authority.unlink() if content is None else authority.write_text(content)
            assert is_refused(refusals)
        shutil.copy(folder / "ca.pem", authority)
        shutil.copy(folder / "second.pem", tmp_path / "cert.pem")  # the key still belongs to the other certificate
        assert is_refused(3)
        put(folder, tmp_path, "second")
        os.kill(server.pid, signal.SIGHUP)
        second = ((("commonName", "second"),),)
        wait_for(lambda: caller.subject_of_server() == second, 60, "the new one serves")
        assert caller.ask("GET", "/readyz").status == 200
        assert "Traceback" not in server.output


def test_the_last_of_many_certificates_serves_whatever_lasts_from_before(folder: Path, tmp_path: Path) -> None:
    """Granian's servers with the previous certificates end after their last requests."""
    with serving(folder, tmp_path, "granian") as (server, caller), ThreadPoolExecutor(1) as pool:
        path = "/v2/queues/empty/messages?wait=5"
        poll = pool.submit(caller.ask, "GET", path, None, **{"X-Project-ID": "p"})
        wait_for(lambda: b"zq_waiters 1" in caller.ask("GET", "/metrics").body, 60, "it waits")
        for name in ("second", "server", "second", "server", "second"):
            put(folder, tmp_path, name)
            os.kill(server.pid, signal.SIGHUP)
            time.sleep(0.1)
        second = ((("commonName", "second"),),)
        for _ in range(2):
            wait_for(lambda: caller.subject_of_server() == second, 60, "the last one serves")
            time.sleep(1)
        assert {str(caller.subject_of_server()) for _ in range(40)} == {str(second)}
        assert poll.result(60).status == 200


def test_half_a_handshake_holds_no_thread_and_ends(folder: Path, tmp_path: Path) -> None:
    """Silent connections and unfinished handshakes do not delay other clients of Granian."""
    with serving(folder, tmp_path, "granian", more="head_timeout = 2\nthreads = 9\n") as (server, caller):
        begun = ssl.MemoryBIO()
        hello = caller.context.wrap_bio(ssl.MemoryBIO(), begun, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        greeting = begun.read()
        with ExitStack() as opened:
            slow = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)) for _ in range(40)]
            for number, each in enumerate(slow):
                each.sendall((greeting, greeting[:50], b"")[number % 3])
            assert caller.ask("GET", "/readyz").status == 200
            began = time.monotonic()
            for each in slow:
                while _last(each):
                    pass
            assert time.monotonic() - began < 29


def _last(connection: socket.socket) -> bytes:
    """Return received bytes; none if the connection is closed."""
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ("[server]\ntls_cert = {0}/server.pem\n", "[server] tls_cert and tls_key must both be set, or neither."),
        ("[server]\ntls_client_ca = {0}/ca.pem\n", "[server] tls_client_ca requires tls_cert and tls_key."),
        (
            "[server]\ntls_cert = {0}/server.pem\ntls_key = {0}/second.key\n",
            "[server] tls_cert and tls_key must be a certificate and its unencrypted key, but {0}/server.pem "
            "and {0}/second.key are not.",
        ),
        (
            "[server]\ntls_cert = {0}/none.pem\ntls_key = {0}/server.key\n",
            "[server] tls_cert is not readable: {0}/none.pem.",
        ),
        (
            "[server]\ntls_cert = {0}/server.pem\ntls_key = {0}/server.key\ntls_client_ca = {0}/ca.key\n",
            "[server] tls_client_ca must contain certificates, but {0}/ca.key does not.",
        ),
        (
            "[auth]\ncertificates = {0}/ca.pem\n",
            "[auth] certificates requires auth_strategy = token, engine = auto or gunicorn, and [server] "
            "tls_client_ca.",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence_at_the_start(
    config: str, sentence: str, folder: Path, tmp_path: Path
) -> None:
    server = ZqServer(f"rocksdb://{tmp_path}/store", config=config.format(folder))
    assert sentence_of(server) == f"zq-server: {sentence.format(folder)}"
    assert server.wait(1) == 2
