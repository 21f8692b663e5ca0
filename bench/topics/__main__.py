# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.topics [--drivers D ...] [--engines E ...]``: a line for each driver and engine.

One by one: a publisher that sends one message when it has the answer to the last, and a reader of a stream; the time is
from sending to having it there. Batches: the same with a hundred at a time. Publish only: nobody reads. Operations: of
the store, while one publisher sends at a fixed rate to one and to ten readers. It asserts nothing but that each message
came: machines are noisy, so only figures of one run may be compared.
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
# Batches per second while operations are counted, of ``PACED`` messages.
RATE = 50.0
PACED = 10
# Of counting operations, in turns, for a store has work of its own.
ROUNDS = 3
# A round costs operations of its own, and would fall into some of the measurements.
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
    """The measurements of one server. Each has a project of its own, and so a log that nothing falls off yet."""

    def __init__(self, uri: str, server: ZqServer, arguments: argparse.Namespace) -> None:
        self._uri, self._server = uri, server
        self._seconds, self._size = arguments.seconds, arguments.size
        self.gaps = 0

    @contextmanager
    def run(self, project: str, batch: int, publishers: int, readers: int) -> Iterator[Run]:
        """Everybody is there to publish to and read the project's topic."""
        with ExitStack() as stack:
            writing = [Publisher(self._server, project, "bench", batch, self._size) for _ in range(publishers)]
            reading = [Reader(self._server, project, "/v2/topics/bench/stream") for _ in range(readers)]
            for line in (*writing, *reading):
                stack.callback(line.close)
            yield Run(writing, reading)
            self.gaps += sum(reader.gaps for reader in reading)

    def flow(self, project: str, batch: int, publishers: int, readers: int) -> Flow:
        """As fast as can be."""
        with self.run(project, batch, publishers, readers) as run:
            return run.at_full_speed(self._seconds)

    def operations(self, readers: int) -> float:
        """Of the store, per second."""
        with counter(self._uri, self._server) as count, self.run("paced", PACED, 1, readers) as run:
            before = count()
            flow = run.at(RATE, self._seconds)
            return (count() - before) / flow.took

    def row(self) -> list[str]:
        """The cells of a line but the first."""
        self.flow("warm", 1, 1, 1)
        # First, while the store has nothing else to do: what has fallen off full logs is removed behind their backs.
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
