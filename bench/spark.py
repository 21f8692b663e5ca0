# SPDX-License-Identifier: Apache-2.0
"""Throughput of Spark with zq: ``python -m bench.spark [--messages 100000] [--store URI]``.

One server has limits for batch jobs (1,000 messages a claim, 4 MiB a post). Spark runs in one process with two tasks at
a time, bodies of 100 bytes, and batches and rounds of 20,000. Each line has messages a second and the server's
processor time; "Spark alone" is the same without a server. The first job of a kind starts workers, so a small one
precedes each.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import ZqServer
from tests.spark.conftest import prepared, session
from zq.client import Client

LIMITS = """[transport]
max_messages_post_size = 4194304
"""
BATCH = 20_000
WARM = 2_000
TICKS = os.sysconf("SC_CLK_TCK")


class Bench:
    """A session, a server and an empty project."""

    def __init__(self, spark: Any, server: ZqServer, client: Client, folder: str) -> None:
        self.spark = spark
        self.server = server
        self.client = client
        self.folder = folder
        self.place = {"url": server.url, "project": "bench"}

    def rows(self, count: int) -> Any:
        """Return cached rows."""
        text = "concat(repeat('x', 90), lpad(cast(id as string), 10, '0'))"
        frame = self.spark.range(0, count, 1, 2).selectExpr(f"{text} body").cache()
        frame.count()
        return frame

    def write(self, frame: Any, queue: str) -> None:
        frame.write.format("zq").options(**self.place).mode("append").save(queue)

    def stream(self, source: str, sink: str, **more: str) -> None:
        """Run a stream until all messages are processed."""
        options = {"consumer": "bench", "maxMessagesPerBatch": str(BATCH)}
        rows = self.spark.readStream.format("zq").options(**self.place, **options).load(source)
        if sink == "zq":
            rows = rows.select("body", "claim")
            more = {**self.place, **more, "ackColumn": "claim"}
        writer = rows.writeStream.format(sink).options(**more)
        writer = writer.option("checkpointLocation", f"{self.folder}/{source}-{sink}").trigger(availableNow=True)
        writer.start().awaitTermination()

    def pipeline(self, queue: str, stage: Callable[[Any], Any]) -> None:
        from zq.spark.pipeline import Pipeline

        size: dict[str, Any] = {"max_messages": BATCH, "wait": 0}
        Pipeline(source=queue, stages=[stage], sink="out", **self.place, **size).run(self.spark, until_empty=True)

    def seconds(self) -> float:
        """Return the processor time of the server's processes."""
        total = 0
        for pid in (self.server.pid, *self.server.worker_pids):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    @contextmanager
    def timed(self, what: str, count: int) -> Iterator[None]:
        """Measure the block and print a line."""
        began, used = time.monotonic(), self.seconds()
        yield
        took, used = time.monotonic() - began, self.seconds() - used
        print(f"{what}: {count / took:,.0f}/s, {took:.1f} s; server {used * 1e6 / count:.0f} us a message", flush=True)


def narrow(frame: Any) -> Any:
    """Transform the frame inside the JVM."""
    return frame.selectExpr("upper(body) body")


def in_python(frame: Any) -> Any:
    """Apply a Python function to each row."""
    from pyspark.sql.functions import udf

    return frame.select(udf(lambda body: body[::-1], "string", useArrow=False)("body").alias("body"))


def measure(bench: Bench, count: int) -> None:
    """Print all lines."""
    warm, frame = bench.rows(WARM), bench.rows(count)
    bench.write(warm, "warm")
    for turn in range(2):
        with bench.timed("write", count):
            bench.write(frame, f"in{turn}")
    bench.stream("warm", "noop")
    with bench.timed("read and settle", count):
        bench.stream("in0", "noop")
    bench.write(warm, "warm")
    bench.stream("warm", "zq", queue="out")
    with bench.timed("read, write and settle in one step", count):
        bench.stream("in1", "zq", queue="out")
    for name, stage in (("narrow", narrow), ("in Python", in_python)):
        bench.write(warm, "warm")
        bench.pipeline("warm", stage)
        bench.write(frame, stage.__name__)
        with bench.timed(f"pipeline, a stage {name}", count):
            bench.pipeline(stage.__name__, stage)
        with bench.timed(f"Spark alone, a stage {name}", count):
            stage(frame).write.format("noop").mode("overwrite").save()
    bench.write(frame, "look")
    with bench.timed("look", count):
        bench.spark.read.format("zq").options(**bench.place).load("look").count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--store", default="", help="an empty one; the embedded store if none is named")
    given = parser.parse_args()
    prepared()
    with tempfile.TemporaryDirectory() as folder:
        spark = session(f"{folder}/warehouse")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10_000)
        store = given.store or f"rocksdb://{folder}/store"
        with ZqServer(store, config=LIMITS) as server, Client(server.url, "bench") as client:
            measure(Bench(spark, server, client, folder), given.messages)
        spark.stop()


if __name__ == "__main__":
    main()
