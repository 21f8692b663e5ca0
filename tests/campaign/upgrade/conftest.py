# SPDX-License-Identifier: Apache-2.0
"""Fixtures: durable stores only, and the released, the current and the next version of zq."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT
from tests.campaign.upgrade.versions import CURRENT, Version
from tests.faults.conftest import pytest_generate_tests, same_random_numbers  # noqa: F401
from tests.packaging.conftest import run

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Build and install the wheel of the commit in the file ``released``, without its dependencies.

    The commit is the last release, or a substitute before the first one. Change the file after each release.

    The present commit precedes levels: it opens stores of every level and publishes no record, so ``--finish`` does not
    find it. Tests that depend on levels must not use it.
    """
    commit, folder = (FOLDER / "released").read_text().strip(), tmp_path_factory.mktemp("released")
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    assert archive.returncode == 0, f"The clone must contain the commit {commit}: run git fetch --unshallow."
    (folder / "sources").mkdir()
    subprocess.run(["tar", "-x", "-C", folder / "sources"], input=archive.stdout, check=True)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, folder / "sources")
    [wheel] = folder.glob("*.whl")
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check"
    run(*pip, "install", "-q", "--no-deps", "--target", folder / "installed", wheel)
    return Version(folder / "installed")


@pytest.fixture(scope="session")
def current() -> Version:
    return CURRENT


@pytest.fixture(scope="session")
def following(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Copy this version as 0.2.0 with support for one more level."""
    return later(tmp_path_factory.mktemp("following"), "0.1", "0.2")


@pytest.fixture(scope="session")
def last(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """Copy this version as 0.3.0 with support for two more levels."""
    return later(tmp_path_factory.mktemp("last"), "0.1", "0.2", "0.3")


def later(folder: Path, *versions: str) -> Version:
    shutil.copytree(ROOT / "zq", folder / "zq", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in (
        ("zq/model/levels.py", 'VERSIONS: Final = ("0.1",)', f"VERSIONS: Final = {versions!r}"),
        ("zq/__init__.py", '__version__ = "0.1.0"', f'__version__ = "{versions[-1]}.0"'),
    ):
        text = (folder / name).read_text()
        assert old in text, f"{name} has no line {old}"
        (folder / name).write_text(text.replace(old, new))
    return Version(folder)
