# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on this machine: a master and two workers, each in its own process."""

import os
import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.servers import free_port, wait_for

MEMORY = "1g"


class Cluster:
    """A cluster as a context manager that stops all its processes. ``url``: the master for sessions."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._folder = folder
        self._workers = workers
        self._stack = ExitStack()

    def __enter__(self) -> "Cluster":
        port = self.url.rpartition(":")[2]
        with ExitStack() as stack:
            self._start(stack, "master", "deploy.master.Master", "--port", port, "--webui-port", "0")
            wait_for(lambda: "New state: ALIVE" in self._log("master"), 60, "the master runs")
            for number in range(self._workers):
                terms = ("--cores", "1", "--memory", MEMORY, "--work-dir", str(self._folder / f"work{number}"))
                worker = f"worker{number}"
                self._start(stack, worker, "deploy.worker.Worker", *terms, "--webui-port", "0", self.url)
            registered = re.compile("Registering worker")
            wait_for(
                lambda: len(registered.findall(self._log("master"))) == self._workers, 60, "the workers have joined"
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack, name: str, kind: str, *terms: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.{kind}", "--host", "127.0.0.1", *terms]
        env = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        log = stack.enter_context((self._folder / f"{name}.log").open("w"))
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        stack.callback(ended, process)

    def _log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()


def ended(process: "subprocess.Popen[Any]") -> None:
    """Kill the process and all processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
