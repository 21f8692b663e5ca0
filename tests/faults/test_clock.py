# SPDX-License-Identifier: Apache-2.0
"""A machine whose clock is days off from what its store has recorded: refused with a sentence, unless forced."""

from pathlib import Path

import pytest

from tests.faults.refusal import sentence_of
from tests.servers import ZqServer, ask, every_message

DAY = 86400
POST = {"messages": [{"body": "early", "ttl": 14 * DAY}]}


def leave_a_message(uri: str, env: dict[str, str] | None = None) -> None:
    """A store that recorded the moment of one post, by that clock."""
    with ZqServer(uri, env=env) as server:
        assert ask(server.url, "POST", "/v2/queues/jobs/messages", POST).status == 201


@pytest.mark.parametrize("days", [3, -3], ids=["ahead", "behind"])
def test_a_clock_that_is_days_off_is_refused_unless_forced(tmp_path: Path, shifted, days: int) -> None:
    """The sentence names ``--force-clock``; with it the server starts, keeps what it had and takes new posts."""
    uri = f"rocksdb://{tmp_path}/store"
    leave_a_message(uri)
    wrong = shifted(days * DAY)
    assert "--force-clock" in sentence_of(ZqServer(uri, env=wrong))
    with ZqServer(uri, "--force-clock", env=wrong) as forced:
        assert [message["body"] for message in every_message(forced.url, "jobs")] == ["early"]
        assert ask(forced.url, "POST", "/v2/queues/jobs/messages", POST).status == 201
        assert len(every_message(forced.url, "jobs")) == 2


def test_a_clock_set_right_after_a_forced_start_is_refused_again(tmp_path: Path, shifted) -> None:
    """A store that served in a false future notices the return to the present; without a step nothing is refused."""
    uri = f"rocksdb://{tmp_path}/store"
    leave_a_message(uri, shifted(3 * DAY))
    assert "--force-clock" in sentence_of(ZqServer(uri))
    with ZqServer(uri, env=shifted(3 * DAY)) as server:
        assert len(every_message(server.url, "jobs")) == 1


def test_a_clock_that_is_seconds_off_is_no_reason_to_refuse(tmp_path: Path, shifted) -> None:
    """Time servers correct by seconds: neither direction stops a start."""
    uri = f"rocksdb://{tmp_path}/store"
    leave_a_message(uri)
    for seconds in (2, -1):
        with ZqServer(uri, env=shifted(seconds)) as server:
            assert len(every_message(server.url, "jobs")) == 1
