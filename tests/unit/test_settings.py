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
