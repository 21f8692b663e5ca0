# SPDX-License-Identifier: Apache-2.0
"""A stock Firefox, controlled over WebDriver BiDi without a separate driver."""

import json
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from websockets.sync.client import ClientConnection, connect

from tests.abilities import firefox
from tests.servers import free_port, wait_for

WITHIN: Final = 60.0


class Firefox:
    """A Firefox with one page; ``logged`` has the console's messages, including page and policy errors."""

    def __init__(self, profile: Path) -> None:
        self._port = free_port()
        self._count = 0
        self._stack = ExitStack()
        self.logged: list[str] = []
        options = ["--headless", "--no-remote", "--profile", str(profile), f"--remote-debugging-port={self._port}"]
        self._process = subprocess.Popen(
            [firefox() or "", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Self:
        try:
            self._connection: ClientConnection = wait_for(self._connected, WITHIN, "Firefox")
            self._ask("session.new", capabilities={})
            self._ask("session.subscribe", events=["log.entryAdded"])
            self._context = self._ask("browsingContext.getTree")["contexts"][0]["context"]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._end()

    def open(self, url: str) -> None:
        self._ask("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def go(self, address: str) -> None:
        """Go to an address of the console, such as "#/p/acme/queues"."""
        self.run(f"location.hash = {json.dumps(address)}")

    def run(self, expression: str) -> Any:
        """Evaluate an expression and return its value if it is primitive."""
        asked = {"expression": expression, "target": {"context": self._context}, "awaitPromise": True}
        answer = self._ask("script.evaluate", **asked)
        assert answer["type"] == "success", answer
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true and return its value."""
        return wait_for(lambda: self.run(expression), WITHIN, expression)

    def press(self, name: str) -> None:
        """Click the button with this text."""
        found = f"[...document.querySelectorAll('main button')].find(b => b.textContent.trim() === {json.dumps(name)})"
        self.wait(f"Boolean({found})")
        self.run(f"{found}.click()")

    def type(self, selector: str, text: str) -> None:
        field = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"Boolean({field})")
        self.run(f"{field}.value = {json.dumps(text)}; {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")

    def _connected(self) -> ClientConnection | None:
        assert self._process.poll() is None, "Firefox has ended."
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self._port)):
                return None
        try:
            return self._stack.enter_context(connect(f"ws://127.0.0.1:{self._port}/session", max_size=None))
        except OSError:
            return None

    def _ask(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        self._connection.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        until = time.monotonic() + WITHIN
        while True:
            said = json.loads(self._connection.recv(timeout=max(0.0, until - time.monotonic())))
            if said.get("method") == "log.entryAdded" and said["params"]["level"] in ("error", "warn"):
                self.logged.append(str(said["params"].get("text")))
            if said.get("id") == self._count:
                assert said["type"] == "success", said
                return said["result"]

    def _end(self) -> None:
        self._stack.close()
        self._process.terminate()
        self._process.wait(WITHIN)
