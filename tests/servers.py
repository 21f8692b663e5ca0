# SPDX-License-Identifier: Apache-2.0
"""Real zq processes on free ports, and an HTTP client for them.

All functions wait for a condition with a deadline. A server has its own session, so that ``kill`` ends exactly its
process group; its output goes through pipes, so that limits on file sizes do not affect it.
"""

import atexit
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from tests.forked import Forked
from zq.logs import holds_password

READY_WITHIN = 120.0
"""Seconds that a server may need to start on a busy machine."""
CLIENT = "30387f00c63a4a30ac1f3e2cf1b0c3a1"
PROJECT = "acme"
MODULE = "zq.serving.server"
SECRET = re.compile(
    r"zq_[0-9A-Za-z]{10}_[0-9A-Za-z]{43}"
    r"|://[^/\s:@]*:(?!\*+@)[^/\s@]+@"
    r"|eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+"
    r"|whsec_[0-9A-Za-z+/]{32}"
    r"|\b(?=[0-9a-z]*[A-Z])(?=[0-9A-Z]*[a-z])(?=[A-Za-z]*[0-9])[0-9A-Za-z]{40}\b"
)
"""A token with its secret, the password of a URI, a JSON Web Token, or the secret of a webhook or an SQS access key."""
SECRET_OPTION = re.compile(r"^\w*(?:secret|password|token|key)\w*\s*=\s*(\S.*)$", re.IGNORECASE | re.MULTILINE)
"""A line of a configuration or an environment that sets a secret or names a file of secrets."""
MIN_SECRET = 16
"""Minimum length of a configured secret. Shorter words, such as ids of keys, may be in the output."""
T = TypeVar("T")


class Lost(Exception):
    """The connection broke before the response was complete: the request may or may not have been processed."""


class NotStarted(AssertionError):
    """The server exited or did not become ready; the message contains its output."""


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the body as JSON, or None if it is empty."""
        return json.loads(self.body) if self.body else None


def ask(
    url: str,
    method: str,
    path: str,
    document: object = None,
    *,
    client: str = CLIENT,
    timeout: float = 20,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request on a new connection, with ``client`` as the client id. Raises ``Lost``."""
    headers = {"Client-ID": client, "X-Project-ID": PROJECT, **(headers or {})}
    if method == "PATCH" and "/claims/" not in path:
        headers["Content-Type"] = "application/openstack-messaging-v2.0-json-patch"
    connection = HTTPConnection(urlsplit(url).netloc, timeout=timeout)
    try:
        connection.request(method, path, None if document is None else json.dumps(document), headers)
        reply = connection.getresponse()
        return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    except (OSError, HTTPException) as error:
        raise Lost(f"{method} {path}: {error!r}") from error
    finally:
        connection.close()


def pages(url: str, path: str, member: str = "messages") -> Iterator[list[Any]]:
    """Yield every non-empty page of a listing by following its ``next`` links."""
    while True:
        page = ask(url, "GET", path)
        assert page.status == 200, page
        if not page.document[member]:
            return
        yield page.document[member]
        path = page.document["links"][0]["href"]


def every_message(url: str, queue: str) -> list[Any]:
    """Return all unexpired messages of a queue, including own, claimed and delayed ones."""
    path = f"/v2/queues/{queue}/messages?limit=20&echo=true&include_claimed=true&include_delayed=true"
    return [message for page in pages(url, path) for message in page]


