# SPDX-License-Identifier: Apache-2.0
"""Spark jobs on a server with token authentication: each process reads the token file itself (tenancy 2)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rotation import rotated

pytest.importorskip("pyspark")

from zq.client import Client
from zq.spark import poison
from zq.spark.pipeline import Pipeline, RoundFailed, Totals
from zq.testing import Server, server

SECRET_OF_NOBODY = "zq_" + "0" * 10 + "_" + "0" * 43 + "_" + "0" * 6


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with server(auth_strategy="token") as running:
        yield running


@pytest.fixture
def options_of(guarded: Server, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Return a function that returns the options of a job with a token."""

    def write(token: str) -> dict[str, str]:
        file = tmp_path / "token"
        file.write_text(token + "\n")
        file.chmod(0o600)
        return {"url": guarded.url, "project": "acme", "tokenFile": str(file), "retryFor": "10"}

    return write


def test_a_job_writes_and_reads_within_its_scopes(spark: Any, guarded: Server, options_of: Any, capfd: Any) -> None:
    """The cases are a two-phase sink, and sources with listings and claims; neither plan nor log contains the token."""
    token = guarded.token("acme", scopes=["*:queue/in", "produce+consume:work/**"])
    options = options_of(token)
    rows = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) body")
    rows.write.format("zq").options(**options, queue="in").mode("append").save()
    frame = spark.read.format("zq").options(**options, queue="in").load()
    assert sorted(int(row.body) for row in frame.select("body").collect()) == list(range(500))
    frame.explain(extended=True)
    shown = "".join(capfd.readouterr())
    assert "zq" in shown
    assert token not in shown
    assert token[14:57] not in shown


@pytest.mark.parametrize(
    ("scopes", "sentence"),
    rotated(
        [(None, "The credential is not valid."), (["*:queue/other", "*:work/**"], "This credential does not allow")], 1
    ),
)
def test_a_job_without_permission_fails_at_once_with_the_reason(
    spark: Any, guarded: Server, options_of: Any, scopes: list[str] | None, sentence: str
) -> None:
    """The job does not wait as for a server that is down."""
    options = options_of(guarded.token("acme", scopes=scopes) if scopes else SECRET_OF_NOBODY)
    rows = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) body")
    with pytest.raises(Exception, match=sentence.replace(".", r"\.")):
        rows.write.format("zq").options(**options, queue="in").mode("append").save()


LEAST = {
    "batch": ("observe:queue/in",),
    "sink": ("produce:queue/out", "produce:work/etl", "produce:work/etl.**"),
    "acknowledging": ("consume:queue/in", "produce:queue/out", "produce:work/ack", "produce:work/ack.**"),
    "claims": ("consume:queue/in", "consume:work/stream.*", "observe:queue/in"),
    "pipeline": (
        "consume:queue/in",
        "observe:queue/in",
        "consume:work/copy",
        "observe:work/copy",
        "produce:work/copy",
        "produce:work/copy.**",
        "produce:queue/out",
        "produce:queue/dead",
    ),
}
"""The scopes that each kind of job needs, from the table in spark.md."""


@pytest.fixture
def owner(guarded: Server) -> Iterator[Any]:
    """Yield a client with all permissions, and delete the project's queues afterwards."""
    with Client(guarded.url, "acme", token=guarded.token("acme")) as client:
        yield client
        for queue in client.queues():
            client.queue(queue.name).delete()


def fill(owner: Any, *bodies: str) -> None:
    """Replace the messages in ``in`` by these, or by two."""
    owner.queue("in").create({"_dead_letter_queue": "dead"})
    owner.queue("in").purge()
    owner.queue("in").post_many(bodies or ["1", "2"])


