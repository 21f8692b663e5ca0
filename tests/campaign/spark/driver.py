# SPDX-License-Identifier: Apache-2.0
"""A Spark driver that a test kills, with a stream for each queue.

``python -m tests.campaign.spark.driver url project folder queue...`` starts it.
"""

import sys
import time
from pathlib import Path
from typing import Any

from tests.spark.conftest import prepared, session


def held_up(folder: str) -> Any:
    """Return a SQL function that reports its start, and waits while the file ``hold`` exists."""
    from pyspark.sql.functions import udf

    def passed(body: str) -> str:
        Path(folder, "reached").touch()
        while Path(folder, "hold").exists():
            time.sleep(0.02)
        return body

    return udf(passed, "string", useArrow=False)


def copying(spark: Any, options: dict[str, str], queue: str, folder: str) -> Any:
    """Return a stream that copies a queue to its output queue exactly once."""
    batches = {"maxMessagesPerBatch": 30, "claimSize": 10, "numPartitions": 1}
    source = spark.readStream.format("zq").options(**options, **batches, consumer="copy")
    rows = source.load(queue).withColumn("body", held_up(f"{folder}/{queue}")("body"))
    sink = rows.writeStream.format("zq").options(**options, ackColumn="claim", queue=f"{queue}-out")
    return sink.option("checkpointLocation", f"{folder}/{queue}/checkpoint").trigger(availableNow=True)


def main() -> None:
    url, project, folder, *queues = sys.argv[1:]
    prepared()
    spark = session(f"{folder}/warehouse")
    options = {"url": url, "project": project, "retryFor": "30"}
    for query in [copying(spark, options, queue, folder).start() for queue in queues]:
        query.awaitTermination()


if __name__ == "__main__":
    main()
