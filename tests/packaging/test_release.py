# SPDX-License-Identifier: Apache-2.0
"""Refusal of a release with inconsistent versions by ``devstack/release``; tests/campaign/packages builds a release."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT
from zq import __version__

PLACES = ["zq/__init__.py", "CHANGELOG.md", "Dockerfile", "deploy/kubernetes/base/kustomization.yaml"]


def release(clone: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "devstack" / "release.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a copy of the files that the check reads."""
    for name in [*PLACES, "devstack/release.py"]:
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy)
    return tmp_path


def test_all_places_have_the_version_of_the_package() -> None:
    done = release(ROOT, "--check")
    assert (done.returncode, done.stdout) == (0, f"All {len(PLACES)} places have version {__version__}.\n"), done


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_place_with_another_version_is_named(clone: Path, place: str) -> None:
    text = (clone / place).read_text()
    (clone / place).write_text(text.replace(__version__, "9.9.9"))
    done = release(clone)
    sentence = f"devstack/release: {place} has version 9.9.9, but zq/__init__.py has {__version__}.\n"
    assert (done.returncode, done.stderr) == (2, sentence)
    (clone / place).write_text("\n")
    assert release(clone).stderr == f"devstack/release: {place} has no version.\n"
