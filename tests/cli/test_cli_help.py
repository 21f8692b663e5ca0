# SPDX-License-Identifier: Apache-2.0
"""The output of ``--help``: complete sentences on 80 columns, and the server's bounds."""

import click
import pytest

from tests.cli.conftest import Zq, paths
from zq.cli.param_types import Count, Seconds
from zq.cli.root import cli
from zq.model.limits import MIN_TTL, Limits

BOUNDS = Limits()
NUMBERS = (click.types.IntParamType, click.types.FloatParamType)


def test_the_help_of_each_command_fits_the_screen_and_nothing_is_cut(zq: Zq) -> None:
    """No help sentence is truncated, and ranges are described in words."""
    shown = {" ".join(words): zq.run(*words, "--help", COLUMNS="80").stdout for words in [[], *paths()]}
    lines = [(words, line) for words, text in shown.items() for line in text.splitlines()]
    assert [(words, line) for words, line in lines if line.endswith(("...", "…")) and "Usage:" not in line] == []
    assert [(words, line) for words, line in lines if len(line) > 80] == []
    assert [(words, line) for words, line in lines if any(sign in line for sign in ("RANGE", "x>=", "%Y"))] == []


@pytest.mark.parametrize(
    ("words", "option", "most"),
    [
        (["post"], "--ttl", BOUNDS.max_message_ttl),
        (["topic", "publish"], "--ttl", BOUNDS.max_message_ttl),
        (["claim"], "--ttl", BOUNDS.max_claim_ttl),
        (["claim"], "--grace", BOUNDS.max_claim_grace),
        (["consume"], "--ttl", BOUNDS.max_claim_ttl),
    ],
    ids=str,
)
def test_lives_are_named_with_the_servers_bounds(zq: Zq, words: list[str], option: str, most: int) -> None:
    """The bounds come from zq.model.limits; a value below the minimum is rejected with them."""
    bounds = f"{MIN_TTL} to {most:,}"
    assert f"[{bounds}]" in " ".join(zq.run(*words, "--help", COLUMNS="200").stdout.split())
    said = zq.refused(2, *words, "jobs", "x", option, str(MIN_TTL - 1))
    assert said == f"Invalid value for '{option}': it must be an integer, {bounds}, not '{MIN_TTL - 1}'."


def test_only_the_server_knows_its_upper_bound(zq: Zq) -> None:
    """The server's maximum may differ, so the client sends values above the default."""
    said = zq.refused(4, "post", "jobs", "x", "--ttl", str(BOUNDS.max_message_ttl + 1))
    assert f"must be from {MIN_TTL} to {BOUNDS.max_message_ttl}" in said


def test_value_that_is_not_a_number_is_refused_in_plain_words(zq: Zq) -> None:
    """Every option for a number explains what it expects."""
    tried = 0
    for words in paths():
        command: click.Command = cli
        for word in words:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        for option in command.params:
            if isinstance(option.type, NUMBERS):
                assert isinstance(option.type, Count | Seconds)
                said = zq.refused(2, *words, option.opts[0], "abc")
                assert "it must be a" in said
                assert said.endswith("not 'abc'.")
                tried += 1
    assert tried > 20
    assert "is not a time such as 2026-05-31" in zq.refused(2, "history", "jobs", "--since", "abc")
