# SPDX-License-Identifier: Apache-2.0
"""The small commands of ``zq``: their output and their effect on the next command."""

from typing import Any

import pytest

from tests.cli.conftest import Zq
from tests.servers import wait_for


def bodies(messages: list[Any]) -> list[Any]:
    return [message["body"] for message in messages]


@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_queues_and_topics_are_made_changed_counted_and_removed(zq: Zq, kind: str) -> None:
    """Queues and topics have the same commands."""
    assert zq(kind, "create", "news", "owner=shop") == [{"name": "news", "created": True}]
    assert zq(kind, "create", "news") == [{"name": "news", "created": False}]
    zq(kind, "create", "other")
    assert zq(kind, "set", "news", "size=3", "--unset", "owner")[0]["size"] == 3
    shown = zq(kind, "show", "news")[0]
    assert shown["size"] == 3
    assert "owner" not in shown
    assert [entry["name"] for entry in zq(kind, "list")] == ["news", "other"]
    assert [entry["name"] for entry in zq(kind, "list", "--with", "size=3")] == ["news"]
    assert [entry["name"] for entry in zq(kind, "list", "--name", "the")] == ["other"]
    assert len(zq(kind, "list", "--limit", "1")) == 1
    zq(*(["post"] if kind == "queue" else ["topic", "publish"]), "news", "hello")
    assert [entry["total"] for entry in zq(kind, "stats")] == [1, 0]
    assert zq(kind, "purge", "news") == [{"name": "news", "purged": True}]
    assert zq(kind, "stats", "news")[0]["total"] == 0
    zq(kind, "delete", "news", "other")
    assert zq(kind, "list") == []
    zq.refused(3, kind, "show", "news")
    zq.refused(2, kind, "set", "news", "no-equals-sign")


def test_a_queue_is_paused_and_resumed(zq: Zq) -> None:
    """The queue, or only its claims or posts, can be paused; ``show`` and ``top`` report the pause."""
    zq("post", "jobs", "1")
    assert zq("queue", "pause", "jobs", "--claims") == [{"name": "jobs", "paused": "claims"}]
    assert zq("queue", "show", "jobs")[0]["_paused"] == "claims"
    assert zq("pop", "jobs") == zq("claim", "jobs") == []
    assert zq("queue", "pause", "jobs", "--posts") == [{"name": "jobs", "paused": "posts"}]
    assert "paused" in zq.refused(6, "post", "jobs", "2")
    assert zq("queue", "pause", "jobs") == [{"name": "jobs", "paused": "all"}]
    assert [row["paused"] for row in zq("top", "--once", "--interval", "0.1")] == ["all"]
    for _ in range(2):
        assert zq("queue", "resume", "jobs") == [{"name": "jobs", "resumed": True}]
    assert [row["paused"] for row in zq("top", "--once", "--interval", "0.1")] == [None]
    assert bodies(zq("pop", "jobs")) == [1]
    zq.refused(3, "queue", "pause", "job")
    zq.refused(3, "queue", "resume", "job")
    zq.refused(2, "topic", "pause", "news")


def test_bodies_are_json_or_else_texts(zq: Zq) -> None:
    """``--text`` posts bodies unchanged; standard input is one message for each line."""
    zq("post", "jobs", '{"a": 1}')
    zq("post", "jobs", "hello")
    zq("post", "jobs", "17", "--text")
    assert zq("post", "jobs", "-", given='[1]\n\n"x"\n')[0]["stored"] == 2
    assert bodies(zq("list", "jobs")) == [{"a": 1}, "hello", "17", [1], "x"]
    assert bodies(zq("list", "jobs", "--limit", "2")) == [{"a": 1}, "hello"]
    result = zq.run("post", "jobs", "-", given="1\n{torn\n")
    assert result.exit_code == 4
    assert "Line 2 is not valid JSON" in result.stderr
    zq.refused(2, "post", "jobs")


def test_a_key_stores_one_message_once_and_a_delay_hides_it(zq: Zq) -> None:
    """The options apply to one message."""
    first = zq("post", "jobs", "a", "--key", "k", "--ttl", "90")
    assert zq("post", "jobs", "a", "--key", "k", "--ttl", "90") == first
    assert zq("get", "jobs", first[0]["id"])[0]["ttl"] == 90
    zq("queue", "create", "late", "_default_message_delay=1")
    zq("post", "late", "later", "--delay", "600")
    assert zq("list", "late") == []
    assert bodies(zq("list", "late", "--delayed")) == ["later"]


