# SPDX-License-Identifier: Apache-2.0
"""The wheel, which is what a user installs, holds all that the program reads."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from tests.blocks import ROOT

BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def test_the_wheel_holds_every_script_of_redis_and_the_mark_of_types(tmp_path: Path) -> None:
    """Without its scripts the store on Redis ends with FileNotFoundError. It is built in a copy of the sources."""
    source, made = tmp_path / "source", tmp_path / "made"
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    for package in ("zq", "pyspark_zq"):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    made.mkdir()
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(made)], cwd=source, capture_output=True, text=True, timeout=120, check=False
    )
    assert built.returncode == 0, built.stderr
    with ZipFile(next(made.glob("*.whl"))) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    wanted = {str(file.relative_to(ROOT)) for package in ("zq", "pyspark_zq") for file in (ROOT / package).rglob("*.*")}
    wanted = {name for name in wanted if Path(name).suffix in (".py", ".lua", ".typed")}
    assert held == wanted
    assert sum(name.endswith(".lua") for name in held) > 50
