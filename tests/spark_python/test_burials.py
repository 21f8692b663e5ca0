# SPDX-License-Identifier: Apache-2.0
"""Dead-lettering in a pipeline without Spark: a search that is stopped, lost replies, batches of dead letters."""

import threading
from typing import Any

import pytest

from tests.client.misbehaving import LOST_ANSWER, Proxy
from tests.spark.pipelines import Make

pytest.importorskip("pyspark")

from zq.spark import poison
from zq.spark.failures import MAX_REASON_LENGTH
from zq.spark.poison import batch_burials
from zq.spark.runner import Runner


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not pause before the second attempt."""
    monkeypatch.setattr(poison, "RETRY_PAUSE", 0)


def test_a_stopped_run_ends_its_search(client, make: Make) -> None:
    """The run releases its messages."""
    client.queue("in").post_many(range(4))

    class Failing:
        tasks, runs = 1, 0

        def run(self, this: Any, inlined: Any, rejected: Any, keep: bool = True) -> None:
            self.runs += 1
            if self.runs == 3:
                stopped.set()
            if this.claims:
                raise ZeroDivisionError

    work = Failing()
    runner = Runner(make(lambda frame: frame).claiming_options(), work, 20)  # type: ignore[arg-type]
    stopped: threading.Event = runner.stopped
    runner.begin("dead")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("zq.spark.runner.FAILURES", (ZeroDivisionError,))
        assert not runner.work(runner.claim())
    runner.end()
    assert work.runs == 3
    assert client.queue("in").stats().free == 4


def test_a_burial_whose_answer_is_lost_counts_once(client, proxy: Proxy, make: Make) -> None:
    """Dead-lettering all messages of a claim ends the claim; the long reasons need several requests."""
    client.queue("in").post_many(range(5))
    runner = Runner(make(lambda frame: frame, url=proxy.url).claiming_options(), None, 20)  # type: ignore[arg-type]
    runner.begin("dead")
    runner._room = 3 * MAX_REASON_LENGTH
    batch = runner.claim()
    runner._work = type("Work", (), {"tasks": 1})()
    proxy.plan(LOST_ANSWER, None, None, LOST_ANSWER)
    runner._bury(batch, dict.fromkeys(next(iter(batch.claims.values())), "r" * MAX_REASON_LENGTH))
    runner.end()
    assert len(proxy.seen) == 5
    assert (runner.totals.buried, batch.claims) == (5, {})
    assert len([*client.queue("dead").list()]) == 5


def test_dead_letters_are_sent_in_slices() -> None:
    """Each request has a limited number of bytes, and at least one message."""
    some = {str(number): "r" * 100 for number in range(10)}
    slices = [*batch_burials(some, 300)]
    assert [letter.id for slice in slices for letter in slice] == [*some]
    assert {len(slice) for slice in slices} == {2}
    assert [len(slice) for slice in batch_burials(some, 1)] == [1] * 10
