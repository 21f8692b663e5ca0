# SPDX-License-Identifier: Apache-2.0
"""The driver of the kill run, a pipeline until nothing is left: ``python -m bench.kill_run_driver url project
master round``.

``raw`` through ``parse`` and ``enrich`` to ``clean``; events that are no JSON go to ``raw-dlq``.
"""

import sys
import tempfile
from typing import Any

from tests.spark.conftest import prepared, session

# Messages of a claim.
SIZE = 1000


def parse(events: Any) -> Any:
    """Fields of the events; what is none is rejected."""
    from pyspark.sql import functions as F

    from zq.spark.pipeline import ERROR, reject

    fields = events.withColumn("event", F.from_json("body", "n long, kind string"))
    return fields.withColumn(ERROR, reject("event.n is null", "no event"))


def enrich(events: Any) -> Any:
    """With a name from a table, by a join and a function in Python."""
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
