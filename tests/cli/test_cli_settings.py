# SPDX-License-Identifier: Apache-2.0
"""Configuration, errors, output formats, verbosity and completion of the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Zq
from tests.client.test_client_imports import SERVERS
from zq.cli.failures import EXIT_CODES, exit_code
from zq.client import PostStopped
from zq.errors import Unavailable

PROFILES = """
profile = "work"
[profiles.work]
url = "{url}"
project = "from-file"
[profiles.other]
url = "{url}"
project = "other"
[profiles.broken]
uri = "x"
"""


@pytest.fixture
def profiles(zq: Zq, tmp_path: Path) -> Zq:
    """Write a file with profiles and remove the server from the environment."""
    file = tmp_path / "zq" / "config.toml"
    file.parent.mkdir()
    file.write_text(PROFILES.replace("{url}", zq.env["ZQ_URL"]))
    zq.env |= {"ZQ_URL": "", "ZQ_PROJECT": ""}
    return zq


def project_of(zq: Zq, *words: str, **env: str) -> str:
    """Return the project of a run, which is identified by a new queue."""
    zq.run(*words, "queue", "create", "here", **env)
    found = [name for name in ("from-file", "other", "by-env", "by-flag") if zq("--project", name, "queue", "list")]
    for name in found:
        zq("--project", name, "queue", "delete", "here")
    return ",".join(found)


def test_flags_win_over_the_environment_and_that_over_the_file(profiles: Zq) -> None:
    """Each setting is resolved separately: the URL is always the file's."""
    assert project_of(profiles) == "from-file"
    assert project_of(profiles, "--profile", "other") == "other"
    assert project_of(profiles, ZQ_PROFILE="other") == "other"
    assert project_of(profiles, ZQ_PROJECT="by-env") == "by-env"
    assert project_of(profiles, "--project", "by-flag", ZQ_PROJECT="by-env") == "by-flag"


def test_configuration_errors_are_reported(profiles: Zq, tmp_path: Path) -> None:
    """The error names the file and the member."""
    assert "has no profile nope" in profiles.refused(2, "--profile", "nope", "queue", "list")
    assert "uri is not one of" in profiles.refused(2, "--profile", "broken", "queue", "list")
    assert "no configuration file" in profiles.refused(2, "--config", str(tmp_path / "no"), "queue", "list")
    (tmp_path / "torn.toml").write_text("profile = ")
    assert "is not valid TOML" in profiles.refused(2, "--config", str(tmp_path / "torn.toml"), "queue", "list")
    (tmp_path / "empty.toml").write_text("")
    assert "No project" in profiles.refused(2, "--config", str(tmp_path / "empty.toml"), "queue", "list")


def test_errors_are_one_sentence_with_the_code_of_their_kind(zq: Zq) -> None:
    """An error of the command line, the server or the network has an exit code of its kind."""
    assert zq.refused(2, "nonsense") == "No such command 'nonsense'."
    assert "Missing argument" in zq.refused(2, "queue", "create")
    assert "no queue lost" in zq.refused(3, "queue", "show", "lost")
    assert "no queue lost" in zq.refused(3, "get", "lost", "01a1ff731847d13bb34e49c265324706")
    assert "64 characters" in zq.refused(4, "queue", "create", "x" * 65)
    assert "cannot be reached" in zq.refused(7, "--url", "http://127.0.0.1:1", "--retry", "0", "health")
    for url in ("ftp://nowhere", "http://", "http://here:port", "http://[", "here:8888"):
        assert "is not a server URL" in zq.refused(2, "--url", url, "health")


def test_the_command_line_needs_nothing_of_the_server() -> None:
    """The command line can be installed without the server."""
    code = f"import sys, zq.cli.root; print(*{{{', '.join(map(repr, SERVERS.split()))}}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_a_post_that_stopped_has_the_code_of_its_cause() -> None:
    """The exit code is not that of ``PostStopped``, which only reports how far the post came."""
    stopped = PostStopped([], [])
    stopped.__cause__ = Unavailable("away")
    assert exit_code(stopped) == 7
    assert exit_code(ValueError()) == 1
    assert len({code for code, _ in EXIT_CODES.values()}) == 6


def test_people_get_tables_and_programs_json(zq: Zq) -> None:
    """``--table`` and ``--json`` work before and after the command."""
    zq("queue", "create", "jobs", "owner=shop", "size=3")
    (listed,) = zq("queue", "list")
    assert listed["metadata"]["owner"] == "shop"
    assert listed["metadata"]["size"] == 3
    for words in (["--table", "queue", "list"], ["queue", "list", "--table"]):
        head, row = zq.run(*words).stdout.splitlines()
        assert head.split() == ["name", "messages", "claimed", "oldest", "dead", "letters"]
        assert row.startswith("jobs")
    assert json.loads(zq.run("--table", "queue", "list", "--json").stdout)["name"] == "jobs"
    assert "shop" in zq.run("queue", "show", "jobs", "--table").stdout


def test_verbose_shows_requests_but_never_the_token(zq: Zq) -> None:
    """Requests and responses are shown on standard error."""
    shown = zq.run("--token", "secret", "queue", "list", "-v").stderr
    assert f"> GET {zq.env['ZQ_URL']}/v2/queues" in shown
    assert "< HTTP/1.1 200 OK" in shown
    assert "secret" not in shown
    assert zq.run("queue", "list").stderr == ""


def test_names_are_completed_from_the_server(zq: Zq) -> None:
    """Queue and topic names are completed; without a server the completion is empty and silent."""

    def completed(*words: str, **env: str) -> list[str]:
        line = " ".join(["zq", *words])
        asked = {"_ZQ_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words)), **env}
        result = zq.run(**asked)
        assert result.stderr == ""
        return [word.partition(",")[2] for word in result.stdout.split()]

    for name in ("jobs", "jams", "mail"):
        zq("queue", "create", name)
    zq("topic", "create", "news")
    assert completed("post", "j") == ["jams", "jobs"]
    assert completed("queue", "stats", "m") == ["mail"]
    assert completed("topic", "show", "n") == ["news"]
    assert completed("tail", "n") == ["news"]
    assert completed("post", "j", ZQ_URL="http://127.0.0.1:1") == []
    assert completed("queue", "cr") == ["create"]
    assert "_ZQ_COMPLETE=bash_complete" in zq.run("completion", "bash").stdout
