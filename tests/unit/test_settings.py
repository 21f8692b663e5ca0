# SPDX-License-Identifier: Apache-2.0
"""Settings: nonsense stops the start with a sentence that names the option and its bounds."""

import pytest

from zq import settings
from zq.errors import StartRefused


@pytest.mark.parametrize(
    ("group", "option", "value", "bounds"),
    [
        ("transport", "max_wait", "3601", "from 0 to 3600"),
        ("transport", "max_answer_bytes", "262143", "at least 262144, which is max_messages_post_size; it is 262143"),
        ("transport", "max_answer_bytes", "4M", "max_answer_bytes"),
        ("transport", "max_messages_per_page", "0", "at least 1; it is 0"),
        ("transport", "stage_ttl", "59", "from 60"),
        ("transport", "producer_ttl", "0", "from 60"),
        ("transport", "idempotency_window", "59", "from 60"),
        ("transport", "max_message_ttl", "99999999999", "to 3153600000"),
        ("transport", "max_claim_ttl", "99999999999", "to 3153600000"),
        ("server", "max_waiters", "57", "at most threads - 8"),
        ("server", "max_streams", "57", "at most threads - 8"),
        ("server", "max_streams", "-1", "equal to 0"),
        ("topics", "topic_log_bytes", "1048575", "equal to 1.04858e+06"),
        ("topics", "topic_log_messages", "999", "equal to 1000"),
        ("topics", "topic_log_messages", "", "must be a number; it is empty"),
        ("expiry", "sweep_interval", "0", "equal to 0.1"),
        ("expiry", "sweep_batch_size", "100001", "equal to 100000"),
        ("expiry", "sweep_max_deletes", "999", "at least sweep_batch_size, which is 1000"),
        ("expiry", "delete_queue_size", "10000001", "equal to 1e+07"),
        ("expiry", "compaction_filter_grace", "86401", "equal to 86400"),
        ("expiry", "compaction_interval", "59", "equal to 60"),
        ("expiry", "queue_ttl", "a: 1209601", "from 60 to 1209600"),
        ("expiry", "queue_ttl", "a: 60, b c: 60", "line 2 is ' b c: 60'"),
        ("expiry", "queue_ttl", "a: 60, b", "a colon"),
        ("metrics", "max_queues", "0", "equal to 1"),
        ("metrics", "max_counted", "0", "equal to 1"),
        ("expiry", "sweep_interval", "nan", "must be a number; it is nan"),
        ("expiry", "sweep_interval", "", "must be a number; it is empty"),
        ("expiry", "sweep_batch_size", "", "must be a number; it is empty"),
        ("transport", "storage_timeout", "nan", "must be a number; it is nan"),
        ("server", "threads", "", "must be a number; it is empty"),
    ],
)
def test_a_value_out_of_bounds_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, group: str, option: str, value: str, bounds: str
) -> None:
    """Set by the environment, as an operator would."""
    monkeypatch.setenv(settings.variable(group, option), value)
    with pytest.raises(StartRefused) as refusal:
        settings.load()
    assert option in str(refusal.value)
    assert bounds in str(refusal.value)


def setting(monkeypatch: pytest.MonkeyPatch, group: str, **options: int) -> None:
    for option, value in options.items():
        monkeypatch.setenv(settings.variable(group, option), str(value))


@pytest.mark.parametrize(
    ("chosen", "lent"),
    [
        ({}, (40, 16)),
        ({"threads": 200}, (40, 16)),
        ({"threads": 12}, (3, 1)),
        ({"threads": 9}, (1, 0)),
        ({"threads": 12, "max_waiters": 4}, (4, 0)),
        ({"threads": 12, "max_streams": 3}, (1, 3)),
        ({"max_waiters": 50}, (50, 6)),
        ({"max_waiters": 0}, (0, 16)),
        ({"max_streams": 0}, (40, 0)),
        ({"max_streams": 50}, (6, 50)),
        ({"max_waiters": 28, "max_streams": 28}, (28, 28)),
    ],
)
def test_waiters_and_streams_are_as_many_as_the_threads_allow(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, int], lent: tuple[int, int]
) -> None:
    """40 and 16, unless there are fewer threads, of which eight are kept for work; what is chosen stays."""
    setting(monkeypatch, "server", **chosen)
    loaded = settings.load()
    assert (loaded.max_waiters, loaded.max_streams) == lent


def test_waiters_and_streams_together_leave_threads_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would fit; the sentence has both."""
    setting(monkeypatch, "server", max_waiters=40, max_streams=17)
    with pytest.raises(StartRefused, match=r"max_waiters and max_streams .* are 40 and 17, with 64 threads"):
        settings.load()


def test_a_log_of_topics_holds_two_of_the_largest_posts(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a reader who is one post behind has not missed it."""
    setting(monkeypatch, "transport", max_messages_post_size=2_000_000)
    setting(monkeypatch, "topics", topic_log_bytes=3_999_999, topic_log_messages=1000)
    with pytest.raises(StartRefused, match=r"topic_log_bytes .* 4000000; it is 3999999"):
        settings.load()
    setting(monkeypatch, "topics", topic_log_bytes=4_000_000)
    loaded = settings.load()
    assert (loaded.topic_log_bytes, loaded.topic_log_messages) == (4_000_000, 1000)


@pytest.mark.parametrize(("group", "option"), [("server", "bind"), ("log", "level"), ("storage", "uri")])
def test_an_option_that_refers_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch, group: str, option: str) -> None:
    """oslo.config puts in for ``$group.option`` what that option is."""
    monkeypatch.setenv(settings.variable(group, option), f"${group}.{option}")
    with pytest.raises(StartRefused) as refusal:
        settings.load()
    assert "$" in str(refusal.value)
