# SPDX-License-Identifier: Apache-2.0
"""Output on a terminal: tables that fit, units and colours; and plain output otherwise."""

import re

import pytest

from tests.cli.conftest import Zq
from zq.cli.output import READABLE_WIDTH, format_duration, shorten_id

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
SENTENCE = "a body of some forty characters and a few"


def bare(text: str) -> list[str]:
    """Return the lines without colours."""
    return COLOUR.sub("", text).splitlines()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((0, "0s"), (59, "59s"), (60, "1m"), (192, "3m 12s"), (3600, "1h"), (3661, "1h 1m"), (86_430, "1d")),
        *((1_209_600, "14d"), (90_000, "1d 1h"), (59.9, "59s"), (-3, "0s")),
    ],
)
def test_spans_have_two_units(seconds: float, shown: str) -> None:
    """A duration is shown in its two largest units."""
    assert format_duration(seconds) == shown


def test_ids_are_shortened_only_where_the_table_would_not_fit(zq: Zq) -> None:
    """A note explains how to see whole ids: a wide screen, --full, or no terminal."""
    (posted,) = zq("post", "jobs", SENTENCE, "--ttl", "192")
    code, shown, stderr = zq.on_terminal("list", "jobs")
    assert code == 0
    _, row = bare(shown)
    assert row.split()[0] == shorten_id(posted["id"])
    assert len(row.split()[0]) < READABLE_WIDTH
    assert row.endswith(f'"{SENTENCE}"')
    assert "3m 12s" in row
    assert "--full" in stderr
    for words in (["--full"], ["--json"]):
        _, shown, stderr = zq.on_terminal("list", "jobs", *words)
        assert posted["id"] in shown
        assert stderr == ""
    _, shown, stderr = zq.on_terminal("list", "jobs", columns=120)
    assert posted["id"] in shown
    assert stderr == ""
    assert posted["id"] in zq.run("list", "jobs", "--table").stdout


def test_ids_that_the_next_command_needs_are_whole(zq: Zq) -> None:
    """The ids of claimed messages are complete, and the claim is shown once above the table."""
    ids = [zq("post", "jobs", SENTENCE)[0]["id"] for _ in range(2)]
    _, shown, stderr = zq.on_terminal("claim", "jobs")
    lines = bare(shown)
    assert lines[0].split()[0] == "claim"
    assert lines[0].split()[1].startswith("client.")
    assert shown.count("client.") == 1
    assert all(name in shown for name in ids)
    assert stderr == ""
    assert zq("settle", "jobs", lines[0].split()[1], "--all")[0]["deleted"] == 2
    assert bare(zq.on_terminal("claim", "jobs")[1])[0].split()[0] == "id"


def test_popped_messages_are_shown_in_full(zq: Zq) -> None:
    """Popped and single messages are shown in full; a listing truncates long bodies unless --full is given."""
    long = "x" * 300
    (posted,) = zq("post", "jobs", long)
    assert "…" in zq.on_terminal("list", "jobs")[1]
    whole = (["list", "jobs", "--full"], ["get", "jobs", posted["id"]], ["pop", "jobs"])
    for words in whole:
        assert zq.on_terminal(*words)[1].count("x") == len(long)


def test_numbers_stand_at_the_right_and_ages_have_units(zq: Zq) -> None:
    """Aligned numbers are easy to compare."""
    for count, name in ((3, "a"), (12, "b")):
        zq("post", name, "-", given="1\n" * count)
    head, first, second = bare(zq.on_terminal("queue", "stats")[1])
    end = head.index("total") + len("total")
    assert (first[:end].split()[-1], second[:end].split()[-1]) == ("3", "12")
    assert re.search(r"\d+s", first)


def test_a_terminal_gets_colours_unless_it_wants_none(zq: Zq) -> None:
    """Tables and errors have colours on a terminal, but not with NO_COLOR or in a pipe."""
    zq("post", "jobs", "x")
    red = "\x1b[31mzq: There is no queue lost"
    _, shown, _ = zq.on_terminal("list", "jobs", columns=120)
    assert "\x1b[36m" in shown
    assert red in zq.on_terminal("queue", "show", "lost")[2]
    for words in (["list", "jobs"], ["queue", "show", "lost"]):
        _, shown, stderr = zq.on_terminal(*words, columns=120, NO_COLOR="1")
        assert re.findall(r"\x1b\[3\d", shown + stderr) == []
        result = zq.run(*words, "--table")
        assert "\x1b" not in result.stdout + result.stderr
