# SPDX-License-Identifier: Apache-2.0
"""Invalid options and schemas are refused before a job runs, with an error that names them."""

import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.blocks import ROOT
from zq.errors import Invalid, NotAuthenticated
from zq.testing import server

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from zq import spark as zq_spark
from zq.spark.options import OptionParser, parse_connection
from zq.spark.source import ZqDataSource

GOOD = {"url": "http://localhost:1", "project": "acme", "queue": "in"}
TEXT = StructType([StructField("body", StringType())])
STREAM = {"consumer": "etl"}
TAIL = {"mode": "tail"}
# Options that are invalid for a use (sink, stream or table), and a part of the error message.
WRONG: list[tuple[str, dict[str, str], str]] = [
    ("writer", {"bodyColumn": "text"}, "Option bodyColumn names the column text, but the data has body"),
    ("writer", {"ttlColumn": "body"}, "Option ttlColumn requires a column of type integers, but body is string"),
    ("writer", {"ackColumn": "claims"}, "Option ackColumn names the column claims"),
    ("writer", {"ttl": "soon"}, "Option ttl must be an integer"),
    ("writer", {"idColumn": "id"}, "Option idColumn is not needed"),
    ("writer", {"idempotentKey": "x"}, "There is no option idempotentkey. Did you mean idempotencyKey"),
    ("writer", {"idempotencyKey": "a/b"}, "Option idempotencyKey must be 1 to 64 characters"),
    ("writer", {"url": "localhost"}, "Option url must begin"),
    ("writer", {"project": ""}, "Option project is missing"),
    ("writer", {"queue": ""}, "Option queue is missing"),
    ("writer", {"producer": "x"}, "option producer for streams"),
    ("writer", {"topic": "news"}, "Option topic is not supported by the sink"),
    ("writer", {"consumer": "etl"}, "Option consumer has no effect on the sink"),
    ("streamReader", {}, "Option consumer is missing"),
    ("streamReader", {**STREAM, "claimTtl": "5"}, "Option claimTtl must be an integer from 60"),
    ("streamReader", {**STREAM, "bodyType": "json"}, "Option bodyType must be one of string, binary, variant"),
    ("streamReader", {**STREAM, "maxMessagePerBatch": "7"}, "Did you mean maxMessagesPerBatch"),
    ("streamReader", {**STREAM, "topic": "news"}, "Option topic requires the option mode=tail"),
    ("streamReader", {**STREAM, "queue": ""}, "give option queue"),
    ("streamReader", {**STREAM, "state": "all"}, "Option state has no effect on a stream in mode claim"),
    ("streamReader", {**STREAM, "ackColumn": "claim"}, "Option ackColumn has no effect on a stream in mode claim"),
    ("streamReader", {**STREAM, **TAIL}, "Option consumer has no effect on a stream in mode tail"),
    ("streamReader", {**TAIL, "state": "live"}, "Option state must be one of all, history"),
    ("streamReader", {**TAIL, "startingOffset": "begin"}, "Option startingOffset must be an integer"),
    ("reader", {"state": "dead"}, "Option state must be one of live, all, history"),
    ("reader", {"topic": "news"}, "Option topic and a queue are both set"),
    ("reader", {"startingOffset": "1"}, "Option startingOffset has no effect on spark.read"),
    ("reader", {"mode": "claim"}, "Option mode has no effect on spark.read"),
    ("reader", {"numPartitions": "0"}, "Option numPartitions must be an integer from 1"),
]
BODY_TYPE = "Column body of the schema must be of type string. Option bodyType selects its type"
# Columns with a type that the source does not have.
MISFITS = [
    (StructField("size", StringType()), "column size, but this source has only the columns id, seq, body"),
    (StructField("body", IntegerType()), BODY_TYPE),
    (StructField("seq", StringType()), "Column seq of the schema must be of type bigint"),
    (StructField("body", StringType(), nullable=False), "Column body of the schema must not be NOT NULL"),
]


def refusal(use: str, options: dict[str, str], schema: StructType) -> str:
    """Return the error message for these options, or an empty string."""
    arguments: dict[str, Any] = {"overwrite": False} if use == "writer" else {}
    try:
        getattr(ZqDataSource({**GOOD, **options}), use)(schema, **arguments)
    except Invalid as refused:
        return str(refused)
    return ""


