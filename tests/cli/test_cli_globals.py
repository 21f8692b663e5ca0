# SPDX-License-Identifier: Apache-2.0
"""Global options: accepted before and after a command's name, described once, and the last one wins."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Zq, paths
from zq.cli.session import GLOBAL_OPTIONS


def queues(zq: Zq, *words: str, **env: str) -> list[str]:
    """Return the names in the output of a listing."""
    result = zq.run(*words, **env)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["name"] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "words",
    [
        ["--project", "A", "queue", "list"],
        ["queue", "--project", "A", "list"],
        ["queue", "list", "--project", "A"],
        ["--project", "B", "queue", "list", "--project", "A"],
        ["queue", "--project", "B", "list", "--project=A"],
        ["queue", "list", "--project", "B", "--project", "A"],
    ],
    ids=" ".join,
)
def test_the_last_project_given_wins_wherever_it_stands(zq: Zq, words: list[str]) -> None:
    """The option may precede or follow the group or follow the command, and always overrides the environment."""
    first, second = f"{zq.project}-a", f"{zq.project}-b"
    zq("queue", "create", "mine", "--project", first)
    zq("queue", "create", "other", "--project", second)
    words = [word.replace("A", first).replace("B", second) for word in words]
    assert queues(zq, *words) == ["mine"]
    assert queues(zq, *words, ZQ_PROJECT=second) == ["mine"]


def test_connection_options_work_after_the_command(zq: Zq, tmp_path: Path) -> None:
    """Every connection option also works after the command."""
    zq("queue", "create", "here")
    file = tmp_path / "profiles.toml"
    file.write_text(f'[profiles.mine]\nurl = "{zq.env["ZQ_URL"]}"\nproject = "{zq.project}"\n')
    bare = {"ZQ_URL": "", "ZQ_PROJECT": ""}
    assert queues(zq, "queue", "list", "--config", str(file), "--profile", "mine", **bare) == ["here"]
    own = ["--url", zq.env["ZQ_URL"], "--project", zq.project]
    assert queues(zq, "queue", "list", *own, **bare) == ["here"]
    assert "cannot be reached" in zq.refused(7, "health", "--url", "http://127.0.0.1:1", "--retry", "0")
    assert "control character" in zq.refused(2, "health", "--client-id", "a\nb")
    assert "control character" in zq.refused(2, "health", "--token", "a\nb")
    assert "a number of seconds" in zq.refused(2, "health", "--retry", "1e300")


def test_names_are_completed_by_the_server_named_behind_the_command(zq: Zq) -> None:
    """The completed names belong to the given project; options are completed, too."""
    other = f"{zq.project}-other"
    zq("queue", "create", "jobs", "--project", other)

    def completed(*words: str) -> list[str]:
        asked = {"_ZQ_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["zq", *words])}
        result = zq.run(**asked, COMP_CWORD=str(len(words)))
        return [word.partition(",")[2] for word in result.stdout.split()]

    assert completed("queue", "show", "--project", other, "j") == ["jobs"]
    assert completed("queue", "show", "j") == []
    assert "--project" in completed("queue", "show", "--pro")


def test_every_help_points_to_the_global_options_and_only_the_programs_describes_them(zq: Zq) -> None:
    """The description of an option names its environment variable, if there is one."""
    described = " ".join(zq.run("--help").stdout.split())
    for option in GLOBAL_OPTIONS:
        assert option.opts[0] in described
        assert option.envvar is None or f"[env var: {option.envvar}]" in described
    for path in paths():
        shown = zq.run(*path, "--help").stdout
        assert "zq --help" in shown.splitlines()[-1]
        assert "ZQ_URL" not in shown
