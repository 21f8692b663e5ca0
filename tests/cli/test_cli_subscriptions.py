# SPDX-License-Identifier: Apache-2.0
"""``zq subscription`` and ``zq deliveries``: every command, for queues and topics."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Zq
from tests.servers import ZqServer, wait_for
from tests.sink import CONFIG, Sink
from zq.client.webhooks import verify


@pytest.fixture(scope="module")
def delivering() -> Iterator[ZqServer]:
    with ZqServer("memory:", config=CONFIG) as server:
        yield server


@pytest.fixture
def own(delivering: ZqServer, tmp_path: Path) -> Zq:
    """Return a command line for a server that delivers notifications."""
    return Zq(delivering.url, tmp_path)


@pytest.mark.parametrize("more", [[], ["--topic"]], ids=["queue", "topic"])
def test_a_subscription_is_made_shown_changed_and_ended(own: Zq, more: list[str]) -> None:
    """The secret is shown once, and never in a table."""
    with Sink() as sink:
        hook = f"{sink.url}/hook"
        created = "subscription", "create", "news", hook, "--ttl", "600", "--options", '{"post_headers": {"X-A": "b"}}'
        (made,) = own(*created, *more)
        assert made["secret"].startswith("whsec_")
        assert own(*created, *more) == [{"id": made["id"]}]
        (shown,) = own("subscription", "show", "news", made["id"], *more)
        assert (shown["subscriber"], shown["options"], shown["confirmed"]) == (
            hook,
            {"post_headers": {"X-A": "***"}},
            False,
        )
        (listed,) = own("subscription", "list", "news", *more)
        assert listed["id"] == made["id"]
        assert own("subscription", "confirm", "news", made["id"], *more)[0]["confirmed"]
        (changed,) = own("subscription", "update", "news", made["id"], "--ttl", "700", *more)
        assert (changed["ttl"], changed["confirmed"]) == (700, True)
        assert not own("subscription", "confirm", "news", made["id"], "--not", *more)[0]["confirmed"]
        assert own("subscription", "delete", "news", made["id"], *more)[0]["deleted"]
        assert own("subscription", "list", "news", *more) == []
        assert own.refused(3, "subscription", "show", "news", made["id"], *more) == "There is no such subscription."


def test_what_could_not_be_delivered_is_shown_tried_again_and_dropped(own: Zq) -> None:
    """The redelivery is signed with the rotated secret."""
    with Sink() as sink:
        (made,) = own("subscription", "create", "jobs", f"{sink.url}/hook")
        wait_for(lambda: sink.came("/hook", "SubscriptionConfirmation"), 60, "the confirmation request")
        own("subscription", "confirm", "jobs", made["id"])
        (rotated,) = own("subscription", "secret", "jobs", made["id"])
        sink.answers["/hook"] = 302  # which fails without a retry
        own("post", "jobs", "-", given="1\n2\n3\n")
        of = ["jobs", made["id"]]
        wait_for(lambda: len(own("deliveries", "list", *of)) == 3, 60, "three dead deliveries")
        gone = own("deliveries", "list", *of, "--limit", "1")[0]
        assert (gone["attempts"], "302" in gone["reason"]) == (1, True)
        pruned = own.run("apply", "-f", "-", "--prune", given="version: 1\nsubscriptions: []")
        assert (pruned.exit_code, "holds failed deliveries: use --force" in pruned.stderr) == (6, True)
        assert own("deliveries", "delete", *of, gone["id"]) == [{"id": made["id"], "dropped": 1}]
        before, sink.answers["/hook"] = len(sink.came("/hook")), 200
        assert own("deliveries", "redrive", *of, "--limit", "1") == [{"id": made["id"], "moved": 1, "remaining": 1}]
        wait_for(lambda: len(sink.came("/hook")) == before + 1, 60, "it")
        again = sink.came("/hook")[-1]
        assert verify(rotated["secret"], again.headers, again.body)
        (tested,) = own("subscription", "test", *of)
        wait_for(lambda: sink.came("/hook")[-1].headers["webhook-id"] == tested["message"], 60, "the test")
        wait_for(lambda: own("deliveries", "list", *of, "--waiting") == [], 60, "all that waits")
        assert own("deliveries", "delete", *of, "--yes") == [{"id": made["id"], "dropped": "all"}]
        assert own("deliveries", "redrive", *of) == [{"id": made["id"], "moved": 0, "remaining": 0}]


@pytest.mark.parametrize(
    ("code", "words", "sentence"),
    [
        (2, ["update", "jobs", "x"], "Give at least one of --subscriber, --ttl and --options."),
        (2, ["create", "jobs", "http://a.example.org", "--options", "[1]"], "is not a JSON object"),
        (2, ["create", "jobs", "http://a.example.org", "--ttl", "5"], "60"),
        (4, ["create", "jobs", "http://169.254.169.254/hook"], "its address is not allowed"),
        (3, ["list", "none"], "There is no queue none"),
    ],
)
def test_invalid_subscription_arguments_are_rejected(own: Zq, code: int, words: list[str], sentence: str) -> None:
    """Each error is one line."""
    result = own.run("subscription", *words)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert sentence in result.stderr