def test_claims_are_settled_moved_and_released_by_hand(zq: Zq) -> None:
    """Each message is where the commands moved it."""
    zq("queue", "create", "jobs", "_dead_letter_queue=jobs.dead")
    zq("post", "jobs", "-", given="0\n1\n2\n3\n4\n")
    held = zq("claim", "jobs", "--limit", "5", "--ttl", "60")
    claim, ids = held[0]["claim"], [message["id"] for message in held]
    assert zq("list", "jobs") == []
    assert bodies(zq("list", "jobs", "--claimed")) == [0, 1, 2, 3, 4]
    done = zq("settle", "jobs", claim, "--delete", ids[0], "--release", ids[1], "--bury", ids[2], "--reason", "torn")
    assert done == [{"deleted": 1, "released": 1, "moved": 0, "buried": 1, "lost": []}]
    assert zq("move", "jobs", claim, ids[3], "--to", "next", "--body", '"new"')[0]["moved"] == 1
    assert zq("release", "jobs", claim) == [{"claim": claim, "released": True}]
    assert sorted(bodies(zq("list", "jobs"))) == [1, 4]
    assert bodies(zq("list", "next")) == ["new"]
    again = zq("claim", "jobs", "--name", "mine.1")
    assert again[0]["claim"] == "mine.1"
    assert zq("release", "jobs", "mine.1", again[0]["id"])[0]["released"] == 1
    assert zq("settle", "jobs", "mine.1", "--all")[0]["deleted"] == 1
    for words in (["settle", "jobs", "mine.1", "--all"], ["release", "jobs", "mine.1"]):
        assert "claim" in zq.refused(3, *words)
    assert "--text" in zq.refused(2, "move", "jobs", "mine.1", "x", "--to", "next", "--body", "{torn")
    zq.refused(2, "settle", "jobs", "mine.1")


def test_live_claims_are_listed(zq: Zq) -> None:
    """Claims of a queue or of all queues are listed; the table has age and remaining time."""
    zq("post", "jobs", "x")
    zq("post", "more", "y")
    assert zq("claims") == []
    zq("claim", "jobs", "--name", "mine.1")
    zq("claim", "more", "--name", "mine.2")
    assert [(one["queue"], one["id"], one["messages"]) for one in zq("claims")] == [
        ("jobs", "mine.1", 1),
        ("more", "mine.2", 1),
    ]
    [own] = zq("claims", "jobs")
    assert (own["id"], bool(own["client"]), bool(own["agent"])) == ("mine.1", True, True)
    told = zq.run("claims", "jobs", "--table").stdout
    assert "mine.1" in told
    assert "5m" in told or "4m" in told
    zq.refused(3, "claims", "none")


def test_dead_letters_are_listed_and_go_back(zq: Zq) -> None:
    """Dead letters are found by their source queue or by their dead-letter queue."""
    zq("queue", "create", "jobs", "_dead_letter_queue=jobs.dead")
    zq("post", "jobs", "x")
    (held,) = zq("claim", "jobs")
    zq("settle", "jobs", held["claim"], "--bury", held["id"], "--reason", "torn")
    (dead,) = zq("dlq", "list", "jobs")
    assert (dead["body"], dead["origin"], dead["reason"]) == ("x", "jobs", "torn")
    assert zq("dlq", "list", "jobs.dead")[0]["id"] == held["id"]
    assert [(row["queue"], row["name"], row["total"]) for row in zq("dlq", "list")] == [("jobs", "jobs.dead", 1)]
    [told] = zq("dlq", "redrive", "jobs", "--dry-run")
    assert (told["would_move"], told["origins"]) == (1, {"jobs": 1})
    assert zq("dlq", "redrive", "jobs", "--id", "gone")[0]["lost"] == ["gone"]
    zq.refused(2, "dlq", "redrive", "jobs", "--id", "gone", "--limit", "5")
    assert zq("dlq", "redrive", "jobs") == [{"queue": "jobs.dead", "moved": 1, "remaining": 0}]
    assert bodies(zq("list", "jobs")) == ["x"]


def test_live_messages_are_no_dead_letters(zq: Zq) -> None:
    """A queue that is not a dead-letter queue is rejected, and its messages stay."""
    zq("post", "jobs", "x")
    for words in (["dlq", "list", "jobs"], ["dlq", "redrive", "jobs", "--to", "elsewhere"]):
        assert "jobs has no dead-letter queue and is not a dead-letter queue." in zq.refused(3, *words)
    assert bodies(zq("list", "jobs")) == ["x"]
    zq("queue", "create", "others", "_dead_letter_queue=jobs")
    assert bodies(zq("dlq", "list", "jobs")) == ["x"]


