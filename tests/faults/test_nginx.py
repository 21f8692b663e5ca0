# SPDX-License-Identifier: Apache-2.0
"""``etc/nginx.conf`` in front of a server, with the installed nginx."""

import base64
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.abilities import locate, need
from tests.blocks import only
from tests.faults.slow import HALF_BODY, HALF_HEAD, SlowClients
from tests.http.raw_requests import SAMPLES
from tests.reader import SHELL, succeed
from tests.servers import CLIENT, ZqServer, ask, free_port, wait_for
from tests.stand_ins import Done, StandIns, done
from tests.websocket.connections import ask as ask_frame
from zq.http import heads

ENGINES = ["gunicorn", "granian"]
FILE = Path(__file__).parents[2] / "etc/nginx.conf"
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"acme:secret").decode()}
SSL = re.compile(r"^ *ssl_.*\n", re.MULTILINE)


# Options of the server that the head of the file requires.
OPTIONS = re.findall(r"(behind_proxy|allowed_hosts) = (\S+?)(?:,|$)", FILE.read_text(), re.MULTILINE)


def moved(text: str, folder: Path, port: int, server: ZqServer) -> str:
    """Return the file with its paths in a folder that this user can write, and with the ports of the test."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    for written, meant in {
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/zq/": f"{folder}/",
        "127.0.0.1:8888": f"127.0.0.1:{server.port}",
        "worker_rlimit_nofile 65536;": "user root;" if os.getuid() == 0 else "",
        "http {\n": "http {\n" + places,
        "/dev/stdout": f"{folder}/access.log",
    }.items():
        assert written in text, written
        text = text.replace(written, meant)
    return text


def start_nginx(folder: Path, conf: Path) -> subprocess.Popen[str]:
    command = [locate("nginx") or "", "-p", str(folder), "-c", str(conf), "-g", "daemon off;"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Proxy:
    """An nginx with the file, in front of a server; without TLS, so that raw requests can be sent."""

    def __init__(self, folder: Path, server: ZqServer) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = server
        (folder / "passwords").write_text("acme:{PLAIN}secret\n")
        text = SSL.sub("", moved(FILE.read_text(), folder, self.port, server))
        conf = folder / "nginx.conf"
        conf.write_text(text.replace(" ssl;", ";"))
        self._process = start_nginx(folder, conf)

    def up(self) -> bool:
        assert self._process.poll() is None, self._process.stderr and self._process.stderr.read()
        return listens(self.port)

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=20)


@pytest.fixture(scope="module", params=ENGINES)
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    need("nginx")
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    env = {f"OS_SERVER__{name.upper()}": value for name, value in OPTIONS}
    env["OS_WEBSOCKET__ENABLED"] = str(request.param == "granian")
    with ExitStack() as stack:
        server = stack.enter_context(ZqServer(f"rocksdb://{folder}/store", engine=request.param, env=env))
        opened = Proxy(folder, server)
        stack.callback(opened.close)
        wait_for(opened.up, 60, "nginx listens")
        yield opened


def test_the_file_overwrites_every_identity_header() -> None:
    """The file covers the headers that engines check, and one of each family."""
    told = {name.lower() for name in re.findall(r"proxy_set_header ([\w-]+) ", FILE.read_text())}
    assert ({*heads.IDENTITY, *SAMPLES}) - told == set()


def test_the_project_is_who_logged_in(proxy: Proxy) -> None:
    """Other headers of the caller are ignored in any spelling, and a password is required."""
    forged = {"X-Project-ID": "victim", "X_Project_ID": "victim", "X-Tenant-ID": "victim", "X-Roles": "admin"}
    post = {"messages": [{"body": "mine", "ttl": 3600}]}
    path = "/v2/queues/q/messages"
    assert ask(proxy.url, "POST", path, post, headers=forged | LOGIN).status == 201
    assert ask(proxy.url, "POST", path, post).status == 401
    direct = ask(proxy.server.url, "GET", path + "?echo=true", headers={"X-Project-ID": "acme"})
    assert [message["body"] for message in direct.document["messages"]] == ["mine"]
    other = ask(proxy.server.url, "GET", path + "?echo=true", headers={"X-Project-ID": "victim"})
    assert other.document["messages"] == []


def test_the_server_knows_the_name_of_the_file(proxy: Proxy) -> None:
    """A request to ``server_name`` passes both, with the options that the file's head requires."""
    assert dict(OPTIONS) == {"behind_proxy": "true", "allowed_hosts": "zq.example"}
    assert ask(proxy.url, "GET", "/v2/queues", headers=LOGIN | {"Host": "zq.example"}).status == 200
    assert ask(proxy.url, "GET", "/v2/queues", headers=LOGIN | {"Host": "evil.example"}).status == 421


