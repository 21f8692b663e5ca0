# SPDX-License-Identifier: Apache-2.0
"""The driver of the kill run: a pipeline that ends when its queue is empty.

``python -m bench.kill_run_driver url project master round``. Events pass from ``raw`` through ``parse`` and ``enrich``
to ``clean``; events that are not JSON are moved to ``raw-dlq``.
"""

import sys
import tempfile
from typing import Any

from tests.spark.conftest import prepared, session

# Number of messages of a claim.
SIZE = 1000


def parse(events: Any) -> Any:
    """Parse the fields of the events, and reject invalid events."""
    from pyspark.sql import functions as F

    from zq.spark.pipeline import ERROR, reject

    fields = events.withColumn("event", F.from_json("body", "n long, kind string"))
    return fields.withColumn(ERROR, reject("event.n is null", "no event"))


def enrich(events: Any) -> Any:
    """Add a name from a table by a join, and a value from a Python function."""
    from pyspark.sql import functions as F

    names = events.sparkSession.createDataFrame([("a", "alpha"), ("b", "beta")], "kind string, name string")
    named = events.select("event.*").join(F.broadcast(names), "kind")
    doubled = F.udf(lambda n: 2 * n, "long", useArrow=False)
    return named.select(F.struct("n", "name", doubled("n").alias("twice")).alias("body"))


def main() -> None:
    url, project, master, most = sys.argv[1:]
    prepared()
    spark = session(tempfile.mkdtemp(), master)

    from zq.spark.pipeline import Pipeline

    place = {"url": url, "project": project, "wait": 1, "retry_for": 120}
    pipeline = Pipeline(
        source="raw",
        stages=[parse, enrich],
        sink="clean",
        dead_letters="raw-dlq",
        max_messages=int(most),
        claim_size=SIZE,
        **place,
    )
    pipeline.run(spark, until_empty=True)


if __name__ == "__main__":
    main()
