# SPDX-License-Identifier: Apache-2.0
"""Time to import the client and to print the command line's help: ``python -m bench.starting [N]``.

The times are of whole processes, compared with an empty one. Other load of the machine affects the wall time more than
the processor time.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import zq.client": [sys.executable, "-c", "import zq.client"],
    "zq.client.Client(…)": [sys.executable, "-c", "from zq.client import Client; Client('http://localhost', 'acme')"],
    "zq --help": [str(Path(sys.executable).with_name("zq")), "--help"],
    "zq queue --help": [str(Path(sys.executable).with_name("zq")), "queue", "--help"],
}


def measured(command: list[str]) -> tuple[float, float]:
    """Return the milliseconds of one run: wall time and processor time."""
    before, began = getrusage(RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ended, after = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    return 1000 * (ended - began), 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Print the medians and the best of N runs, 20 by default."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print(f"{'':22}{'median':>8}{'best':>8}{'processor':>10}{'best':>8}   ms, of {runs} runs")
    for name, command in COMMANDS.items():
        measured(command)
        clock, processor = zip(*(measured(command) for _ in range(runs)), strict=True)
        figures = (figure(of) for of in (clock, processor) for figure in (statistics.median, min))
        print("{:22}{:8.0f}{:8.0f}{:10.0f}{:8.0f}".format(name, *figures))


if __name__ == "__main__":
    main()
