# SPDX-License-Identifier: Apache-2.0
"""What is installed beside zq: the image's packages are those of the lock file, and every package's licence is told."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tests.packaging import licences
from tests.packaging.test_wheel import ROOT, environment, life_cycle, pip, run, serving
from tests.stores import Stores

pytestmark = pytest.mark.slow

LOCK = ROOT / "etc" / "requirements.lock"
IMAGE = (
    *("server", "rocksdb", "mongodb", "redis", "object", "granian", "fast", "delivery", "encryption", "jwt"),
    "websocket",
)
PINNED = re.compile(r"^(\S+)==(\S+)(?: ; (.+?))?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
OPTIONAL = "fast"
"""An extra that needs a compiler, so that not every environment of the tests has it."""


@pytest.fixture(scope="module")
def locked() -> dict[str, str]:
    """Versions by the names of packages that this Python needs. Nothing stands in the file but packages with hashes."""
    text = "".join(line for line in LOCK.read_text().splitlines(keepends=True) if not line.startswith("#"))
    assert PINNED.sub("", text).strip() == ""
    return {
        canonicalize_name(name): number
        for name, number, marker, _ in PINNED.findall(text)
        if not marker or Marker(marker).evaluate()
    }


def test_the_lock_file_satisfies_what_setup_cfg_asks_for(locked: dict[str, str]) -> None:
    """Of the extras that its first lines name, which are the image's; nothing that these need is missing."""
    assert tuple(re.findall(r"--extra (\w+)", LOCK.read_text())) == IMAGE
    for extra in (licences.CLIENT, *IMAGE):
        for wanted in licences.requirements(extra):
            assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), f"{wanted}: {locked}"
        if extra != OPTIONAL:
            assert licences.packages(extra) - set(locked) == set()


def test_the_licence_of_every_dependency_is_listed(locked: dict[str, str]) -> None:
    """Of the client and of each extra, with all that they bring; none of these is silent about it."""
    page = (ROOT / "api-ref" / "licences.md").read_text()
    listed = dict(re.findall(r"^\| \[([\w.-]+)\]\(\S+\) \| ([^|]+) \|", page, re.MULTILINE))
    needed = set(locked)
    for extra in (licences.CLIENT, *licences.EXTRAS):
        needed |= {canonicalize_name(wanted.name) for wanted in licences.requirements(extra)}
        needed |= licences.packages(extra) if extra != OPTIONAL else set()
    assert needed - set(listed) == set()
    assert [name for name, licence in listed.items() if not licence.strip() or "UNKNOWN" in licence] == []


def test_neither_nothing_nor_a_whole_text_is_a_licence_s_name() -> None:
    """The check itself."""
    assert licences.named([None, "", "UNKNOWN", "Permission is hereby granted, " * 9]) is None
    assert licences.named([None, "UNKNOWN", "MIT\n"]) == "MIT"


@pytest.mark.timeout(900)
def test_the_image_s_commands_make_a_server_of_the_locked_packages(
    stores: Stores, tmp_path: Path, locked: dict[str, str]
) -> None:
    """The Dockerfile's own lines, in a folder that has what they copy: nothing but the lock's packages is installed.

    Only pip's cache is used here, where there is one; hashes are compared all the same.
    """
    source, home, here = tmp_path / "src", environment(tmp_path / "zq"), Path(sys.executable).parents[1]
    source.mkdir()
    for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        word, *rest = shlex.split(line, comments=True) or [""]
        if word == "COPY" and not rest[0].startswith("--"):
            for name in rest[:-1]:
                copied = source / rest[-1] / (Path(name).name if (ROOT / name).is_file() else "")
                (shutil.copy if (ROOT / name).is_file() else shutil.copytree)(ROOT / name, copied)
        elif word == "RUN" and rest[0] == "/opt/zq/bin/pip":
            words = [word for word in rest[1:] if word != "--no-cache-dir"]
            run("sh", "-c", f"cd {source} && {shlex.join([*pip(home), *words])}")
    listed = run(*pip(home), "list", "--format=freeze").stdout.splitlines()
    installed = {canonicalize_name(name): number for name, _, number in (line.partition("==") for line in listed)}
    assert {**locked, "zq-queue": installed["zq-queue"]} == installed
    for driver in ("rocksdb", "mongodb", "redis"):
        with serving(home, stores.empty(driver, tmp_path, "c"), asking=here) as url:
            life_cycle(here, url)
