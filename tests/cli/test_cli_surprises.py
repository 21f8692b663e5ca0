# SPDX-License-Identifier: Apache-2.0
"""Likely mistakes: missing queues, unknown settings, ignored delays, malformed bodies, broken queues."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Zq
from tests.servers import ZqServer
from zq.model import QueueRef
from zq.storage import connect


@pytest.mark.parametrize(
    "words",
    [
        ["list", "ordres"],
        ["pop", "ordres"],
        ["claim", "ordres"],
        ["history", "ordres"],
        ["replay", "ordres", "--since", "2020-01-01"],
        ["consume", "ordres", "--until-empty", "--wait", "0"],
        ["consume", "ordres", "--until-empty", "--wait", "0", "--exec", "true"],
        ["consume", "ordres", "--until-empty", "--wait", "0", "--exec", "true", "--batch"],
        ["dlq", "list", "ordres"],
        ["dlq", "redrive", "ordres"],
        ["queue", "show", "ordres"],
        ["queue", "set", "ordres", "x=1"],
        ["queue", "stats", "ordres", "--table"],
        ["queue", "delete", "ordres"],
        ["queue", "purge", "ordres"],
    ],
    ids=" ".join,
)
def test_a_missing_queue_is_named_with_the_one_that_was_meant(zq: Zq, words: list[str]) -> None:
    """An existing empty queue is not an error."""
    zq("queue", "create", "orders")
    assert zq.refused(3, *words) == "There is no queue ordres in the project; did you mean orders?"
    assert [queue["name"] for queue in zq("queue", "list")] == ["orders"]


@pytest.mark.parametrize(
    "words", [["tail"], ["topic", "show"], ["topic", "stats"], ["topic", "delete"], ["topic", "purge"]], ids=" ".join
)
def test_a_missing_topic_is_named(zq: Zq, words: list[str]) -> None:
    """The error suggests no name if no similar topic exists."""
    zq("topic", "create", "news")
    assert zq.refused(3, *words, "wether") == "There is no topic wether in the project."


ID = "01a21a275ef5663ba78a65dc6ab1822d"


def test_existing_queues_are_processed_and_missing_queues_are_reported(zq: Zq) -> None:
    """Each missing queue is named."""
    zq("post", "jobs", "x")
    for words in (["stats"], ["purge"], ["delete"]):
        result = zq.run("queue", *words, "jbos", "jobs", "lost")
        assert (result.exit_code, len(result.stdout.splitlines())) == (3, 1)
        assert json.loads(result.stdout)["name"] == "jobs"
        assert "no queue jbos in the project" in result.stderr
        assert "no queue lost in the project" in result.stderr
    assert zq("queue", "list") == []


def test_an_empty_queue_is_no_mistake(zq: Zq) -> None:
    """A queue whose messages are all claimed is not an error, either."""
    zq("queue", "create", "jobs", "_history_ttl=60")
    for words in (["list"], ["pop"], ["claim"], ["history"], ["consume", "--until-empty", "--wait", "0"]):
        assert zq(words[0], "jobs", *words[1:]) == []
    assert zq("queue", "stats", "jobs")[0]["total"] == 0


def test_a_consumer_waits_for_a_queue_that_is_to_come_and_says_so(zq: Zq) -> None:
    """The consumer gets the message that creates the queue."""
    with zq.start("consume", "later", "--count", "1") as process:
        assert process.stderr is not None
        stderr = process.stderr.readline()
        assert stderr == "zq: There is no queue later in the project. Waiting for it.\n"
        zq("post", "later", "x")
        out, stderr = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["body"], stderr) == (0, "x", "")


@pytest.mark.parametrize("verb", ["create", "set"])
def test_unknown_settings_are_warned_of_and_stored(zq: Zq, verb: str) -> None:
    """Keys without an underscore may have any name."""
    zq("queue", "create", "jobs")
    result = zq.run("queue", verb, "jobs", "_dead_leter_queue=dead", "owner=shop")
    assert result.exit_code == 0
    assert (
        result.stderr
        == "zq: _dead_leter_queue is not a reserved metadata key of queues; did you mean _dead_letter_queue?\n"
    )
    if verb == "set":
        assert zq("queue", "show", "jobs")[0]["_dead_leter_queue"] == "dead"


def test_a_delay_that_the_queue_ignores_is_refused_unless_forced(zq: Zq, tmp_path: Path) -> None:
    """The delay of an argument, standard input or file is rejected; a delayed queue accepts it."""
    (tmp_path / "lines").write_text("1\n2\n")
    for count, words in enumerate((["x"], ["-"], ["--file", str(tmp_path / "lines")])):
        result = zq.run("post", "jobs", *words, "--delay", "10", given="1\n2\n")
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr.startswith("zq: The queue jobs ignores delays: set its _default_message_delay above 0")
        assert zq.run("post", "jobs", *words, "--delay", "10", "--force", given="1\n2\n").exit_code == 0
        assert zq("list", "jobs")[-1]["body"] == ("x", 2, 2)[count]
    assert [message["body"] for message in zq("list", "jobs")] == ["x", 1, 2, 1, 2]
    zq("queue", "create", "late", "_default_message_delay=1")
    assert zq.run("post", "late", "x", "--delay", "10").stderr == ""


@pytest.mark.parametrize("words", [["post", "jobs"], ["topic", "publish", "jobs"]], ids=" ".join)
@pytest.mark.parametrize("body", ['{"a": 1', ' [1, 2"', "[INFO] started"])
def test_malformed_json_body_is_refused(zq: Zq, words: list[str], body: str) -> None:
    """``--text`` posts the body as text."""
    stderr = zq.refused(2, *words, body)
    assert "looks like JSON but does not parse" in stderr
    assert "--text" in stderr
    assert zq(*words, body, "--text")
    assert zq(*words, '"{"')


def test_lines_that_are_no_json_are_refused_with_what_lines_are(zq: Zq, tmp_path: Path) -> None:
    """Users often try to post pretty-printed JSON."""
    pretty = json.dumps({"a": 1}, indent=2)
    (tmp_path / "pretty.json").write_text(pretty)
    for words in (["-"], ["--file", str(tmp_path / "pretty.json")]):
        result = zq.run("post", "jobs", *words, given=pretty)
        assert result.exit_code == 4
        assert "Each line must be one JSON value (NDJSON); use --text to post lines as text." in result.stderr


def test_a_broken_queue_hides_no_dead_letters_of_others(tmp_path: Path) -> None:
    """The error names the queue, whose dead-letter queue has an invalid name from an old server."""
    store = f"rocksdb://{tmp_path}/store"
    storage = connect(store)
    storage.queues.create(QueueRef("acme", "bad"), b'{"_dead_letter_queue": "bad name"}')
    storage.close()
    with ZqServer(store) as server:
        zq = Zq(server.url, tmp_path)
        zq.env["ZQ_PROJECT"] = "acme"
        for name in ("a", "z"):
            zq("queue", "create", name, f"_dead_letter_queue={name}.dead")
        result = zq.run("dlq", "list")
    assert [json.loads(line)["queue"] for line in result.stdout.splitlines()] == ["a", "z"]
    assert "bad name, which has the dead letters of bad, could not be read: A queue name must be" in result.stderr
    assert "1 could not be read: " in result.stderr
    assert result.exit_code == 4


@pytest.mark.parametrize(
    "words",
    [
        ("get", ID),
        ("settle", "a.b", "--delete", ID),
        ("move", "a.b", "--to", "elsewhere", ID),
        ("release", "a.b", ID),
        ("release", "a.b"),
        ("subscription", "show", ID),
        ("deliveries", "list", ID),
        ("deliveries", "list", "--topic", ID),
    ],
    ids=" ".join,
)
def test_a_command_about_a_part_of_a_missing_queue_names_the_queue(zq: Zq, words: tuple[str, ...]) -> None:
    """The error suggests a similar name; if the queue exists, the error is about the claim, message or subscription."""
    kind = "topic" if "--topic" in words else "queue"
    verbs = 2 if words[0] in ("subscription", "deliveries") else 1
    zq(kind, "create", "orders")
    at = words[:verbs], words[verbs:]
    said = zq.refused(3, *at[0], "order", *at[1])
    assert said == f"There is no {kind} order in the project; did you mean orders?"
    assert "There is no such" in (said := zq.refused(3, *at[0], "orders", *at[1])) or "no active claim" in said
