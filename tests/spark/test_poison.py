# SPDX-License-Identifier: Apache-2.0
"""Poison messages of pipelines: they are dead-lettered with a reason, and a fault of a stage moves none."""

from typing import Any

import pytest

from tests.spark.pipelines import Make, bodies, buried, mapped
from zq.errors import Invalid

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from zq.spark import poison
from zq.spark.pipeline import ERROR, RoundFailed, Totals, reject


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the pause before the second attempt."""
    monkeypatch.setattr(poison, "RETRY_PAUSE", 0)


def test_messages_that_a_stage_marks_are_buried(spark, client, make: Make) -> None:
    """A marked message is dead-lettered with its reason and all its rows, even if these are a whole claim.

    Later stages do not get it.
    """
    client.queue("in").post_many([*("x" for _ in range(100)), *range(100), "y", [1, "z", 2], [3, 4]])

    def parsed(frame: Any) -> Any:
        parts = frame.select("id", F.explode(F.split(F.regexp_replace("body", r'[\[\]"]', ""), ",")).alias("part"))
        return parts.withColumn(ERROR, reject("try_cast(part as int) is null", "not a number"))

    def summed(frame: Any) -> Any:
        return frame.agg(F.expr("cast(sum(cast(part as int)) as string) body"))

    assert make(parsed, summed).run(spark, until_empty=True) == Totals(1, 203, 1, 102)
    assert bodies(client) == [str(sum(range(100)) + 3 + 4)]
    assert buried(client) == dict.fromkeys(("x", "y", "[1, 'z', 2]"), "not a number")
    assert client.queue("in").stats().total == 0


def test_messages_over_which_a_stage_raises_are_buried(spark, client, make: Make) -> None:
    """The messages are found among others, in several claims; the reason is the error's last line."""
    client.queue("in").post_many([*range(3), "bad"])

    def checked(body: str) -> str:
        if body == "bad":
            raise ValueError("no number:\nbad")
        return body

    assert make(mapped(checked), claim_size=3).run(spark, until_empty=True) == Totals(1, 4, 3, 1)
    assert bodies(client) == ["0", "1", "2"]
    assert buried(client) == {"bad": "ValueError: no number"}


def test_messages_over_which_a_stage_raises_on_the_driver_are_buried(spark, client, make: Make) -> None:
    """The reason names the stage. A stage that fails on an empty frame does not hide the faulty message."""
    client.queue("in").post_many([1, 2, "bad"])

    def looked_at(frame: Any) -> Any:
        for row in (frame.collect()[:1] and frame.collect()) or [None]:
            int(row.body)
        return frame

    assert make(looked_at).run(spark, until_empty=True) == Totals(1, 3, 2, 1)
    assert buried(client) == {"bad": "Stage looked_at: ValueError: invalid literal for int() with base 10: 'bad'"}


def test_messages_whose_results_the_sink_refuses_are_buried(spark, client, make: Make) -> None:
    """A body that is too large is an example."""
    client.queue("out").create({"_max_messages_post_size": 100})
    client.queue("in").post("x" * 200)
    assert make(lambda frame: frame).run(spark, until_empty=True) == Totals(1, 1, 0, 1)
    [reason] = buried(client).values()
    assert "100 bytes" in reason


def test_a_stage_that_fails_whatever_it_gets_buries_nothing(spark, client, make: Make) -> None:
    """All messages are released."""
    client.queue("in").post_many(range(4))
    with pytest.raises(RoundFailed, match="nowhere"):
        make(lambda frame: frame.select("nowhere")).run(spark)
    with pytest.raises(RoundFailed, match="Stage <lambda>: ZeroDivisionError"):
        make(lambda frame: 1 // 0).run(spark)
    with pytest.raises(Invalid, match=f"must keep both id and {ERROR}"):
        make(lambda frame: frame.select(reject("body = 'x'", "x").alias(ERROR), "body")).run(spark, until_empty=True)
    with pytest.raises(Invalid, match="Stage <lambda> must return a DataFrame, not NoneType"):
        make(lambda frame: None).run(spark)
    stats = client.queue("in").stats()
    assert (stats.free, stats.claimed) == (4, 0)
    assert (bodies(client), buried(client)) == ([], {})


def test_a_round_that_took_too_long_is_reported(spark, client, make: Make) -> None:
    """The server has dropped the results; a dry run would find no other cause."""
    client.queue("in").post_many([1])
    runs = []

    def late(frame: Any) -> Any:
        runs.append(1)
        raise LookupError("zq.errors.StageNotFound: There is no stage s.")

    with pytest.raises(
        RoundFailed, match=r"and has dropped the results of this round. Make the rounds smaller \(max_messages\)"
    ):
        make(late).run(spark)
    assert runs == [1]
