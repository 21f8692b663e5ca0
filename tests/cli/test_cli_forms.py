# SPDX-License-Identifier: Apache-2.0
"""``--output`` and ``--query``: output formats and JMESPath queries."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Zq
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.model import Draft, QueueRef, new_ids
from zq.storage import connect
from zq.testing import _serving


def posted(zq: Zq) -> None:
    """Post three messages, one of them difficult to encode, and create an empty queue."""
    zq("queue", "create", "empty")
    zq("post", "jobs", "-", given='{"n": 1, "s": "a: b"}\n{"n": 2, "s": "no"}\n{"n": 3, "s": "é\\u0007"}\n')


def queried(zq: Zq, expression: str, *words: str) -> list[Any]:
    """Return the lines of a run with a query."""
    return zq(*words, "--query", expression)


@pytest.mark.parametrize("words", [["list", "jobs"], ["queue", "stats"], ["list", "empty"]], ids=" ".join)
def test_yaml_holds_what_json_lines_hold(zq: Zq, words: list[str]) -> None:
    """YAML is a list, also if it is empty, and quotes text that looks like another type."""
    posted(zq)
    lines = zq(*words)
    shown = zq.run(*words, "--output", "yaml").stdout
    assert yaml.safe_load(shown) == lines
    assert "\x07" not in shown


def test_objects_are_yaml_documents(zq: Zq) -> None:
    """The output has one YAML document for each object."""
    zq("queue", "create", "jobs", "owner=shop")
    assert yaml.safe_load(zq.run("queue", "show", "jobs", "--output", "yaml").stdout)["owner"] == "shop"
    zq("queue", "create", "mail")
    done = zq.run("queue", "purge", "jobs", "mail", "--output", "yaml").stdout
    assert [found["name"] for found in yaml.safe_load_all(done)] == ["jobs", "mail"]


def test_endless_output_is_a_growing_list(zq: Zq) -> None:
    """The output is a list of YAML entries, or of the query's results."""
    zq("topic", "publish", "news", "Oslo")
    zq("topic", "publish", "news", "Ohio")
    words = ["tail", "news", "--from", "0", "--limit", "2"]
    assert [event["body"] for event in yaml.safe_load(zq.run(*words, "--output", "yaml").stdout)] == ["Oslo", "Ohio"]
    assert queried(zq, "body", *words) == ["Oslo", "Ohio"]
    assert zq.run(*words, "--query", "body", "--table").stdout == "Oslo\nOhio\n"


def test_a_query_works_on_the_whole_list_or_on_the_thing(zq: Zq) -> None:
    """A query behaves like that of the AWS CLI; if its result is a list, each item is a line."""
    posted(zq)
    assert queried(zq, "[].body.n", "list", "jobs") == [1, 2, 3]
    assert queried(zq, "length(@)", "list", "jobs") == [3]
    assert queried(zq, "[?body.n > `1`] | [0].body.s", "list", "jobs") == ["no"]
    assert queried(zq, "name", "queue", "show", "jobs") == ["jobs"]
    assert queried(zq, "[].body", "list", "empty") == []
    assert yaml.safe_load(zq.run("list", "jobs", "--query", "[].body.n", "--output", "yaml").stdout) == [1, 2, 3]


def test_a_table_shows_what_a_query_has_left(zq: Zq) -> None:
    """Members become columns; lists, plain texts and single objects are shown, too."""
    posted(zq)

    def shown(expression: str) -> list[list[str]]:
        result = zq.run("list", "jobs", "--table", "--limit", "2", "--query", expression)
        return [line.split() for line in result.stdout.splitlines()]

    assert shown("[].{number: body.n, word: body.s}") == [["number", "word"], ["1", "a:", "b"], ["2", "no"]]
    assert shown("[].[body.n, body.s]") == [["1", "a:", "b"], ["2", "no"]]
    assert shown("[].body.s") == [["a:", "b"], ["no"]]
    assert shown("[1].body") == [["n", "2"], ["s", "no"]]


def test_the_last_form_given_wins(zq: Zq) -> None:
    """--json and --table are short forms of --output."""
    zq("queue", "create", "jobs")
    for words in (["--table", "queue", "list", "--output", "yaml"], ["queue", "list", "--json", "--output=yaml"]):
        assert yaml.safe_load(zq.run(*words).stdout)[0]["name"] == "jobs"
    for words in (["--output", "yaml", "queue", "list", "--json"], ["queue", "list", "--output", "yaml", "--json"]):
        assert json.loads(zq.run(*words).stdout)["name"] == "jobs"


def test_invalid_query_is_refused_before_the_command_runs(zq: Zq) -> None:
    """If a valid query fails on the result, the unchanged result is shown with exit code 2."""
    posted(zq)
    assert "Invalid jmespath expression" in zq.refused(2, "pop", "jobs", "--query", "[?a")
    assert len(zq("list", "jobs")) == 3
    result = zq.run("pop", "jobs", "--query", "nonsense(@)")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["body"]["n"] == 1
    assert "result is shown: Unknown function: nonsense()" in result.stderr
    assert "'xml' is not one of" in zq.refused(2, "queue", "list", "--output", "xml")


def test_a_library_that_is_missing_is_named(zq: Zq) -> None:
    """The error names the extra to install; jmespath is loaded only if it is needed."""
    code = "import sys; sys.modules['jmespath'] = None; from zq.cli import main; main()"
    words = [sys.executable, "-c", code, "health"]
    own = {**os.environ, **zq.env}
    assert subprocess.run(words, env=own, capture_output=True, check=False).returncode == 0
    done = subprocess.run([*words, "--query", "@"], env=own, capture_output=True, text=True, check=False)
    stderr = "zq: The package jmespath is missing. Install it with pip install 'zq-queue[cli]'.\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", stderr)


@pytest.fixture
def old(tmp_path: Path) -> Iterator[tuple[Zq, str]]:
    """Yield a command line, and the id of an undecodable message between two others that an old server stored."""
    storage = connect("memory:")
    now = storage.now()
    with _serving(create_app(Broker(storage, ManualClock(now)))) as url:
        zq = Zq(url, tmp_path)
        contents = (b'"first"', b"[1e999]", b'"last"')
        drafts = [Draft(id, body, 600, 0, "old") for id, body in zip(new_ids(3, now), contents, strict=True)]
        storage.queues.create(QueueRef(zq.project, "jobs"), b"{}")
        storage.messages.post(QueueRef(zq.project, "jobs"), drafts, now)
        yield zq, drafts[1].id


@pytest.mark.parametrize("verb", [["list"], ["claim"], ["pop", "--limit", "3"]])
def test_a_query_of_a_body_that_cannot_be_decoded_shows_the_result_and_names_the_message(
    old: tuple[Zq, str], verb: list[str]
) -> None:
    """A pop must not lose messages: the output has all of them without the query."""
    zq, message = old
    result = zq.run(verb[0], "jobs", *verb[1:], "--query", "[].body")
    assert (result.exit_code, len(result.stdout.splitlines())) == (2, 3)
    assert f"result is shown: The body of message {message} cannot be decoded: " in result.stderr


@pytest.mark.parametrize("form", ["json", "yaml", "table"])
def test_a_body_that_cannot_be_decoded_is_shown_in_each_form(old: tuple[Zq, str], form: str) -> None:
    """The body is shown in lists, for a single message, and in the result of ``find``."""
    zq, message = old
    for words in (["list", "jobs"], ["get", "jobs", message], ["find", message]):
        result = zq.run(*words, "--output", form)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "[1e999]" in result.stdout