def test_wrong_options_are_refused_by_their_names() -> None:
    """The cases include missing columns, columns of the wrong type, and options of another use."""
    given = [(row, refusal(row[0], row[1], TEXT if row[0] == "writer" else StructType())) for row in WRONG]
    assert [(row, sentence) for row, sentence in given if row[2] not in sentence] == []


def test_a_schema_that_does_not_fit_is_refused_by_the_column() -> None:
    """Otherwise, a task would fail later with an obscure error."""
    given = [(part, refusal("reader", {}, StructType([column]))) for column, part in MISFITS]
    assert [(part, sentence) for part, sentence in given if part not in sentence] == []


def test_the_sink_only_appends() -> None:
    """Overwriting would need a purge outside the commit; the output mode ``complete`` is refused too."""
    for make in (ZqDataSource(GOOD).writer, ZqDataSource(GOOD).streamWriter):
        with pytest.raises(Invalid, match="The sink supports only mode append"):
            make(TEXT, overwrite=True)


def test_a_token_is_not_shown() -> None:
    writer = ZqDataSource({**GOOD, "token": "secret"}).writer(TEXT, overwrite=False)
    assert "secret" not in repr(writer.options)


def test_a_token_comes_from_an_option_or_from_a_file(tmp_path: Path) -> None:
    """Each process reads the file itself.

    Both options together are refused, and so is a file that others can read.
    """
    file = tmp_path / "token"
    file.write_text("zq_secret\n")
    file.chmod(0o600)
    found = parse_connection(OptionParser({**GOOD, "tokenFile": str(file)}))
    assert (found.secret(), found.token) == ("zq_secret", None)
    assert b"zq_secret" not in pickle.dumps(found)
    assert parse_connection(OptionParser({**GOOD, "token": "zq_given"})).secret() == "zq_given"
    assert parse_connection(OptionParser(GOOD)).secret() is None
    file.chmod(0o644)
    with pytest.raises(Invalid, match="chmod 600"):
        found.secret()
    with pytest.raises(Invalid, match="both set"):
        parse_connection(OptionParser({**GOOD, "token": "zq_given", "tokenFile": str(file)}))


def test_a_connection_sends_its_token_and_takes_up_a_rotated_one(tmp_path: Path) -> None:
    """A process of Spark runs for several batches and has used the former token of the file."""
    with server(auth_strategy="token") as running:
        place = {"url": running.url, "project": "acme", "retryFor": "0"}
        with pytest.raises(NotAuthenticated):
            parse_connection(OptionParser({**place, "token": "zq_wrong"})).client().ping()
        file = tmp_path / "token"
        former, later = running.token("acme"), running.token("acme")
        assert (
            parse_connection(OptionParser({**place, "token": former})).client().whoami()["credential"] == former[3:13]
        )
        file.write_text(former)
        file.chmod(0o600)
        found = parse_connection(OptionParser({**place, "tokenFile": str(file)}))
        assert found.client().whoami()["credential"] == former[3:13]
        assert found.client() is found.client()
        running.revoke(former)
        file.write_text(later)
        assert found.client().whoami()["credential"] == later[3:13]


def test_the_module_that_spark_imports_imports_nothing_at_first() -> None:
    """The module imports nothing until zq is used.

    Spark imports it for every unknown format, even if the requirements of zq are missing. If zq is then used, the
    module prints the reason, because Spark drops the error.
    """
    program = (
        "import sys, pyspark_zq\n"
        "assert not [name for name in sys.modules if name.startswith(('zq', 'pyspark.', 'pyarrow', 'httpx'))]\n"
        "sys.modules['msgspec'] = None\n"
        "assert not hasattr(pyspark_zq, 'DefaultSource')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f'Spark cannot load the source "zq" with {sys.executable}: ')
    assert done.stderr.endswith("or name another Python in PYSPARK_PYTHON.\n")


def test_registering_warns_of_speculation(recwarn: pytest.WarningsRecorder) -> None:
    """With speculation, one of two attempts of a writing task fails."""
    registered: list[Any] = []
    session = SimpleNamespace(conf={}, dataSource=SimpleNamespace(register=registered.append))
    zq_spark.register(session)  # type: ignore[arg-type]
    assert (registered, recwarn.list) == ([ZqDataSource], [])
    session.conf = {"spark.speculation": "true"}
    with pytest.warns(UserWarning, match="spark.speculation is on"):
        zq_spark.register(session)  # type: ignore[arg-type]
