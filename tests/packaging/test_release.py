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
    assert release(clone).stderr == f"devstack/release: {place} has no version in the expected line.\n"


def test_a_changelog_with_later_changes_is_refused(clone: Path) -> None:
    """The changes below the first heading would not belong to the release."""
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [", "## [Unreleased]\n\n- A fix.\n\n## [", 1))
    assert release(clone).stderr == "devstack/release: CHANGELOG.md has no version in the expected line.\n"


def test_a_version_that_another_commit_has_is_refused(clone: Path) -> None:
    """A release is a tag. The tagged commit itself may be built again, here until its package is missing."""
    git = ("git", "-C", clone, "-c", "user.name=zq", "-c", "user.email=zq@example.org")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "Release"], ["tag", f"v{__version__}"]):
        subprocess.run([*git, *words], check=True)
    assert "Another commit" not in release(clone).stderr
    subprocess.run([*git, "commit", "-qm", "Fix", "--allow-empty"], check=True)
    sentence = f"Another commit has the tag v{__version__}: write a new version into {', '.join(PLACES)}.\n"
    done = release(clone)
    assert (done.returncode, done.stderr) == (2, f"devstack/release: {sentence}")
