# SPDX-License-Identifier: Apache-2.0
"""Options and schemas that do not fit are refused before anything runs, by a sentence that names them."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import ROOT
from zq.errors import Invalid, NotAuthenticated
from zq.testing import server

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from zq import spark as zq_spark
from zq.spark.options import Given, connection
from zq.spark.source import ZqDataSource

GOOD = {"url": "http://localhost:1", "project": "acme", "queue": "in"}
TEXT = StructType([StructField("body", StringType())])


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bodyColumn": "text"}, "Option bodyColumn names the column text, and the data has body"),
        ({"ttlColumn": "body"}, "Option ttlColumn needs a column of integers, and body is string"),
        ({"ackColumn": "claims"}, "Option ackColumn names the column claims"),
        ({"ttl": "soon"}, "Option ttl must be an integer"),
        ({"idColumn": "id"}, "Option idColumn is not needed"),
        ({"idempotentKey": "x"}, "There is no option idempotentkey. Is idempotencyKey meant"),
        ({"idempotencyKey": "a/b"}, "Option idempotencyKey must have 1 to 64 characters"),
        ({"url": "localhost"}, "Option url must begin"),
        ({"project": ""}, "Option project is missing"),
        ({"queue": ""}, "Option queue is missing"),
        ({"producer": "x"}, "option producer for streams"),
        ({"topic": "news"}, "Option topic is of no use to the sink"),
        ({"consumer": "etl"}, "Option consumer has no effect on the sink"),
    ],
)
def test_the_sink_refuses_wrong_options(wrong: dict[str, str], sentence: str) -> None:
    """Also columns that are not there, or of the wrong type."""
    with pytest.raises(Invalid, match=sentence):
        ZqDataSource({**GOOD, **wrong}).writer(TEXT, overwrite=False)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"consumer": ""}, "Option consumer is missing"),
        ({"claimTtl": "5"}, "Option claimTtl must be an integer from 60"),
        ({"bodyType": "json"}, "Option bodyType must be one of string, binary, variant"),
        ({"maxMessagePerBatch": "7"}, "Is maxMessagesPerBatch meant"),
        ({"topic": "news"}, "Option topic needs mode tail"),
        ({"queue": ""}, "give option queue"),
        ({"state": "all"}, "Option state has no effect on a stream in mode claim"),
        ({"ackColumn": "claim"}, "Option ackColumn has no effect on a stream in mode claim"),
        ({"mode": "tail"}, "Option consumer has no effect on a stream in mode tail"),
    ],
)
def test_streams_refuse_wrong_options(wrong: dict[str, str], sentence: str) -> None:
    """Also those of something else."""
    source = ZqDataSource({**GOOD, "consumer": "etl", **wrong})
    with pytest.raises(Invalid, match=sentence):
        source.streamReader(StructType())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"state": "dead"}, "Option state must be one of live, all, history"),
        ({"topic": "news"}, "Option topic and a queue are both given"),
        ({"startingOffset": "1"}, "Option startingOffset has no effect on spark.read"),
        ({"mode": "claim"}, "Option mode has no effect on spark.read"),
        ({"numPartitions": "0"}, "Option numPartitions must be an integer from 1"),
    ],
)
def test_tables_refuse_wrong_options(wrong: dict[str, str], sentence: str) -> None:
    """Those of reading."""
    with pytest.raises(Invalid, match=sentence):
        ZqDataSource({**GOOD, **wrong}).reader(StructType())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"state": "live"}, "Option state must be one of all, history"),
        ({"startingOffset": "begin"}, "Option startingOffset must be an integer"),
    ],
)
def test_tails_refuse_wrong_options(wrong: dict[str, str], sentence: str) -> None:
    """Those of streams that take nothing."""
    with pytest.raises(Invalid, match=sentence):
        ZqDataSource({**GOOD, "mode": "tail", **wrong}).streamReader(StructType())


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("size", StringType(), "The schema has a column size, and this source has id, seq, body"),
        ("body", IntegerType(), "Column body of the schema must be of type string. Option bodyType chooses its type"),
        ("seq", StringType(), "Column seq of the schema must be of type bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(name: str, kind: Any, sentence: str) -> None:
    """Rather than failing deep inside a task."""
    with pytest.raises(Invalid, match=sentence):
        ZqDataSource(GOOD).reader(StructType([StructField(name, kind)]))


def test_a_schema_that_promises_values_is_refused() -> None:
    """Spark would fail in a task."""
    with pytest.raises(Invalid, match="Column body of the schema must not be NOT NULL"):
        ZqDataSource(GOOD).reader(StructType([StructField("body", StringType(), nullable=False)]))


def test_the_sink_only_appends() -> None:
    """Overwriting would be a purge that no commit holds; output mode complete is refused alike."""
    for make in (ZqDataSource(GOOD).writer, ZqDataSource(GOOD).streamWriter):
        with pytest.raises(Invalid, match="The sink only appends"):
            make(TEXT, overwrite=True)


def test_a_token_is_not_shown() -> None:
    """What prints options does not print it."""
    writer = ZqDataSource({**GOOD, "token": "secret"}).writer(TEXT, overwrite=False)
    assert "secret" not in repr(writer.options)


def test_where_the_token_of_a_process_comes_from(tmp_path: Path) -> None:
    """An option, or a file that each process reads for itself, or else its environment; never two of them."""
    file = tmp_path / "token"
    file.write_text("zq_secret\n")
    file.chmod(0o600)
    found = connection(Given({**GOOD, "tokenFile": str(file)}))
    assert (found.secret(), found.token) == ("zq_secret", None)
    assert b"zq_secret" not in pickle.dumps(found)
    assert connection(Given({**GOOD, "token": "zq_given"})).secret() == "zq_given"
    assert connection(Given(GOOD)).secret() is None
    file.chmod(0o644)
    with pytest.raises(Invalid, match="chmod 600"):
        found.secret()
    with pytest.raises(Invalid, match="both given"):
        connection(Given({**GOOD, "token": "zq_given", "tokenFile": str(file)}))


def test_a_token_that_was_rotated_in_its_file_is_taken_up(tmp_path: Path) -> None:
    """By a process that has used the former one, as Spark's live from batch to batch."""
    with server(auth_strategy="token") as running:
        file = tmp_path / "token"
        former, later = running.token("acme"), running.token("acme")
        file.write_text(former)
        file.chmod(0o600)
        found = connection(Given({"url": running.url, "project": "acme", "retryFor": "0", "tokenFile": str(file)}))
        assert found.client().whoami()["credential"] == former[3:13]
        assert found.client() is found.client()
        running.revoke(former)
        file.write_text(later)
        assert found.client().whoami()["credential"] == later[3:13]


def test_a_connection_sends_its_token() -> None:
    """As every client does; a server that asks for one takes it, and the environment's."""
    with server(auth_strategy="token") as running:
        options = {"url": running.url, "project": "acme", "queue": "jobs"}
        client = connection(Given({**options, "token": running.token("acme")})).client()
        client.queue("jobs").post(1)
        with pytest.raises(NotAuthenticated):
            connection(Given({**options, "retryFor": "0", "token": "zq_wrong"})).client().ping()


def test_the_module_that_spark_looks_into_imports_nothing_before_it_is_asked() -> None:
    """It is imported for every format that Spark does not know, also where zq's requirements are missing. Then it says
    so, since Spark drops the error."""
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


def test_registering_warns_of_speculation(spark, recwarn: pytest.WarningsRecorder) -> None:
    """Which makes Spark count a second attempt as a failure."""
    zq_spark.register(spark)
    assert not recwarn.list

    class Speculating:
        conf = {"spark.speculation": "true"}
        dataSource = spark.dataSource

    with warnings.catch_warnings(), pytest.warns(UserWarning, match="spark.speculation is on"):
        zq_spark.register(Speculating())  # type: ignore[arg-type]
