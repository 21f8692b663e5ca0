# SPDX-License-Identifier: Apache-2.0
"""Ingest of files into the queue of a server, each row once."""

import re
from collections.abc import Callable

import pytest

from tests.client.misbehaving import LOST_ANSWER, LOST_REQUEST, Proxy, Trouble
from tests.rotation import rotated

pytest.importorskip("pyspark")

from click.testing import Result

from tests.spark.jobs import bodies, invoke, told
from zq.jobs import ingest

Run = Callable[..., Result]
# Arguments of a command that fails, its exit code, and a part of its error message.
WRONG: list[tuple[list[str], int, str]] = [
    (["none.json", "--queue", "in"], 1, "Path does not exist"),
    (["notes.txt", "--queue", "in"], 4, "does not show its format: give --format"),
    (["rows.csv", "--queue", "in", "--body", "text"], 4, "There is no column text"),
    (["rows.csv", "--queue", "in", "--url", "http://127.0.0.1:9"], 7, "cannot be reached"),
    (["rows.csv", "--queue", "in in"], 4, "name"),
    (["rows.csv", "--queue", "small"], 4, "100"),
    (["rows.csv"], 2, "--queue"),
]


@pytest.fixture
def run(spark, server, project) -> Run:
    return lambda name, *words: invoke(name, "--url", server.url, "--project", project, "--retry", 5, *words)


def test_files_of_each_format_become_messages(run: Run, spark, client, tmp_path) -> None:
    """Rows become typed objects; paths may be folders, patterns, names that look like patterns, and empty files."""
    (tmp_path / "a {1}.jsonl").write_text('{"n": 1.50, "z": null}\n\n"text"\n')
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.csv").write_text('id,name\n1,"Ann, ""the"" first"\n2,\n')
    (tmp_path / "a-empty.json").touch()
    (tmp_path / "b" / "empty.csv").touch()
    (tmp_path / "b" / "head.csv").write_text("id,name\n")
    frame = spark.sql(
        "select 1 n, timestamp'2026-01-02 03:04:05.123456' at, array('x') list, cast(null as int) none, X'ff' bytes"
    )
    frame.coalesce(1).write.parquet(f"{tmp_path}/c")
    [counts] = told(run("ingest", tmp_path / "a*", tmp_path / "b", tmp_path / "c", "--queue", "in", "--ttl", 500))
    assert counts == {"queue": "in", "files": 6, "stored_before": 0, "messages": 5, "rejected": 0}
    assert bodies(client, "in") == [
        {"n": 1.5, "z": None},
        "text",
        {"id": "1", "name": 'Ann, "the" first'},
        {"id": "2", "name": None},
        {"n": 1, "at": "2026-01-02T03:04:05.123456Z", "list": ["x"], "none": None, "bytes": "/w=="},
    ]
    assert {message.ttl for message in client.queue("in").list()} == {500}


def test_a_column_can_be_the_body(run: Run, spark, client, tmp_path) -> None:
    """The body is a member of JSON lines, a column as text or parsed as JSON, or bytes as base64."""
    (tmp_path / "a.json").write_text('{"id": 7, "body": {"n": [1]}}\n')
    (tmp_path / "b.csv").write_text("id,body\n1,17\n")
    (tmp_path / "empty.csv").touch()
    spark.sql("select X'7b00ff' body").coalesce(1).write.parquet(f"{tmp_path}/c")
    told(run("ingest", tmp_path, "--queue", "in", "--body", "body"))
    told(run("ingest", tmp_path / "b.csv", "--queue", "in", "--body", "body", "--parse", "--key", "again"))
    assert bodies(client, "in") == [{"n": [1]}, "17", "ewD/", 17]


def test_a_repeated_run_stores_only_what_is_new(run: Run, client, tmp_path) -> None:
    """Repeats are found by the name of the job or by the key; another key or another queue stores the rows again."""
    (tmp_path / "1.json").write_text("1\n")
    told(run("ingest", tmp_path, "--queue", "in"))
    (tmp_path / "2.json").write_text("2\n")
    [counts] = told(run("ingest", tmp_path, "--queue", "in"))
    assert (counts["files"], counts["stored_before"], counts["messages"]) == (1, 1, 1)
    assert bodies(client, "in") == [1, 2]
    key = ("--key", "scheduled__2026-01-01T00:00:00+00:00")
    for again in (0, 2):
        [counts] = told(run("ingest", tmp_path, "--queue", "in", *key))
        assert counts["stored_before"] == again
    told(run("ingest", tmp_path, "--queue", "other", *key))
    assert (bodies(client, "in"), bodies(client, "other")) == ([1, 2, 1, 2], [1, 2])


