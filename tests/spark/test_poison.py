# SPDX-License-Identifier: Apache-2.0
"""Pipelines: what cannot be worked on is buried with the reason, and a stage's own fault buries nothing."""

from typing import Any

import pytest

from tests.spark.pipelines import Make, bodies, buried, mapped

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from zq.spark.pipeline import ERROR, RoundFailed, Totals, reject


def test_what_a_stage_marks_is_buried(spark, client, make: Make) -> None:
    """With its reason and all of its rows, also when all of a claim goes; stages behind do not meet it."""
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
    """They are found among others, in several claims; the reason is the error's last line."""
    client.queue("in").post_many([*range(7), "bad"])

    def checked(body: str) -> str:
        if body == "bad":
            raise ValueError("no number:\nbad")
        return body

    assert make(mapped(checked), claim_size=5).run(spark, until_empty=True) == Totals(1, 8, 7, 1)
    assert sorted(map(int, bodies(client))) == list(range(7))
    assert buried(client) == {"bad": "ValueError: no number"}


def test_messages_whose_results_the_sink_refuses_are_buried(spark, client, make: Make) -> None:
    """Such as bodies that are too large."""
    client.queue("out").create({"_max_messages_post_size": 100})
    client.queue("in").post_many([*range(4), "x" * 200])
    assert make(lambda frame: frame).run(spark, until_empty=True) == Totals(1, 5, 4, 1)
    [reason] = buried(client).values()
    assert "100" in reason


def test_a_stage_that_fails_whatever_it_gets_buries_nothing(spark, client, make: Make) -> None:
    """Nor one that fails over too many messages; all of them are given back."""
    client.queue("in").post_many(range(10))
    with pytest.raises(RoundFailed, match="nowhere"):
        make(lambda frame: frame.select("nowhere")).run(spark)

    def fails(body: str) -> str:
        raise LookupError(body)

    with pytest.raises(RoundFailed, match="more than 1 messages fail, one by LookupError"):
        make(mapped(fails), most_poison=1).run(spark)
    with pytest.raises(ZeroDivisionError):
        make(lambda frame: 1 // 0).run(spark)
    stats = client.queue("in").stats()
    assert (stats.free, stats.claimed) == (10, 0)
    assert (bodies(client), buried(client)) == ([], {})
