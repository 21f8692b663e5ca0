# SPDX-License-Identifier: Apache-2.0
"""``zq export``, ``zq import``, ``zq bench``."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from tests.cli.conftest import Zq
from zq.cli.bench import percentile
from zq.cli.transfer import Carried, Named, parts


def filled(zq: Zq) -> None:
    """A project with something of everything."""
    zq("queue", "create", "jobs", "_dead_letter_queue=jobs.dead", "_default_message_delay=1", "owner=shop")
    zq("post", "jobs", "-", given="".join(f'{{"n": {number}}}\n' for number in range(50)))
    zq("post", "jobs", "later", "--delay", "600", "--ttl", "900")
    zq("queue", "create", "empty")
    zq("topic", "create", "news", "size=3")
    zq("topic", "publish", "news", "-", given='"a"\n"b"\n')


def content(zq: Zq) -> list[Any]:
    """All that a project has, but ids and moments."""
    exported = [msgspec.json.decode(line) for line in zq.run("export").stdout.splitlines()]
    return [{key: value for key, value in line.items() if key not in ("id", "ttl", "delay")} for line in exported]


def test_a_project_is_carried_into_another_one_and_a_repeat_adds_nothing(zq: Zq, tmp_path: Path) -> None:
    """Metadata, order, delays; not the defaults, which are the server's affair."""
    filled(zq)
    file = tmp_path / "project.ndjson"
    assert zq("export", "--to", str(file)) == [{"file": str(file), "messages": 53}]
    before = content(zq)
    assert {"is": "named", "of": "queue", "name": "empty", "metadata": {}} in before
    other = Zq(zq.env["ZQ_URL"], tmp_path)
    for _ in range(2):
        assert other("import", str(file)) == [{"queues and topics": 3, "messages": 53}]
        assert content(other) == before
    (late,) = [message for message in other("list", "jobs", "--delayed", "--limit", "0") if message["body"] == "later"]
    assert 800 < late["ttl"] <= 900


def test_what_is_no_export_is_refused_with_its_line(zq: Zq, tmp_path: Path) -> None:
    """Nothing behind it is brought in."""
    file = tmp_path / "project.ndjson"
    file.write_text('{"is":"named","of":"queue","name":"jobs","metadata":{}}\n{"n": 1}\n')
    assert "Line 2 is none of an export" in zq.refused(4, "import", str(file))


def test_batches_of_an_import_depend_on_the_file_alone() -> None:
    """By the bound of their queue, by count, by where they go."""
    lines = [Named("queue", "small", {"_max_messages_post_size": 300}), Named("queue", "big", {})]
    small = [Carried("queue", "small", str(number), Raw(b"1" * 36), 60) for number in range(5)]
    big = [Carried("queue", "big", str(number), Raw(b"1"), 60) for number in range(1001)]
    cut = [len(part) for part in parts([*lines, *small, *big]) if not isinstance(part, Named)]
    assert cut == [3, 2, 1000, 1]


def test_a_bench_measures_each_verb_and_leaves_nothing(zq: Zq) -> None:
    """All messages are posted, claimed and deleted; the queue is gone."""
    rows = zq("bench", "--messages", "60", "--batch", "10", "--concurrency", "2", "--size", "10")
    assert [(row["verb"], row["requests"], row["messages"]) for row in rows] == [
        ("post", 6, 60),
        ("claim", 6, 60),
        ("delete", 6, 60),
    ]
    assert all(0 < row["p50"] <= row["p99"] <= row["p100"] for row in rows)
    assert zq("queue", "list") == []


def test_a_percentile_is_a_span_that_was_measured() -> None:
    """Nearest rank."""
    spans = [float(number) for number in range(1, 201)]
    assert [percentile(spans, part) for part in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert percentile([7.0], 50) == 7
    assert percentile([], 50) == 0
