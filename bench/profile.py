# SPDX-License-Identifier: Apache-2.0
"""The parts of a request's processor time, and the sentence that explains a missed target of ``bench.table``.

``bench.application`` calls the application in a loop, on networked stores with as many threads as connections, because
their requests share round trips, and divides its time into application and store driver. ``/proc`` shows the time of
the loaded server and of its store, and the kernel's part. The rest is the HTTP server, the event loop and competition
of threads. Where perf is installed, it samples the loaded server by library.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from signal import SIGINT
from typing import Any, Final, NamedTuple

from bench import limit_service
from bench.application import Spent, Timed, Total, measure, measure_requests
from bench.sides import on_store, pids_of
from tests.abilities import able
from tests.servers import wait_for

# Calls of each request when an application is measured alone.
CALLS: Final = 500
# Threads on a networked store.
THREADS: Final = 16
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


def measure_alone(store: str) -> dict[str, Mapping[str, Spent]]:
    """Call the applications of zq and of the limit in a loop. Return them by the name of the side."""
    threads = 1 if store == "rocksdb" else THREADS
    with on_store(store) as (uri, _, _):
        found = {"zq": measure(uri, CALLS, threads)}
    with on_store(store) as (uri, _, _):
        total = Total()
        limit: Any = Timed(limit_service.open_limit(uri), total)
        found["limit"] = measure_requests(limit_service.create_app(limit), CALLS, threads, total)
    return found


def divide(alone: Spent, whole: float, kernel: float, store: float) -> Parts:
    """Divide the µs of a loaded server and of its store. ``whole`` includes the kernel."""
    return Parts(alone.application, whole - kernel - alone.application - alone.driver, alone.driver, kernel, store)


def part_names(store: str) -> Sequence[str]:
    """Return the names of ``Parts``."""
    driver, process = ("RocksDB and driver", "-") if store == "rocksdb" else ("driver", PROCESSES[store])
    return "application", "HTTP server and threads", driver, "kernel", process


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
            wait_for(lambda: recording.poll() is not None or file.exists(), 30, "perf samples")
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
