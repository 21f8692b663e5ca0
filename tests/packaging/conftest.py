# SPDX-License-Identifier: Apache-2.0
"""The source archive and the wheel, built once, and commands as a user's shell runs them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT


def run(*command: str | Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with only PATH, home and pip's index of this process's environment.

    pip does not compile modules, since most are never imported here.
    """
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "PIP_INDEX_URL", "PIP_CONFIG_FILE") if name in os.environ
    }
    kept["PIP_COMPILE"] = "0"
    done = subprocess.run(
        [str(part) for part in command], env=kept | variables, cwd="/", capture_output=True, text=True, timeout=280
    )
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a source archive and of the wheel that ``python -m build`` makes of it."""
    folder, sources = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("sources") / "zq"
    # A build writes into its sources, and several test processes build.
    ignored = shutil.ignore_patterns(
        ".*cache", ".git", ".venv", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist"
    )
    shutil.copytree(ROOT, sources, ignore=ignored)
    run(sys.executable, "-m", "build", "--outdir", folder, sources)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    [built] = dist.glob("zq_queue-*.whl")
    return built
