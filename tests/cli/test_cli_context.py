# SPDX-License-Identifier: Apache-2.0
"""``zq context``: creating and selecting profiles, and the source of each value."""

import os
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Zq

TOKEN = "gAAAAAB-a-long-token-wxyz"
FILE = """# Servers of ours.
profile = "work"  # chosen by hand

[profiles.work]
url = "http://u:s3cret@localhost:1"  # the old one
project = "acme"
token = "short"

[profiles.lab]
url = "http://localhost:2"
"""


@pytest.fixture
def bare(zq: Zq) -> Zq:
    """Return a command line without URL and project in the environment."""
    zq.env |= {"ZQ_URL": "", "ZQ_PROJECT": ""}
    return zq


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "zq" / "config.toml"


@pytest.fixture
def file(path: Path) -> Path:
    """Write a configuration file like a user would."""
    path.parent.mkdir()
    path.write_text(FILE)
    return path


def origins(zq: Zq, *words: str, **env: str) -> dict[str, tuple[str | None, str | None]]:
    """Return the value and the source of each setting."""
    zq.env |= env
    return {row["name"]: (row["value"], row["from"]) for row in zq("context", "show", *words)}


def test_the_first_profile_is_made_and_used_without_an_editor(zq: Zq, path: Path) -> None:
    """The profile is active immediately, and only the owner can read the file, whatever the umask."""
    url, project = zq.env["ZQ_URL"], zq.project
    zq.env |= {"ZQ_URL": "", "ZQ_PROJECT": ""}
    assert "No project is set" in zq.refused(2, "queue", "list")
    before = os.umask(0)
    try:
        (made,) = zq("context", "set", "mine", f"url={url}", f"project={project}")
    finally:
        os.umask(before)
    assert (made["name"], made["in_force"], made["project"]) == ("mine", True, project)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]
    zq("queue", "create", "here")
    assert [queue["name"] for queue in zq("queue", "list")] == ["here"]


def test_use_changes_one_line_and_keeps_all_others(bare: Zq, file: Path) -> None:
    """Comments are kept, and a file that other users can read becomes private."""
    assert bare("context", "use", "lab")[0]["in_force"] is True
    assert file.read_text() == FILE.replace('profile = "work"', 'profile = "lab"')
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [(row["name"], row["in_force"]) for row in bare("context", "list")] == [("work", False), ("lab", True)]
    assert "has no profile nope" in bare.refused(2, "context", "use", "nope")


def test_set_changes_and_removes_members(bare: Zq, file: Path) -> None:
    """Only the named profile changes; an empty value removes a member; an unusable value is rejected."""
    bare("context", "set", "work", "url=http://localhost:3", "project=")
    text = file.read_text()
    assert 'url = "http://localhost:3"  # the old one' in text
    assert "acme" not in text
    assert "# Servers of ours." in text
    assert bare("context", "set", "new", "project=p")[0]["in_force"] is False
    assert [row["name"] for row in bare("context", "list")] == ["work", "lab", "new"]
    before = file.read_text()
    assert "is not a server URL" in bare.refused(2, "context", "set", "lab", "url=nonsense")
    assert "uri is not one of url," in bare.refused(2, "context", "set", "lab", "uri=x")
    assert "control character" in bare.refused(2, "context", "set", "lab", "token=a\nb")
    assert file.read_text() == before


def test_show_names_the_origin_of_each_value(bare: Zq, file: Path) -> None:
    """A flag overrides the environment, then the profile, then the default."""
    found = origins(bare)
    assert found["config"] == (str(file), "default")
    assert found["profile"] == ("work", "config")
    assert found["url"] == ("http://localhost:1", "profile work")
    assert found["project"] == ("acme", "profile work")
    assert found["client_id"] == (None, None)
    found = origins(bare, "--project", "by-flag", ZQ_PROJECT="by-env", ZQ_PROFILE="lab")
    assert found["profile"] == ("lab", "ZQ_PROFILE")
    assert found["project"] == ("by-flag", "--project")
    assert origins(bare)["project"] == ("by-env", "ZQ_PROJECT")
    assert origins(bare, "work")["profile"] == ("work", "NAME")
    assert origins(bare, "--profile", "work", "--url", "http://localhost:9")["token"] == (None, None)
    file.unlink()
    found = origins(bare, ZQ_PROFILE="", ZQ_PROJECT="")
    assert (found["profile"], found["url"]) == ((None, None), ("http://localhost:8888", "default"))


def test_a_profile_of_the_environment_wins_and_that_is_said(bare: Zq, file: Path) -> None:
    """Without the message ``use`` would seem to have no effect."""
    result = bare.run("context", "use", "lab", ZQ_PROFILE="work")
    assert (result.exit_code, result.stderr) == (0, "zq: ZQ_PROFILE selects work, which overrides the file.\n")
    assert '"in_force":false' in result.stdout
    assert 'profile = "lab"' in file.read_text()


def test_no_command_shows_a_whole_token_or_a_password(bare: Zq, file: Path) -> None:
    """The end of a long token is shown, so that the user can recognise it."""
    bare.run("context", "set", "lab", "token=-", given=f"{TOKEN}\n")
    assert f'token = "{TOKEN}"' in file.read_text()
    for words in (["list"], ["show"], ["show", "lab"], ["use", "work"], ["set", "lab", "project=x"]):
        for form in ("--json", "--table"):
            result = bare.run("context", *words, form)
            assert result.exit_code == 0
            assert TOKEN not in result.output
            assert "short" not in result.output
            assert "s3cret" not in result.output
    assert bare("context", "list")[1]["token"] == "…wxyz"


def test_a_file_that_is_linked_stays_a_link(bare: Zq, path: Path, tmp_path: Path) -> None:
    """Users keep their dotfiles in another folder and link to them."""
    real = tmp_path / "dotfiles.toml"
    real.write_text(FILE)
    path.parent.mkdir()
    path.symlink_to(real)
    bare("context", "use", "lab")
    assert path.is_symlink()
    assert 'profile = "lab"' in real.read_text()