def test_messages_that_are_not_there_are_named(zq: Zq) -> None:
    """Existing messages are shown."""
    (posted,) = zq("post", "jobs", "x")
    lost = "01a1ff731847d13bb34e49c265324706"
    result = zq.run("get", "jobs", posted["id"], lost)
    assert (result.exit_code, result.stderr) == (3, f"zq: jobs does not have these messages: {lost}.\n")
    assert posted["id"] in result.stdout


def test_what_has_finished_is_listed_and_replayed(zq: Zq) -> None:
    """Finished messages are selected by id or by time."""
    zq("queue", "create", "jobs", "_history_ttl=600")
    zq("post", "jobs", "-", given="1\n2\n")
    first, _ = zq("pop", "jobs", "--limit", "2")
    assert [(record["body"], record["outcome"]) for record in zq("history", "jobs")] == [(1, "popped"), (2, "popped")]
    assert len(zq("history", "jobs", "--limit", "1", "--since", "2020-01-01")) == 1
    assert zq("history", "jobs", "--until", "2020-01-01T10:00:00+00:00") == []
    assert zq("replay", "jobs", first["id"], "--dry-run")[0]["would_replay"] == 1
    assert zq("replay", "jobs", first["id"]) == [{"queue": "jobs", "replayed": 1}]
    assert zq("replay", "jobs", "--since", "2020-01-01", "--limit", "1")[0]["replayed"] == 1
    assert len(zq("list", "jobs")) == 2
    assert "popped" in zq.run("history", "jobs", "--table").stdout
    zq.refused(2, "replay", "jobs")


def test_what_was_changed_is_listed(zq: Zq) -> None:
    """The latest change is first, and a purge has its number of messages."""
    zq("post", "jobs", "-", given="1\n2\n")
    zq("queue", "purge", "jobs")
    zq("queue", "delete", "jobs")
    entries = wait_for(lambda: (found := zq("audit", "--limit", "0"))[1:] and found, 60, "two entries")
    told = [(entry["rule"], entry["object"], entry["messages"]) for entry in entries]
    assert told == [("queues:delete", "queue jobs", 0), ("queues:purge", "queue jobs", 2)]
    assert zq("audit", "--limit", "1") == entries[:1]
    assert zq("audit", "--since", "2020-01-01") == entries
    assert zq("audit", "--since", "2999-01-01") == []
    assert "/v2/queues/{queue}/purge" in zq.run("audit", "--table", COLUMNS="200").stdout
    zq.refused(2, "audit", "--since", "yesterday")


def test_topics_are_published_and_read_from_a_sequence(zq: Zq) -> None:
    """``zq tail`` reads one topic, or all topics that match a pattern."""
    zq("topic", "publish", "news.eu", "Oslo", "--attribute", "kind=city", "--attribute", "n:Number=1.5")
    zq("topic", "publish", "news.us", "-", given='"Ohio"\n"Iowa"\n')
    heard = zq("tail", "--match", "news.*", "--from", "0", "--limit", "3")
    assert [(event["topic"], event["body"]) for event in heard] == [
        ("news.eu", "Oslo"),
        ("news.us", "Ohio"),
        ("news.us", "Iowa"),
    ]
    assert heard[0]["attributes"] == {"kind": "city", "n": 1.5}
    assert bodies(zq("tail", "news.us", "--from", heard[1]["id"], "--limit", "1")) == ["Iowa"]
    assert "Oslo" in zq.run("tail", "news.eu", "--from", "0", "--limit", "1", "--table").stdout
    zq.refused(2, "tail")
    zq.refused(2, "tail", "news.eu", "--from", "x")


def test_health_reports_ok(zq: Zq) -> None:
    assert zq("health")[0]["status"] == "ok"


def test_messages_of_one_state_are_listed_and_one_is_found(zq: Zq) -> None:
    """``list --state`` and ``find`` work, and contradictory options are rejected."""
    zq("queue", "create", "jobs", "_default_message_delay=60")
    [posted] = zq("post", "jobs", '{"n": 1}')
    assert zq("list", "jobs", "--state", "ready") == []
    [late] = zq("list", "jobs", "--state", "delayed", "--starts")
    assert (late["body_start"], late["body_bytes"], "body" in late) == ('{"n": 1}', 8, False)
    assert zq("list", "jobs", "--state", "delayed")[0]["body"] == {"n": 1}
    assert '{"n": 1}' in zq.run("list", "jobs", "--state", "delayed", "--starts", "--table").stdout
    [found] = zq("find", late["id"])
    assert (found["queue"], found["state"], found["id"], found["body"]) == ("jobs", "delayed", late["id"], {"n": 1})
    zq.refused(3, "find", "none")
    zq.refused(2, "list", "jobs", "--state", "ready", "--claimed")
    assert posted
