# SPDX-License-Identifier: Apache-2.0
"""Settings: nonsense stops the start with a sentence that names the option and its bounds."""

import pytest

from zq import settings
from zq.errors import StartRefused


@pytest.mark.parametrize(
    ("group", "option", "value", "bounds"),
    [
        ("transport", "max_wait", "3601", "from 0 to 3600"),
        ("transport", "stage_ttl", "59", "from 60"),
        ("transport", "producer_ttl", "0", "from 60"),
        ("transport", "idempotency_window", "59", "from 60"),
        ("transport", "max_message_ttl", "99999999999", "to 3153600000"),
        ("transport", "max_claim_ttl", "99999999999", "to 3153600000"),
        ("server", "max_waiters", "57", "at most threads - 8"),
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


def test_waiters_are_as_many_as_the_threads_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """40, unless there are fewer threads, of which eight are kept for work."""
    assert settings.load().max_waiters == 40
    monkeypatch.setenv(settings.variable("server", "threads"), "12")
    assert settings.load().max_waiters == 4


@pytest.mark.parametrize(("group", "option"), [("server", "bind"), ("log", "level"), ("storage", "uri")])
def test_an_option_that_refers_to_itself_is_refused(monkeypatch: pytest.MonkeyPatch, group: str, option: str) -> None:
    """oslo.config puts in for ``$group.option`` what that option is."""
    monkeypatch.setenv(settings.variable(group, option), f"${group}.{option}")
    with pytest.raises(StartRefused) as refusal:
        settings.load()
    assert "$" in str(refusal.value)
