# SPDX-License-Identifier: Apache-2.0
"""The Parquet tables of an archive, partitioned by project, queue, day and batch. A batch is one attempt's rows.

- ``finished``: one row per history entry, by the day of finishing.
- ``posted``: one row per message without its body, by the day of posting.
- ``archived``: one row per queue with the time up to which the other tables are complete, partitioned by project and
  queue only.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

# Columns that identify the queue of a row.
HOME: Final = "project string, queue string"
# Columns that partition the tables.
PLACE: Final = f"{HOME}, day date, batch string"
# Columns of each table.
SCHEMAS: Final[Mapping[str, str]] = {
    "finished": (
        "id string, seq long, body string, created timestamp, ttl int, claim_count int, origin string, "
        f"origin_claim_count int, reason string, outcome string, finished timestamp, {PLACE}"
    ),
    "posted": f"id string, seq long, created timestamp, ttl int, {PLACE}",
    "archived": f"at timestamp, {HOME}",
}


def columns(table: str) -> list[str]:
    """Return the columns of a table in order."""
    return [column.split()[0] for column in SCHEMAS[table].split(", ")]


def write(rows: DataFrame, path: str, table: str) -> None:
    """Write rows, replacing all rows of the same partitions, so that a repeated batch is stored once."""
    parts = [name for name in ("project", "queue", "day", "batch") if name in columns(table)]
    writer = rows.select(columns(table)).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*parts).parquet(f"{path}/{table}")


def with_former(rows: DataFrame, path: str, table: str, batch: str) -> DataFrame:
    """Return the rows of a batch, and those rows of its former write that the server may no longer have."""
    reader = rows.sparkSession.read.schema(SCHEMAS[table]).option("basePath", f"{path}/{table}")
    try:
        before = reader.parquet(f"{path}/{table}/project=*/queue=*/day=*/batch={batch}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return rows
    kept = before.localCheckpoint()  # the files are about to be replaced
    return rows.unionByName(kept.join(rows.select("seq"), "seq", "left_anti"))


def read(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Return a table, empty if it was never written. Raises Spark's error if there is no archive."""
    reader = spark.read.schema(SCHEMAS[table])
    try:
        return reader.parquet(f"{path}/{table}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND" or table == "archived":
            raise
        return spark.createDataFrame([], SCHEMAS[table])
