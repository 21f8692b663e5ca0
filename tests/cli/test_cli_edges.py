# SPDX-License-Identifier: Apache-2.0
"""Typical mistakes in arguments and input: one error message, an exit code, and never a traceback."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import zq.cli
from tests.cli.conftest import Zq
from zq.cli.output import replace_controls
from zq.cli.root import cli

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "words",
    [
        ["list", "jobs", "--limit", str(10**22)],
        ["queue", "list", "--limit", str(10**22)],
        ["history", "jobs", "--limit", str(10**22)],
        ["history", "jobs", "--since", "0001-01-01"],
        ["pop", "jobs", "--wait", "9999999999"],
        ["top", "--interval", "nan"],
        ["top", "--interval", "1e300"],
        ["bench", "--size", str(10**14)],
        ["--retry", "nan", "health"],
        ["--retry", "inf", "health"],
        ["tail", "news", "--from", "²"],
        ["queue", "create", "\udcff"],
    ],
    ids=lambda words: " ".join(words[:3]).encode("ascii", "replace").decode(),
)
def test_unusable_values_are_refused(zq: Zq, words: list[str]) -> None:
    """The command is rejected before any request."""
    zq.refused(2, *words)


def test_environment_variable_that_is_not_utf8_is_refused(zq: Zq) -> None:
    """A value from the environment is checked like an argument."""
    assert "is not UTF-8" in zq.refused(2, "queue", "list", ZQ_PROJECT="\udcff")


@pytest.mark.parametrize("option", ["--token", "--project"])
def test_value_that_is_invalid_in_a_header_is_refused(zq: Zq, option: str) -> None:
    """The exit code is that of a wrong command line."""
    assert "control character" in zq.refused(2, option, "a\nb", "health")


def test_json_that_is_too_deep_is_refused(zq: Zq, tmp_path: Path) -> None:
    """The body, the metadata value and the line of a file are rejected; for a file the message names the line."""
    file = tmp_path / "deep.ndjson"
    file.write_text(f"{DEEP}\n")
    assert "too deep" in zq.refused(4, "post", "jobs", DEEP)
    assert "too deep" in zq.refused(4, "queue", "create", "jobs", f"x={DEEP}")
    assert "Line 1 is not valid JSON" in zq.refused(4, "post", "jobs", "--file", str(file))
    assert "Line 1 is not a valid line of an export" in zq.refused(4, "import", str(file))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("profiles = 5", "is not a valid configuration file"),
        ('profiles = "default"', "is not a valid configuration file"),
        ('profile = ["a"]', "is not a valid configuration file"),
        ("[profiles]\ndefault = 5", "must be strings"),
    ],
)
def test_malformed_configuration_file_is_refused(zq: Zq, tmp_path: Path, text: str, sentence: str) -> None:
    """The error names the file; a folder cannot be read."""
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert sentence in zq.refused(2, "--config", str(file), "queue", "list")
    assert "cannot be read" in zq.refused(2, "--config", str(tmp_path), "queue", "list")


def test_streams_may_be_closed_or_narrow(zq: Zq) -> None:
    """A closed stream counts as empty, and characters outside the encoding are escaped."""
    zq("post", "jobs", "häh")
    lines = "zq health >&-; zq post jobs - <&-; PYTHONIOENCODING=ascii zq list jobs --table"
    done = zq.shell(lines, "-eu")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"stored":0,' in done.stdout
    assert "h\\xe4h" in done.stdout


def test_ctrl_c_in_the_first_moment_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal may arrive while the program is still being loaded."""

    def cli() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "zq.cli.root", SimpleNamespace(cli=cli))  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as ended:
        zq.cli.main()
    assert ended.value.code == 130


def test_health_has_one_exit_code_for_all_failures(zq: Zq) -> None:
    """A server that is not zq also gives exit code 7."""
    zq.refused(7, "--url", f"{zq.env['ZQ_URL']}/nowhere", "health")


def test_a_password_in_the_url_is_never_shown(zq: Zq, tmp_path: Path) -> None:
    """The password is not in the output of -v, in results, or in the resume file."""
    zq.env["ZQ_URL"] = zq.env["ZQ_URL"].replace("://", "://user:secret@")
    result = zq.run("health", "-v")
    assert result.exit_code == 0
    assert "/v2/ping" in result.stderr
    file = tmp_path / "events.ndjson"
    file.write_text("1\n{torn\n")
    zq.refused(4, "post", "jobs", "--file", str(file))
    noted = (tmp_path / "events.ndjson.zq").read_text()
    assert '"url":"http://127.0.0.1' in noted
    assert "secret" not in result.output + noted


def test_tables_do_not_steer_the_terminal(zq: Zq) -> None:
    """Control characters in metadata are replaced."""
    zq("queue", "create", "jobs", "x=\x1b[2Jgone")
    assert "\x1b" not in zq.run("queue", "show", "jobs", "--table").stdout
    assert replace_controls("a\x9bb\tc\n") == "a�b�c�"


def test_ids_are_never_cut_off(zq: Zq) -> None:
    """Ids are complete on a narrow terminal, and without a terminal lines are not wrapped."""
    zq("post", "jobs", "word " * 15)
    (held,) = zq("claim", "jobs")
    zq("release", "jobs", held["claim"])
    narrow = zq.run("claim", "jobs", "--table", FORCE_COLOR="1", COLUMNS="60").stdout
    assert held["id"] in narrow
    assert "client." in narrow
    assert zq.run("list", "jobs", "--claimed", "--table", COLUMNS="20").stdout.count("\n") == 2


@pytest.mark.parametrize("group", [[], ["queue"], ["topic"], ["dlq"], ["pipeline"]])
def test_group_without_a_command_shows_its_help(zq: Zq, group: list[str]) -> None:
    """The help has lines, sections and examples, because new users type this first."""
    done = zq.run(*group)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(" ".join(["Usage: zq", *group]))
    assert "Options:" in lines
    if not group:
        assert {"Messages:", "Work:", "Examples:"} <= set(lines)
        assert "[env var: ZQ_URL]" in " ".join(done.stderr.split())
        assert [name for name in cli.commands if not any(line.startswith(f"  {name} ") for line in lines)] == []
