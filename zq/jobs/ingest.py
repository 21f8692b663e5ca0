# SPDX-License-Identifier: Apache-2.0
"""The job ``ingest``, which stores the rows of files as messages, each file at most once per idempotency key.

Each file is stored by one commit, whose producer name is derived from the key, the queue and the file's path. A
repeated run skips the files whose producers have committed.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

import click
import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from zq.cli.progress import QUIET, show_progress
from zq.cli.session import Session, pass_session
from zq.client import Client
from zq.errors import Invalid, InvalidBody, NotFound
from zq.jobs.cli_support import JobCommand, source_options, spark_session
from zq.spark.rows import check_json

# File formats by file name extension.
FORMATS: Final = {"json": "json", "jsonl": "json", "ndjson": "json", "csv": "csv", "parquet": "parquet"}
# File name extensions of compressed files.
COMPRESSED_SUFFIX: Final = re.compile(r"\.(gz|bz2|zst|snappy|lz4|deflate)$")
# Schema of a parsed value: the body, or the reason why the value is not valid.
PARSED_TYPE: Final = "struct<body: binary, reason: string>"
# Column with the text of a CSV row that has a wrong number of fields.
INVALID_ROW: Final = "_zq_torn"
# Maximum size of the part of a file that a Spark task reads. A task stores all its messages in one stage.
PART_SIZE: Final = "16m"


@click.command("ingest", cls=JobCommand)
@click.argument("paths", nargs=-1, required=True)
@click.option("--queue", required=True, metavar="NAME", help="Target queue.")
@click.option(
    "--format", "kind", type=click.Choice(["json", "csv", "parquet"]), help="File format (default: by file name)."
)
@click.option("--body", "column", metavar="COLUMN", help="Column with the body (default: the whole row as an object).")
@click.option("--parse", is_flag=True, help="Parse the text of COLUMN as JSON.")
@click.option("--multiline", is_flag=True, help="Allow line ends in quoted CSV fields.")
@click.option("--ttl", type=click.IntRange(1), metavar="SECONDS", help="Message ttl.")
@click.option("--delay", type=click.IntRange(0), metavar="SECONDS", help="Seconds until the messages can be claimed.")
@click.option("--name", default="ingest", metavar="TEXT", help="Name of the job.")
@click.option("--key", metavar="TEXT", help="Idempotency key (default: the job's name).")
@click.option(
    "--rejected", metavar="PATH", help="Folder for rows that do not parse. Without it, such rows fail the job."
)
@click.option("--strict", is_flag=True, help="Write rows that do not parse to the folder, then fail the job.")
@QUIET
@pass_session
def ingest(session: Session, /, paths: Sequence[str], queue: str, name: str, key: str | None, **more: Any) -> None:
    """Store the rows of files as messages.

    PATHS are files, folders or glob patterns in any file system that Spark supports.
    """
    rejected, strict = more.pop("rejected"), more.pop("strict")
    sink = {**source_options(session), "queue": queue}
    sink |= {option: str(more[option]) for option in ("ttl", "delay") if more[option] is not None}
    counts = dict.fromkeys(("files", "stored_before", "messages", "rejected"), 0)
    with (
        show_progress("ingest", more["quiet"]) as progress,
        spark_session(f"zq-{name}", progress, files_maxPartitionBytes=PART_SIZE) as spark,
    ):
        progress.stage = "listing files"
        found = list_files(spark, paths, more["kind"])
        for number, (file, kind) in enumerate(found, 1):
            progress.stage = f"file {number:,} of {len(found):,}, {file.rpartition('/')[2]}"
            producer = producer_name(key or name, queue, file)
            if published_count(session.client, producer) is not None:
                counts["stored_before"] += 1
                continue
            rows = read_rows(spark, file, kind, more["column"], more["parse"], more["multiline"])
            place = rejected and f"{rejected}/{producer}"
            with cache_rows(rows):
                counts["rejected"] += check_rows(rows, file, place, strict or not rejected)
                valid_bodies(rows).write.format("zq").options(**sink, idempotencyKey=producer).mode("append").save()
            counts["files"] += 1
            progress.add(published_count(session.client, producer) or 0)
        counts["messages"] = progress.count
    session.out.result({"queue": queue, **counts})


def list_files(spark: SparkSession, paths: Sequence[str], kind: str | None = None) -> list[tuple[str, str]]:
    """Return the name and format of each file in the paths, ordered by name. Raises ``Invalid`` if there is no file."""
    listed = spark.read.option("recursiveFileLookup", "true").text(list(paths)).inputFiles()
    found = [(unquote(file), kind or _kind(unquote(file))) for file in sorted(set(listed))]
    if not found:
        raise Invalid(f"There are no files in {', '.join(paths)}.")
    return found


def producer_name(key: str, queue: str, file: str) -> str:
    """Return the producer name for a file. Characters of ``key`` that are invalid in a producer name are replaced."""
    digest = hashlib.sha256("\n".join((key, queue, file)).encode()).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_-]', '-', key)[:31]}.{digest[:32]}"


def published_count(client: Client, producer: str) -> int | None:
    """Return the number of messages that a producer has published, or ``None`` if the producer has no commit."""
    try:
        return client.committed(producer).published
    except NotFound:
        return None


def read_rows(
    spark: SparkSession, file: str, kind: str, column: str | None = None, parse: bool = False, multiline: bool = False
) -> DataFrame:
    """Parse a file into rows.

    A valid row has a ``body``. For an invalid row, ``reason`` is the error and ``raw`` is the text. Raises ``Invalid``
    if ``column`` is missing.
    """
    path = re.sub(r"([\\{}\[\]*?])", r"\\\1", file)  # Spark would expand glob characters
    if kind == "json":
        return parse_lines(spark.read.text(path), column)
    frame = spark.read.parquet(path) if kind == "parquet" else read_csv(spark, path, multiline)
    if not frame.columns:  # an empty file
        return spark.createDataFrame([], "body string, raw string, reason string")
    return to_bodies(frame, column, parse, file)


def read_csv(spark: SparkSession, path: str, multiline: bool) -> DataFrame:
    """Read a CSV file. All columns are strings.

    If a row has more or fewer fields than the header, the column ``INVALID_ROW`` contains the text of the row.
    """
    options = {"header": "true", "escape": '"', "mode": "PERMISSIVE", "columnNameOfCorruptRecord": INVALID_ROW}
    reader = spark.read.options(**options).option("multiLine", multiline)
    named = reader.csv(path).columns
    columns = [*named, INVALID_ROW] if named else []  # Spark rejects a schema with only this column
    return reader.schema(StructType([StructField(name, StringType()) for name in columns])).csv(path)


def parse_lines(frame: DataFrame, member: str | None = None) -> DataFrame:
    """Parse each line as a JSON value and return message bodies. Skip blank lines.

    If ``member`` is set, the body is this member of the value. Otherwise, the body is the whole value.
    """
    parsed = frame.where("trim(value) <> ''").withColumn("parsed", parser(member)(F.col("value").cast("binary")))
    return parsed.selectExpr("parsed.body", "value raw", "parsed.reason")


def to_bodies(frame: DataFrame, column: str | None = None, parse: bool = False, file: str = "the data") -> DataFrame:
    """Convert rows to message bodies.

    If ``column`` is set, the body is the value of this column. Otherwise, the body is an object with all columns.
    Raises ``Invalid`` if the column is missing.
    """
    columns = [name for name in frame.columns if name != INVALID_ROW]
    if column is not None and column not in columns:
        raise Invalid(f"There is no column {column} in {file}: it has {', '.join(columns)}.")
    quoted = {name: F.col(f"`{name.replace('`', '``')}`") for name in frame.columns}
    torn, unfit = F.lit(None).cast("string"), F.lit(None).cast("string")
    if INVALID_ROW in quoted:
        torn = quoted[INVALID_ROW]
        # Spark detects a wrong number of fields only if all columns are read.
        read = F.length(F.concat_ws("", *(quoted[name] for name in columns))) >= 0
        unfit = F.when(torn.isNotNull() & read, F.lit("it has more or fewer columns than the header"))
    if column is None:
        body = F.struct(*(quoted[name] for name in columns))
        return frame.select(body.alias("body"), torn.alias("raw"), unfit.alias("reason"))
    if not parse:
        binary = dict(frame.dtypes)[column] == "binary"
        text = F.base64(quoted[column]) if binary else quoted[column]
        return frame.select(text.alias("body"), torn.alias("raw"), unfit.alias("reason"))
    parsed = frame.withColumn("parsed", parser(None)(quoted[column].cast("binary")))
    raw = F.coalesce(torn, quoted[column].cast("string"))
    return parsed.select("parsed.body", raw.alias("raw"), F.coalesce(unfit, F.col("parsed.reason")).alias("reason"))


@contextmanager
def cache_rows(rows: DataFrame) -> Iterator[None]:
    """Cache the rows while the ``with`` block runs.

    Spark then stores exactly the rows that were checked, even if the file changes after the check.
    """
    rows.persist()
    try:
        yield
    finally:
        rows.unpersist()


def valid_bodies(rows: DataFrame) -> DataFrame:
    return rows.where("reason is null").select("body")


def check_rows(rows: DataFrame, file: str, place: str | None, strict: bool) -> int:
    """Return the number of invalid rows, and write these rows to the folder ``place``, if given.

    If ``strict`` is true and a row is invalid, raise ``InvalidBody``.
    """
    torn = rows.where("reason is not null").select(F.lit(file).alias("file"), "raw", "reason")
    [found] = torn.agg(F.count("reason").alias("count"), F.first("reason").alias("reason")).collect()
    if found["count"] and place:
        torn.write.mode("overwrite").json(place)
    if found["count"] and strict:
        count = "A row is" if found["count"] == 1 else f"{found['count']} rows are"
        raise InvalidBody(f"{count} invalid, so no row of {file} was stored: {found.reason}.")
    return int(found["count"])


def parser(member: str | None) -> Any:
    """Return a SQL function that applies ``parse_json`` to each value of a column."""

    def parse(texts: pa.Array) -> pa.Array:
        kind = pa.struct([("body", pa.binary()), ("reason", pa.string())])
        return pa.array([parse_json(text or b"null", member) for text in texts.to_pylist()], type=kind)

    wrap: Any = arrow_udf
    return wrap(parse, PARSED_TYPE)


def parse_json(text: bytes, member: str | None) -> dict[str, Any]:
    """Validate a JSON text. Return ``{"body": ...}`` if it is valid, else ``{"reason": ...}``."""
    try:
        if member is not None:
            members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if member not in members:
                return {"reason": f"it has no member {member}"}
            text = bytes(members[member])
        check_json(text)  # Raw is not validated
    except InvalidBody as error:
        return {"reason": str(error).removesuffix(".")}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return {"reason": str(error)}
    except RecursionError:
        return {"reason": "it is nested too deeply"}
    return {"body": text}


def _kind(file: str) -> str:
    ending = COMPRESSED_SUFFIX.sub("", file.rpartition("/")[2].lower()).rpartition(".")[2]
    if ending not in FORMATS:
        raise Invalid(f"The name of {file} does not show its format: give --format.")
    return FORMATS[ending]


if __name__ == "__main__":
    ingest()