def test_invalid_rows_are_written_to_the_rejected_folder(run: Run, spark, client, tmp_path) -> None:
    """A rejected row is written with its file, text and reason; a repeated run does not write it twice."""
    (tmp_path / "in").mkdir()
    deep = b'{"body": ' + b"[" * 3000 + b"]" * 3000 + b"}"
    (tmp_path / "in" / "a.json").write_bytes(b'{"body": 1}\n{"body": \n{"else": 2}\n{"body": "\xff"}\n' + deep)
    (tmp_path / "in" / "b.csv").write_text("id,body\n1,one\n2,two,more\n3\n")
    given = (tmp_path / "in", "--queue", "in", "--body", "body", "--rejected", tmp_path / "out")
    [counts] = told(run("ingest", *given))
    assert (counts["messages"], counts["rejected"]) == (2, 6)
    told(run("ingest", *given))
    assert bodies(client, "in") == [1, "one"]
    rows = spark.read.option("recursiveFileLookup", "true").json(f"{tmp_path}/out").collect()
    found = sorted((row.file.rpartition("/")[2], row.raw) for row in rows)
    assert found[:2] == [("a.json", '{"body": '), ("a.json", '{"body": "\ufffd"}')]
    assert found[2:] == [("a.json", deep.decode()), ("a.json", '{"else": 2}'), ("b.csv", "2,two,more"), ("b.csv", "3")]
    assert {"it has no member body", "it is nested too deeply"} <= {row.reason for row in rows}


def test_a_file_that_grows_while_it_is_read_is_stored_as_it_was_checked(spark, tmp_path) -> None:
    """Rows that are appended in the meantime are not read, so that no incomplete line is silently omitted."""
    file = tmp_path / "a.json"
    file.write_text("1\n")
    rows = ingest.read_rows(spark, str(file), "json")
    with ingest.cache_rows(rows):
        assert ingest.check_rows(rows, str(file), None, strict=True) == 0
        with file.open("a") as more:
            more.write("2\n{torn")
        assert ingest.valid_bodies(rows).count() == 1


@pytest.mark.parametrize("strict", rotated([False, True], 1))
def test_rows_that_do_not_parse_fail_a_job_that_is_strict(run: Run, client, tmp_path, strict: bool) -> None:
    """A job without a place for rejected rows fails too; nothing of the file is stored until it is corrected."""
    (tmp_path / "a.json").write_text("1\n{\n")
    given = (tmp_path / "a.json", "--queue", "in", *(("--strict", "--rejected", tmp_path / "out") if strict else ()))
    failed = run("ingest", *given)
    assert failed.exit_code == 4
    assert re.match(r"zq: A row is invalid, so no row of file:\S+/a.json was stored: .+\.$", failed.stderr)
    assert (tmp_path / "out").exists() == strict
    assert bodies(client, "in") == []
    (tmp_path / "a.json").write_text("1\n2\n")
    told(run("ingest", *given))
    assert bodies(client, "in") == [1, 2]


@pytest.mark.parametrize(("words", "code", "sentence"), rotated(WRONG, 2))
def test_an_error_is_one_line(run: Run, client, tmp_path, words, code: int, sentence: str) -> None:
    """The exit code is that of the command line."""
    (tmp_path / "notes.txt").write_text("a\n")
    (tmp_path / "rows.csv").write_text(f"a\n{'1' * 200}\n")
    client.queue("small").create({"_max_messages_post_size": 100})
    failed = run("ingest", "--retry", 0, tmp_path / words[0], *words[1:])
    assert (failed.exit_code, failed.stdout) == (code, "")
    # If Spark is slow to fail, a line of progress is printed before the error.
    (told,) = [line for line in failed.stderr.splitlines() if not line.startswith("zq: ingest: file 1 of 1")]
    assert told.startswith("zq: ")
    assert sentence in told


@pytest.mark.parametrize(("trouble", "before"), rotated([(LOST_REQUEST, 1), (LOST_ANSWER, 2)], 1))
def test_an_ingest_that_broke_off_is_finished_by_its_repetition(
    run: Run, client, proxy: Proxy, tmp_path, trouble: Trouble, before: int
) -> None:
    """The job ended during the commit of the second of three files, before or after the server's decision."""
    for number in range(3):
        (tmp_path / f"{number}.json").write_text("".join(f"{number * 10 + line}\n" for line in range(10)))
    passed = [None] * 4  # the first file: request, commit, request; the second: request
    proxy.commits.extend([*passed, *[trouble] * 50])  # type: ignore[list-item]
    failed = run("ingest", "--retry", 0, "--url", proxy.url, tmp_path, "--queue", "in")
    assert failed.exit_code == 7
    assert bodies(client, "in") == [*range(10 * before)]
    [counts] = told(run("ingest", tmp_path, "--queue", "in"))
    assert (counts["files"], counts["stored_before"]) == (3 - before, before)
    assert bodies(client, "in") == [*range(30)]
