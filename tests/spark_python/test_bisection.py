# SPDX-License-Identifier: Apache-2.0
"""The search for poison messages of a failed round, on a stub that decides which messages fail."""

from collections.abc import Callable, Iterable, Sequence

import pytest

pytest.importorskip("pyspark")

from zq.spark.poison import MIN_FAILED_ROUNDS, RETRY_PAUSE, InconclusiveSearch, find_poison

Fails = Callable[[Sequence[str], bool], str | None]


class Stages:
    """Stages that fail on bad messages, on all while ``down``, and on an empty round if ``needy``."""

    def __init__(self, bad: Iterable[str], down: bool = False, needy: bool = False) -> None:
        self.bad = {*bad}
        self.down = down
        self.needy = needy
        self.runs = 0

    def __call__(self, ids: Sequence[str], keep: bool) -> str | None:
        self.runs += 1
        if self.down and ids:
            return "the database is down"
        return "bad" if self.bad & {*ids} or (self.needy and not ids) else None

    def comes_back(self, seconds: float) -> None:
        """End the outage during the pause of the search."""
        assert seconds == RETRY_PAUSE
        self.down = False


def ids(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_poison_is_found_among_good_messages() -> None:
    """The search needs few dry runs."""
    stages = Stages(["m3", "m700"])
    assert find_poison(ids(1000), stages, 20, stages.comes_back) == {"m3": "bad", "m700": "bad"}
    assert stages.runs < 50


def test_an_outage_buries_nothing() -> None:
    """If all of several messages fail, the cause is not poison; a single message is tried again after a pause."""
    down = Stages([], down=True)
    with pytest.raises(
        InconclusiveSearch, match="all messages of the round fail, for example with the database is down"
    ):
        find_poison(ids(5), down, 20, down.comes_back)
    assert find_poison(ids(1), down, 20, down.comes_back) == {}


def test_messages_of_which_all_fail_are_poison_after_some_rounds() -> None:
    """A queue that contains nothing else does not block forever."""
    stages = Stages(ids(2))
    with pytest.raises(InconclusiveSearch):
        find_poison(ids(2), stages, 20, stages.comes_back, claim_count=MIN_FAILED_ROUNDS - 1)
    assert find_poison(ids(2), stages, 20, stages.comes_back, claim_count=MIN_FAILED_ROUNDS) == {
        "m0": "bad",
        "m1": "bad",
    }


def test_a_message_that_fails_again_after_the_pause_is_poison() -> None:
    """The message may be the only one of the round."""
    stages = Stages(["m0"])
    assert find_poison(ids(1), stages, 20, stages.comes_back) == {"m0": "bad"}


def test_only_poison_is_buried_after_an_outage() -> None:
    """The other messages succeed in the second attempt."""
    stages = Stages(["m1", "m2", "m3"])
    assert find_poison(ids(10), stages, 20, lambda _: stages.bad.discard("m2")) == {"m1": "bad", "m3": "bad"}


def test_stages_that_cannot_take_nothing_are_not_at_fault() -> None:
    """A stage that reads its first row fails on an empty round, but other messages succeed by themselves."""
    stages = Stages(["m7"], needy=True)
    assert find_poison(ids(10), stages, 20, stages.comes_back) == {"m7": "bad"}


def test_stages_that_fail_whatever_they_get_are_at_fault() -> None:
    """The search ends after a few dry runs, whatever the size of the round."""
    stages = Stages(ids(10_000), needy=True)
    with pytest.raises(InconclusiveSearch):
        find_poison(ids(10_000), stages, 20, stages.comes_back)
    assert stages.runs <= 6


def test_too_many_failures_are_not_poison() -> None:
    """More messages than the limit fail."""
    stages = Stages(ids(4))
    with pytest.raises(InconclusiveSearch, match="more than 3 messages fail"):
        find_poison(ids(100), stages, 3, stages.comes_back)


def test_messages_that_fail_together_only_are_not_found() -> None:
    """No message is dead-lettered."""

    def pair(some: Sequence[str], keep: bool) -> str | None:
        return "both" if {"m0", "m9"} <= {*some} else None

    with pytest.raises(InconclusiveSearch, match="no message fails by itself"):
        find_poison(ids(10), pair, 20, lambda _: None)


def test_a_round_that_succeeds_again_is_retried() -> None:
    """No message is returned as poison."""
    assert find_poison(ids(10), lambda some, keep: None, 20, lambda _: None) == {}