def wait_for(condition: Callable[[], T], within: float, what: str) -> T:
    """Return the first true value of ``condition``; fail after ``within`` seconds with the description ``what``."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        assert time.monotonic() < deadline, f"Not within {within:g} s: {what}"
        time.sleep(0.02)
    return value


def soon(within: float, work: Callable[[], T], tries: int = 4, before: Callable[[], object] = lambda: None) -> T:
    """Return the result of ``work``, which must take less than ``within`` seconds after an untimed ``before``.

    A busy machine may pause for a moment: slow work is repeated, and fails if it is slow each time.
    """
    took: list[float] = []
    while len(took) < tries:
        before()
        began = time.monotonic()
        answer = work()
        took.append(time.monotonic() - began)
        if took[-1] < within:
            return answer
    raise AssertionError(f"Not within {within:g} s, but in {', '.join(f'{each:.1f}' for each in took)} s.")


OWN_PORT_ONLY = {"OS_METRICS__PORT": "0", "OS_METRICS__ON_MAIN_PORT": "true"}
"""Many servers run in parallel, so that none should use the default metrics port."""
TAKEN = contextlib.ExitStack()
"""The sockets that reserve ports for the lifetime of this process."""
atexit.register(TAKEN.close)


def free_port() -> int:
    """Return an unused port below the ephemeral range, so that it stays free during a restart of a server.

    The name of a socket reserves the port: no other test process gets it while this process lives.
    """
    while True:
        port = random.randrange(20000, 32000)
        token = socket.socket(socket.AF_UNIX)
        with socket.socket() as probe, contextlib.suppress(OSError):
            token.bind(f"\0zq-port-{port}")
            TAKEN.enter_context(token)
            probe.bind(("127.0.0.1", port))
            return port
        token.close()


_STARTER = ThreadPoolExecutor(1, "starter")
_SETPRIV = shutil.which("setpriv")


def spawn(command: Sequence[str], at_our_end: signal.Signals = signal.SIGKILL, **options: Any) -> subprocess.Popen[Any]:
    """Start a process in its own session that gets the signal ``at_our_end`` when this process ends for any reason.

    The kernel sends the signal (PR_SET_PDEATHSIG) when the *thread* that started the process ends. Threads of tests end
    early, so one thread that lives as long as this process starts all processes. A master that must stop its workers
    gets SIGTERM and has its graceful timeout. Without ``setpriv`` no signal is sent.
    """
    bound = [_SETPRIV, "--pdeathsig", at_our_end.name.removeprefix("SIG")] if _SETPRIV else []
    return _STARTER.submit(subprocess.Popen, [*bound, *command], start_new_session=True, **options).result()


class Startable(ABC):
    """A server that can be started; a context manager that starts it and finally removes all its traces."""

    @abstractmethod
    def start(self) -> Self:
        """Start the server, and return when it is ready."""

    @abstractmethod
    def close(self) -> None:
        """Stop the server, and remove its data."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