def work(spark: Any, options: dict[str, str], owner: Any, what: str, folder: Path) -> None:
    """Run a job of this kind from ``in`` to ``out``."""
    fill(owner)
    rows = spark.range(0, 2, 1, 1).selectExpr("cast(id as string) body")
    if what == "batch":
        spark.read.format("zq").options(**options, queue="in").load().collect()
    elif what == "claims":
        stream = spark.readStream.format("zq").options(**options, queue="in", consumer="stream", wait="0").load()
        started = stream.writeStream.foreachBatch(lambda frame, _: frame.collect())
        started.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    elif what in ("sink", "acknowledging"):
        more = {"idempotencyKey": "etl" if what == "sink" else "ack"}
        if what == "acknowledging":
            claim = owner.queue("in").claim(1)
            rows, more = rows.selectExpr("body", f"'in/{claim.id}' claim"), {**more, "ackColumn": "claim"}
        rows.write.format("zq").options(**options, **more, queue="out").mode("append").save()
    else:
        marking = "*", "if(body = '2', 'too many', null) _error"
        copying(options, lambda frame: frame.selectExpr(*marking)).run(spark, until_empty=True)


def copying(options: dict[str, str], stage: Any) -> Pipeline:
    """Return a pipeline with the token of these options."""
    token = Path(options["tokenFile"]).read_text().strip()
    place = {"url": options["url"], "project": "acme", "token": token}
    return Pipeline(source="in", stages=[stage], sink="out", name="copy", wait=0, retry_for=5, claim_size=10, **place)


@pytest.mark.parametrize("what", rotated([*LEAST], 1))
def test_a_job_needs_the_scopes_of_the_page_and_no_others(
    spark: Any, guarded: Server, owner: Any, options_of: Any, what: str, tmp_path: Path
) -> None:
    """Without any of its scopes, the job fails with the server's error, and no message is lost."""
    needed = list(LEAST[what])
    without = needed[:1] if what == "acknowledging" else needed  # The others are scopes of the sink.
    for missing in rotated(without, 2):
        token = guarded.token("acme", scopes=[scope for scope in needed if scope != missing] or ["observe:queue/x"])
        with pytest.raises(Exception, match="This credential does not allow"):
            work(spark, options_of(token), owner, what, tmp_path / f"less {needed.index(missing)}")
        assert owner.queue("in").stats().total + owner.queue("dead").stats().total == 2
        owner.queue("dead").purge()
    work(spark, options_of(guarded.token("acme", scopes=needed)), owner, what, tmp_path / "all")


@pytest.mark.parametrize(
    ("bodies", "columns"),
    rotated(
        [
            # The only message fails, and no other one succeeds.
            (["1"], ("*", "'out' queue")),
            (["1"], ("*", "1 unused")),
            # The other message has no result that the token could allow.
            (["1", "none"], ("*", "'out' queue")),
        ],
        1,
    ),
)
def test_a_right_that_is_missing_buries_no_message(
    spark: Any,
    owner: Any,
    guarded: Server,
    options_of: Any,
    bodies: list[str],
    columns: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The round fails with the server's error, whether rows name a queue or not, and releases all messages."""
    monkeypatch.setattr(poison, "RETRY_PAUSE", 0)
    fill(owner, *bodies)
    scopes = [scope for scope in LEAST["pipeline"] if scope != "produce:queue/out"]
    token = guarded.token("acme", scopes=scopes)
    pipeline = copying(options_of(token), lambda frame: frame.where("body != 'none'").selectExpr(*columns))
    with pytest.raises(RoundFailed, match="does not allow"):
        pipeline.run(spark, until_empty=True)
    stats = owner.queue("in").stats()
    assert (stats.free, stats.claimed) == (len(bodies), 0)
    assert list(owner.queue("dead").list()) == []


def test_a_row_that_names_a_forbidden_queue_is_buried(
    spark: Any, owner: Any, guarded: Server, options_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token allows the results of the round's other message."""
    monkeypatch.setattr(poison, "RETRY_PAUSE", 0)
    fill(owner)
    pipeline = copying(
        options_of(guarded.token("acme", scopes=list(LEAST["pipeline"]))),
        lambda frame: frame.selectExpr("*", "if(body = '1', 'out', 'secrets') queue"),
    )
    assert pipeline.run(spark, until_empty=True) == Totals(1, 2, 1, 1)
    assert [message.body for message in owner.queue("out").list()] == ["1"]
    [dead] = owner.queue("dead").list()
    assert dead.body == "2"
    assert "does not allow" in dead.reason
