# SPDX-License-Identifier: Apache-2.0
"""What long answers hold in memory under Granian, without a server."""

import pytest

from zq.engines import process
from zq.engines.process import HANDED_OVER, Unsent, UnsentAnswers, may_be_long
from zq.events import Refusal

MIB = bytes(1 << 20)
Hung = list[tuple[tuple[str, str], Refusal]]


@pytest.fixture
def hung() -> Hung:
    return []


@pytest.fixture
def answers(hung: Hung, monkeypatch: pytest.MonkeyPatch) -> UnsentAnswers:
    monkeypatch.setattr(process, "MAX_UNSENT", 4 << 20)
    return UnsentAnswers(lambda peer, reason: hung.append((peer, reason)))


def still(unsent: Unsent, seconds: float) -> Unsent:
    """Its reader has taken nothing for so long."""
    unsent.moved -= seconds
    return unsent


def test_those_still_longest_are_dropped_first_and_no_more_than_needed(answers: UnsentAnswers, hung: Hung) -> None:
    held = [still(answers.add(("10.0.0.1", str(port)), MIB), port) for port in (7, 9, 8, 6)]
    assert not hung
    answers.add(("10.0.0.2", "1"), MIB)
    assert hung == [(("10.0.0.1", "9"), Refusal.MEMORY)]
    assert [unsent.body is None for unsent in held] == [False, True, False, False]
    assert not answers.full()


def test_who_took_something_just_now_is_not_dropped_but_nothing_more_is_made(
    answers: UnsentAnswers, hung: Hung
) -> None:
    held = [answers.add(("10.0.0.1", str(port)), MIB) for port in range(5)]
    assert answers.full()
    assert not hung
    answers.discard(held[0])
    answers.discard(held[0])
    assert not answers.full()
    assert all(unsent.body for unsent in held[1:])


def test_what_granian_has_is_counted_until_it_is_taken(answers: UnsentAnswers) -> None:
    """As much of an answer as it may hold, or all of one that is shorter."""
    for _ in range((4 << 20) // HANDED_OVER):
        unsent = answers.add(("10.0.0.1", "1"), MIB)
        answers.handed(unsent)
        assert unsent.body is None
        assert unsent.size == HANDED_OVER
    short = answers.add(("10.0.0.1", "2"), bytes(HANDED_OVER - 1))
    answers.handed(short)
    assert short.size == HANDED_OVER - 1
    assert answers.full()
    answers.discard(short)
    assert not answers.full()


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/v2/queues/q/messages", "limit=20", True),
        ("GET", "/v2/queues", "detailed=true", True),
        ("POST", "/v2/queues/q/claims", "", True),
        ("PUT", "/v2/queues/q/claims/c", "", True),
        ("DELETE", "/v2/queues/q/messages", "pop=3", True),
        ("DELETE", "/v2/queues/q/messages", "ids=1", False),
        ("POST", "/v2/queues/q/messages", "", False),
        ("GET", "/readyz", "", False),
        ("GET", "/metrics", "", False),
    ],
)
def test_what_reads_or_takes_may_be_answered_at_length(method: str, path: str, query: str, expected: bool) -> None:
    """Posts, deletions, probes and metrics are served however much is unread."""
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": query}
    assert may_be_long(environ) is expected