class ZqServer(Startable):
    """A ``zq-server``; a context manager that starts it and finally ends all its processes.

    If ``store_uri`` is "", the configuration names the store; ``config`` is the text of a configuration file. If
    ``forked``, the server is forked from a process with all imports, unless ``prefix`` or ``env`` configures the
    interpreter. ``module`` runs as the main module.
    """

    def __init__(
        self,
        store_uri: str,
        *extra_args: str,
        engine: str = "gunicorn",
        config: str | None = None,
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        forked: bool = True,
        module: str = MODULE,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._prefix = [*prefix, sys.executable, "-m", module]
        self._module = module
        self._forked = forked and not prefix and not any(name.startswith(("PYTHON", "LD_")) for name in env or {})
        self.engine = engine
        self._command = ["--port", str(self.port), "--engine", engine]
        hidden = {"OS_STORAGE__URI": store_uri} if holds_password(store_uri) else {}
        self._command += ["--store", store_uri] if store_uri and not hidden else []
        self._command += extra_args
        self._config = config
        self._env = {**os.environ, **OWN_PORT_ONLY, **hidden, **(env or {})}
        self._process: subprocess.Popen[str] | Forked | None = None
        self._readers: list[threading.Thread] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._secrets = self._configured_secrets()

    @property
    def pid(self) -> int:
        """Return the id of the started process, which is the master of gunicorn or Granian."""
        assert self._process is not None, "The server was never started."
        return self._process.pid

    @property
    def worker_pids(self) -> list[int]:
        """Return the ids of all living processes of the group except the master."""
        return [pid for pid in _group(self.pid) if pid != self.pid]

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Stop all threads of the server in the context, like a virtual machine that is migrated."""
        return stopped(*_group(self.pid))

    @property
    def stderr(self) -> str:
        """Return the standard error of the last start; complete after the process has ended."""
        return "".join(self._lines["stderr"])

    @property
    def output(self) -> str:
        """Return standard output and standard error so far."""
        return "".join(self._lines["stdout"]) + self.stderr

    def launch(self) -> "ZqServer":
        """Start the process without waiting for it."""
        assert self._process is None or self._process.poll() is not None, "The server runs already."
        command = list(self._command)
        if self._config is not None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="zq-config-")
            file = Path(self._folder.name, "zq.conf")
            file.write_text(self._config)
            command += ["--config", str(file)]
        self._assert_no_secret()
        self._lines = {"stdout": [], "stderr": []}
        self._process = Forked(self._module, command, self._env) if self._forked else self._spawned(command)
        streams = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._readers = [
            threading.Thread(target=_drain, args=(stream, self._lines[name]), daemon=True)
            for name, stream in streams.items()
        ]
        for reader in self._readers:
            reader.start()
        return self

    def _spawned(self, command: Sequence[str]) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return spawn([*self._prefix, *command], signal.SIGTERM, env=self._env, text=True, errors="replace", **pipes)

    def start(self, within: float = READY_WITHIN) -> "ZqServer":
        """Start the server and return when ``/readyz`` answers 200. Raises ``NotStarted``."""
        self.launch()
        deadline = time.monotonic() + within
        while not self.ready():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.kill()
                raise NotStarted(f"zq-server {'ended' if ended else 'was not ready in time'}:\n{self.output}")
            time.sleep(0.02)
        return self

    def ready(self, timeout: float = 5) -> bool:
        """Return whether ``/readyz`` answers 200 now."""
        with contextlib.suppress(Lost):
            return ask(self.url, "GET", "/readyz", timeout=timeout).status == 200
        return False

    def accepts(self) -> bool:
        """Return whether the server accepts a new connection now."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 20):
            return True
        return False

    def wait(self, within: float) -> int:
        """Wait until the server exits and return its exit code; fail after ``within`` seconds."""
        assert self._process is not None
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"zq-server did not end within {within:g} s:\n{self.output}") from None
        self._finish()
        return code

    def terminate(self, within: float = 40) -> int:
        """Send SIGTERM to the master, like an operator, and return the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait(within)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, and return when no process of it lives."""
        if self._process is None or (self._process.returncode is not None and not _group(self.pid)):
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(60)
        wait_for(lambda: not _group(self.pid), 60, "the killed group is gone")
        self._finish()

    def close(self) -> None:
        """Kill the server and remove its configuration file. Fail if the output of the server contains a secret."""
        self.kill()
        if self._folder is not None:
            self._folder.cleanup()
        self._finish()
        self._assert_no_secret()

    def _assert_no_secret(self) -> None:
        """Fail if the output contains a secret, by its form or from the configuration."""
        self._secrets |= self._configured_secrets()  # tests replace files of secrets
        printed = [SECRET.search(self.output), *(secret for secret in self._secrets if secret in self.output)]
        assert not any(printed), f"The server has printed a secret: {printed}"

    def _configured_secrets(self) -> set[str]:
        """Return the long words of all secret options, and of the files that such options name."""
        lines = [self._config or "", *(f"{name}={value}" for name, value in self._env.items() if "__" in name)]
        if "--config" in self._command:
            with contextlib.suppress(OSError):
                lines.append(Path(self._command[self._command.index("--config") + 1]).read_text())
        words: list[str] = []
        for value in SECRET_OPTION.findall("\n".join(lines)):
            try:
                words += Path(value).read_text().split()
            except OSError:  # the value is the secret, or its file is missing
                words += [] if value.startswith("/") else re.split(r"[,\s]+", value)
        return {word for word in words if len(word) >= MIN_SECRET}

    def _finish(self) -> None:
        """Read the output to its end."""
        for reader in self._readers:
            reader.join(30)


def _drain(stream: IO[str] | None, lines: list[str]) -> None:
    assert stream is not None
    with stream:
        for line in stream:
            lines.append(line)


@contextlib.contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop all threads of these processes in the context."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # The kernel stops a process after one thread has handled the signal: on a busy machine others still run.
        wait_for(lambda: all(_stands(pid) for pid in pids), 60, "every thread stands still")
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _stands(pid: int) -> bool:
    """Return whether every thread of a process is stopped."""
    threads = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in threads)


def _group(leader: int) -> list[int]:
    """Return the ids of the living processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # pid (comm) state ppid pgrp ...: the command's name may contain any characters, including blanks and
                # brackets.
                state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(group) == leader and state not in "ZX":
                    found.append(int(entry.name))
    return sorted(found)
