# SPDX-License-Identifier: Apache-2.0
"""The Parquet tables of an archive.

- ``finished``: one row per history entry, partitioned by project, queue, day of finishing, and batch.
- ``posted``: one row per message, without its body, partitioned by project, queue, day of posting, and batch.
- ``archived``: one row per queue with the time up to which the other tables are complete, partitioned by project and
  queue.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

# Columns that identify a queue, with their types.
QUEUE_COLUMNS: Final = "project string, queue string"
# Columns that partition the tables, with their types.
PARTITION_COLUMNS: Final = f"{QUEUE_COLUMNS}, day date, batch string"
# Schema of each table.
SCHEMAS: Final[Mapping[str, str]] = {
    "finished": (
        "id string, seq long, body string, created timestamp, ttl int, claim_count int, origin string, "
        f"origin_claim_count int, reason string, outcome string, finished timestamp, {PARTITION_COLUMNS}"
    ),
    "posted": f"id string, seq long, created timestamp, ttl int, {PARTITION_COLUMNS}",
    "archived": f"at timestamp, {QUEUE_COLUMNS}",
}


def column_names(table: str) -> list[str]:
    return [column.split()[0] for column in SCHEMAS[table].split(", ")]


def write(rows: DataFrame, path: str, table: str) -> None:
    """Write rows and replace their partitions, so that a repeated batch is stored once."""
    parts = [name for name in ("project", "queue", "day", "batch") if name in column_names(table)]
    writer = rows.select(column_names(table)).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*parts).parquet(f"{path}/{table}")


def add_former_rows(rows: DataFrame, path: str, table: str, batch: str) -> DataFrame:
    """Add the rows that an earlier attempt of the same batch has stored and ``rows`` lacks.

    A row is missing in ``rows`` if the server has deleted its message since the earlier attempt.
    """
    reader = rows.sparkSession.read.schema(SCHEMAS[table]).option("basePath", f"{path}/{table}")
    try:
        before = reader.parquet(f"{path}/{table}/project=*/queue=*/day=*/batch={batch}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return rows
    kept = before.localCheckpoint()  # read now, because the files are about to be replaced
    return rows.unionByName(kept.join(rows.select("seq"), "seq", "left_anti"))


def read(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Read a table. Return no rows if the table does not exist. Raises ``AnalysisException`` if there is no archive."""
    reader = spark.read.schema(SCHEMAS[table])
    try:
        return reader.parquet(f"{path}/{table}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND" or table == "archived":
            raise
        return spark.createDataFrame([], SCHEMAS[table])
