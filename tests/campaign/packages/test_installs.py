# SPDX-License-Identifier: Apache-2.0
"""Installations from a user's view: the archives, each extra, the commands of installing.md, and the image.

Each extra installs only its packages; with the extra of each store a message passes through a server.
"""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.blocks import ROOT, only
from tests.campaign.packages.environments import environment, install, life_cycle, pip, serving
from tests.packaging.conftest import run
from tests.stores import Stores

pytestmark = pytest.mark.slow

# Maximum bytes of packages of the client.
SMALL = 15_000_000
# Maximum bytes of packages of the extra ``standard``.
STANDARD = 120_000_000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment to which a test adds one extra after another."""
    return environment(tmp_path_factory.mktemp("home") / "venv")


@pytest.mark.timeout(600)
def test_each_extra_brings_what_it_says(home: Path, wheel: Path, stores: Stores, tmp_path: Path) -> None:
    """The test covers the client, the command line and three stores. An error names the missing extra."""
    before = size(home)
    install(home, wheel)
    assert size(home) - before < SMALL
    run(home / "bin" / "python", "-c", "from zq.client import AsyncClient, Client")
    assert "pip install 'zq-queue[cli]'" in run(home / "bin" / "zq", "--version", code=1).stderr
    assert "pip install 'zq-queue[server,rocksdb]'" in run(home / "bin" / "zq-server", "--version", code=2).stderr

    install(home, wheel, "cli,server")
    uris = {driver: stores.empty(driver, tmp_path, "c") for driver in ("rocksdb", "mongodb", "redis")}
    for extra, uri in uris.items():
        refused = run(home / "bin" / "zq-server", OS_STORAGE__URI=uri, code=2)
        assert f"pip install 'zq-queue[{extra}]'" in refused.stderr
        install(home, wheel, extra)
        with serving(home, uri) as url:
            life_cycle(home, url)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_each_archive_serves_redis_alone_then_the_embedded_store(
    pattern: str, dist: Path, stores: Stores, tmp_path: Path
) -> None:
    """The environment is empty at first. pip builds the source archive."""
    [archive] = dist.glob(pattern)
    home = environment(tmp_path / "venv")
    for extras, driver in (("cli,server,redis", "redis"), ("rocksdb", "rocksdb")):
        install(home, archive, extras)
        with serving(home, stores.empty(driver, tmp_path, "c")) as url:
            life_cycle(home, url)


@pytest.mark.timeout(600)
def test_the_extra_standard_is_enough_for_a_first_message(wheel: Path, tmp_path: Path) -> None:
    """A fresh environment serves the embedded store, and its size is bounded."""
    home = environment(tmp_path / "venv")
    before = size(home)
    install(home, wheel, "standard")
    assert size(home) - before < STANDARD
    with serving(home, f"rocksdb://{tmp_path}/store") as url:
        life_cycle(home, url)


def size(home: Path) -> int:
    """Return the bytes of the environment without compiled Python files."""
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file() and file.suffix != ".pyc")


def test_each_way_of_the_page_finds_the_distribution(wheel: Path) -> None:
    """The commands of installing.md run with this clone and this wheel instead of the named ones."""
    places = {
        "/path/to/clone": str(ROOT),
        "/path/to/zq_queue-0.1.0-py3-none-any.whl": str(wheel),
        "https://example.org/zq.git": f"file://localhost{ROOT}",
    }
    lines = only("api-ref/installing.md", "sh").splitlines()
    assert len(lines) == len(places)
    for line, (place, own) in zip(lines, places.items(), strict=True):
        pip, install, what = shlex.split(line)
        command = [
            sys.executable,
            "-m",
            pip,
            install,
            "--dry-run",
            "--no-deps",
            "--ignore-installed",
            "--quiet",
            "--report",
            "-",
        ]
        report = json.loads(run(*command, what.replace(place, own)).stdout)
        assert [each["metadata"]["name"] for each in report["install"]] == ["zq-queue"]


@pytest.mark.timeout(900)
def test_the_image_s_commands_make_a_server_of_the_locked_packages(
    stores: Stores, tmp_path: Path, locked: dict[str, str]
) -> None:
    """The commands of the Dockerfile, run in a folder with the copied files, install only the locked packages.

    pip also verifies the hashes of packages in its cache.
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
