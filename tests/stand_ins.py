# SPDX-License-Identifier: Apache-2.0
"""Replacements of programs that need root, a network or a cluster: scripts on ``PATH`` that call a test."""

import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Self

from tests.commands import run_apart

Done = subprocess.CompletedProcess[bytes]
Program = Callable[[list[str], bytes], Done]
"""Called with the arguments and with the whole standard input."""

SCRIPT = """\
#!{python} -IS
import sys
from multiprocessing.connection import Client
with Client({address!r}) as connection:
    connection.send((sys.argv[0].rpartition("/")[2], sys.argv[1:], sys.stdin.buffer.read()))
    code, output, errors = connection.recv()
sys.stdout.buffer.write(output)
sys.stderr.buffer.write(errors)
sys.exit(code)
"""


def done(output: bytes = b"") -> Done:
    """Return the result of a program that succeeded."""
    return Done([], 0, output, b"")


def run_zq_server(words: list[str], env: Mapping[str, str] | None = None) -> Done:
    """Run ``zq-server`` without the imports, which take most of its time."""
    ran = run_apart(*words, env=env)
    return Done([], ran.code, ran.said.encode(), ran.error.encode())


class StandIns:
    """Scripts in a folder that call ``programs`` by name; a context manager.

    The calls run one after the other in a thread. If a call raises an exception, its script prints the traceback and
    exits with 70.
    """

    def __init__(self, folder: Path, programs: Mapping[str, Program]) -> None:
        self.folder = folder
        folder.mkdir()
        self._programs = programs
        self._listener = Listener(None, "AF_UNIX")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        for name in programs:
            self.write(folder / name)

    def write(self, path: Path) -> None:
        """Write a further script; its name selects the program."""
        path.write_text(SCRIPT.format(python=sys.executable, address=self._listener.address))
        path.chmod(0o755)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with Client(self._listener.address) as connection:
            connection.send(None)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            with self._listener.accept() as connection:
                call = connection.recv()
                if call is None:
                    return
                name, arguments, given = call
                try:
                    result = self._programs[name](arguments, given)
                except Exception:  # noqa: BLE001 - the test shows the output of the script
                    result = Done([], 70, b"", traceback.format_exc().encode())
                connection.send((result.returncode, result.stdout or b"", result.stderr or b""))
