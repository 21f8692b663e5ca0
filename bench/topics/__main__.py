# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.topics [--drivers D ...] [--engines E ...]`` prints a line for each driver and engine.

One by one: a publisher that sends the next message after the response to the last, and a reader of a stream; the time
is from sending to reading. Batches: the same with a hundred messages at a time. Publish only: there is no reader.
Operations: those of the store, while one publisher sends at a fixed rate to one and to ten readers. The command only
asserts that each message arrived; only results of one run may be compared, because of the machine's other load.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.topics.flow import Flow, Run
from bench.topics.lines import Publisher, Reader
from bench.topics.operations import counter
from tests.servers import ZqServer, wait_for
from tests.stores import Stores

BATCH = 100
MANY_PUBLISHERS = 4
MANY_READERS = 10
# Batches per second, of ``PACED`` messages each, while operations are counted.
RATE = 50.0
PACED = 10
# Number of rounds of counting operations, because a store has other operations too.
ROUNDS = 3
# A sweep needs operations, which would affect some of the measurements.
NO_SWEEPS = "[expiry]\nsweep_interval = 3600\n"
HEAD = (
    "driver, engine",
    "one by one: messages/s",
    "p50 ms",
    "p99 ms",
    "batches of 100: messages/s",
    "publish only, 1: messages/s",
    f"publish only, {MANY_PUBLISHERS}",
    "store operations/s, 1 reader",
    f"{MANY_READERS} readers",
    "more",
    "gaps",
)


class Bench:
    """The measurements of one server. Each uses its own project, whose log is not trimmed yet."""

    def __init__(self, uri: str, server: ZqServer, arguments: argparse.Namespace) -> None:
        self._uri, self._server = uri, server
        self._seconds, self._size = arguments.seconds, arguments.size
        self.gaps = 0

    @contextmanager
    def run(self, project: str, batch: int, publishers: int, readers: int) -> Iterator[Run]:
        """Yield a run with publishers and readers of the project's topic."""
        with ExitStack() as stack:
            writing = [Publisher(self._server, project, "bench", batch, self._size) for _ in range(publishers)]
            reading = [Reader(self._server, project, "/v2/topics/bench/stream") for _ in range(readers)]
            for line in (*writing, *reading):
                stack.callback(line.close)
            yield Run(writing, reading)
            self.gaps += sum(reader.gaps for reader in reading)

    def flow(self, project: str, batch: int, publishers: int, readers: int) -> Flow:
        """Run publishers at full speed and return the flow."""
        with self.run(project, batch, publishers, readers) as run:
            return run.at_full_speed(self._seconds)

    def operations(self, readers: int) -> float:
        """Return the store's operations per second."""
        with counter(self._uri, self._server) as count, self.run("paced", PACED, 1, readers) as run:
            before = count()
            flow = run.at(RATE, self._seconds)
            return (count() - before) / flow.took

    def row(self) -> list[str]:
        """Return the cells of a row, except the first."""
        self.flow("warm", 1, 1, 1)
        # Operations are first, while the store has no other work: batches trimmed from full logs are removed in the
        # background.
        pairs = [(self.operations(1), self.operations(MANY_READERS)) for _ in range(ROUNDS)]
        single = self.flow("single", 1, 1, 1)
        cuts = [cut * 1e3 for cut in statistics.quantiles(single.latencies, n=100)]
        rates = [self.flow("batches", BATCH, 1, 1).rate]
        rates += [self.flow(f"only{some}", BATCH, some, 0).rate for some in (1, MANY_PUBLISHERS)]
        one, many = (statistics.median(side) for side in zip(*pairs, strict=True))
        cells = [f"{single.rate:,.0f}", f"{cuts[49]:.2f}", f"{cuts[98]:.2f}", *(f"{rate:,.0f}" for rate in rates)]
        return [*cells, f"{one:.0f}", f"{many:.0f}", f"{many / one - 1:+.1%}", str(self.gaps)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description=__doc__)
    parser.add_argument("--drivers", nargs="+", default=["rocksdb", "redis", "mongodb"], help="as in tests/stores.py")
    parser.add_argument("--engines", nargs="+", default=["gunicorn", "granian"])
    parser.add_argument("--seconds", type=float, default=4, help="length of one measurement")
    parser.add_argument("--size", type=int, default=100, help="characters of a body")
    arguments = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|", flush=True)
    stores = Stores()
    for driver in arguments.drivers:
        for engine in arguments.engines:
            with tempfile.TemporaryDirectory() as folder:
                uri = stores.empty(driver, Path(folder), "a")
                with ZqServer(uri, engine=engine, config=NO_SWEEPS) as server:
                    wait_for(server.ready, 10, "the server is ready")
                    row = Bench(uri, server, arguments).row()
            print("| " + " | ".join([f"{driver}, {engine}", *row]) + " |", flush=True)
    stores.close()


if __name__ == "__main__":
    main()
