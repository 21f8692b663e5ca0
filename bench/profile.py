# SPDX-License-Identifier: Apache-2.0
"""The parts of a request's processor time, and the sentence that explains a missed target of ``bench.table``.

Three measurements of one run are combined: the application in a loop (``bench.application``), its server under load,
and this server with a store. The first two use zq's store in memory, and no store for the limit. ``/proc`` shows the
programs' and the kernel's time. Where perf is installed, it samples the loaded server by library.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGINT
from typing import Final, NamedTuple

from bench import limit_service
from bench.application import Spent, measure, measure_requests
from bench.sides import pids_of
from tests.abilities import able

# Calls of each request when an application is measured alone.
CALLS: Final = 1000
PROCESSES: Final = {"redis": "redis-server", "mongodb": "mongod"}
# Samples per second, and number of libraries in the sentence.
FREQUENCY: Final = 499
LIBRARIES: Final = 4
SAMPLED: Final = re.compile(r"^\s*([\d.]+)%\s+(\S+)", re.MULTILINE)
LIBRARY_NAMES: Final = {
    **{"kernel.kallsyms": "kernel", "libpython": "Python", "python": "Python"},
    **{"_granian": "Granian", "rocksdict": "RocksDB"},
}


class Parts(NamedTuple):
    """µs of processor time of one request."""

    application: float
    edge: float
    driver: float
    kernel: float
    store: float


def measure_alone() -> dict[str, Mapping[str, Spent]]:
    """Call the applications of zq and of the limit in a loop, without a store. Return them by the name of the side."""
    limit = limit_service.create_app(limit_service.Constant())
    return {"zq": measure("memory:", CALLS), "limit": measure_requests(limit, CALLS, 1)}


def divide(alone: float, without_store: float, whole: float, kernel: float, store: float) -> Parts:
    """Divide the µs of a loaded server and of its store.

    ``alone`` and ``without_store`` are the time of the program alone; ``whole`` includes the kernel.
    """
    return Parts(alone, without_store - alone, whole - kernel - without_store, kernel, store)


def part_names(store: str) -> Sequence[str]:
    """Return the names of ``Parts``."""
    driver, process = ("RocksDB and driver", "-") if store == "rocksdb" else ("driver and threads", PROCESSES[store])
    return "application", "HTTP server and event loop", driver, "kernel", process


def explain(store: str, zq: Parts, limit: Parts) -> str:
    """Return the difference and its parts, the largest first."""
    differences = [
        (mine - its, name) for name, mine, its in zip(part_names(store), zq, limit, strict=True) if mine or its
    ]
    parts = ", ".join(f"{name} {more:+.0f}" for more, name in sorted(differences, reverse=True))
    return f"zq needs {sum(zq):.0f} µs of processor time per request, the limit {sum(limit):.0f}: {parts}."


def sample(leaders: Sequence[int], work: Callable[[], object]) -> str:
    """Sample the processes and their groups during ``work``. Return a sentence, or "" without perf."""
    if not able("perf"):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "perf.data")
        pids = ",".join(map(str, pids_of(leaders)))
        command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY), "-o", str(file), "-p", pids]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as recording:
            work()
            recording.send_signal(SIGINT)
        command = ["perf", "report", "-i", str(file), "--stdio", "-q", "--sort", "dso"]
        report = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    return describe_samples(report)


def describe_samples(report: str) -> str:
    """Return the largest shares of perf's report by library as a sentence."""
    shares = [(float(share), library_name(library)) for share, library in SAMPLED.findall(report)]
    largest = ", ".join(f"{name} {share:.0f} %" for share, name in sorted(shares, reverse=True)[:LIBRARIES])
    return f"zq's server by library: {largest}." if shares else ""


def library_name(library: str) -> str:
    plain = library.strip("[]")
    known = (name for start, name in LIBRARY_NAMES.items() if plain.startswith(start))
    return next(known, plain.partition(".")[0])