def test_what_is_for_machinery_is_closed(proxy: Proxy) -> None:
    """Metrics and readiness are not public; health is."""
    assert ask(proxy.url, "GET", "/metrics", headers=LOGIN).status == 404
    assert ask(proxy.url, "GET", "/readyz", headers=LOGIN).status == 404
    assert ask(proxy.url, "GET", "/healthz").status == 200


def test_a_body_that_is_too_large_ends_at_the_proxy(proxy: Proxy) -> None:
    """The largest body that zq accepts passes; a body of 400 kB does not."""
    path = "/v2/queues/large/messages"
    fits = {"messages": [{"body": "x" * 262_000, "ttl": 3600}]}
    assert ask(proxy.url, "POST", path, fits, headers=LOGIN).status == 201
    larger = {"messages": [{"body": "x" * 400_000, "ttl": 3600}]}
    assert ask(proxy.url, "POST", path, larger, headers=LOGIN).status == 413


def test_events_of_a_stream_come_at_once(proxy: Proxy) -> None:
    """nginx does not buffer the events."""
    ask(proxy.server.url, "PUT", "/v2/topics/news")
    auth = LOGIN["Authorization"]
    request = f"GET /v2/topics/news/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {auth}\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port), 20) as reader:
        reader.sendall(f"{request}Client-ID: {CLIENT}\r\n\r\n".encode())
        got = reader.recv(65536)
        assert got.startswith(b"HTTP/1.1 200 "), got
        message = {"messages": [{"body": "hear this", "ttl": 3600}]}
        headers = {"X-Project-ID": "acme"}
        assert ask(proxy.server.url, "POST", "/v2/topics/news/messages", message, headers=headers).status == 201
        while b"hear this" not in got:
            piece = reader.recv(65536)
            assert piece, got
            got += piece


def test_websocket_passes_at_its_path(proxy: Proxy, request: pytest.FixtureRequest) -> None:
    """The path leads to Granian, which serves it."""
    place = f"ws://127.0.0.1:{proxy.port}"
    if request.node.callspec.params["proxy"] == "granian":
        with connect(f"{place}/v2/ws", additional_headers=LOGIN) as connection:
            assert ask_frame(connection, "queue_list")[0] == 200
    with pytest.raises(InvalidStatus):
        connect(f"{place}/v2/queues", additional_headers=LOGIN)
    with pytest.raises(InvalidStatus):
        connect(f"{place}/v2/ws")


def test_slow_clients_wait_at_the_proxy(proxy: Proxy) -> None:
    """Half-sent requests do not delay others, and zq does not notice the slow clients."""
    body = HALF_BODY.replace(b"Host:", f"Authorization: {LOGIN['Authorization']}\r\nHost:".encode(), 1)
    with SlowClients(proxy, heads=(60, HALF_HEAD), bodies=(60, body)):  # type: ignore[arg-type]
        for _ in range(5):
            assert ask(proxy.url, "GET", "/v2/limits", headers=LOGIN).status == 200
        page = ask(proxy.server.url, "GET", "/metrics").body
    for reason in ("head_timeout", "body_timeout"):
        assert f'zq_refused_total{{reason="{reason}"}} 0.0'.encode() in page


def test_the_commands_of_the_page_start_a_proxy_with_tls(tmp_path: Path) -> None:
    """The commands of ``operations.md`` make a certificate and a password, with which curl passes the whole file."""
    need("nginx", "curl")
    conf, running = tmp_path / "clone" / "etc" / "nginx.conf", []
    conf.parent.mkdir(parents=True)
    tmp_path.chmod(0o755)

    def nginx(words: list[str], _: bytes) -> Done:
        assert words[-2:] == ["-c", str(conf)]
        if "-t" in words:
            command = [locate("nginx") or "", "-p", str(tmp_path), *words]
            return subprocess.run(command, capture_output=True, check=False)
        running.append(start_nginx(tmp_path, conf))
        wait_for(lambda: listens(port), 60, "nginx listens")
        return done()

    port, env = free_port(), {f"OS_SERVER__{name.upper()}": value for name, value in OPTIONS}
    with ZqServer("memory:", env=env) as server, StandIns(tmp_path / "programs", {"nginx": nginx}) as programs:
        conf.write_text(moved(FILE.read_text(), tmp_path, port, server))
        commands = only("api-ref/operations.md", "bash")
        for written, meant in {
            "/etc/zq": str(tmp_path),
            "zq.example:443:": f"zq.example:{port}:",
            "https://zq.example/": f"https://zq.example:{port}/",
        }.items():
            assert written in commands, written
            commands = commands.replace(written, meant)
        try:
            said = succeed([*SHELL, f"export PATH={programs.folder}:$PATH\n{commands}"], conf.parents[1])
        finally:
            for process in running:
                process.terminate()
                process.communicate(timeout=20)
    assert '"queues":[]' in said
    assert "test is successful" in said
    assert (tmp_path / "tls" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert "acme" in (tmp_path / "access.log").read_text()
