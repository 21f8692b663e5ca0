# SPDX-License-Identifier: Apache-2.0
"""What is built and installed as users do it: a wheel, in an environment that has nothing else, extra after extra.

Each extra brings what it says and no more; with each store's a message goes through a server and out again.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.blocks import only
from tests.servers import free_port, wait_for
from tests.stores import Stores

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SMALL = 15_000_000
"""Bytes of packages that the client may bring."""
FOREIGN = re.compile(r"""pip3? install[^\n`]*[ '"/](zq(\[[a-z,]*\])?)(?=['"\s`]|$)|\bzq\[[a-z,]+\]""")
"""The name ``zq``, which on the package index is a stranger's, where something is installed by it."""


def run(*command: str | Path, code: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command as a user's shell would run it: with nothing of this process's environment but PATH and home.

    pip compiles nothing beforehand: most of what it installs is not imported here.
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


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel that is built from the source archive, as ``python -m build`` does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    [built] = dist.glob("zq_queue-*.whl")
    return built


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own, to which the tests below add extras in their order."""
    return environment(tmp_path_factory.mktemp("home") / "venv")


def environment(home: Path) -> Path:
    """An empty one, whose packages the pip of the tests installs: one of its own would take longer than they."""
    run(sys.executable, "-m", "venv", "--without-pip", home)
    return home


def pip(home: Path) -> list[str]:
    """The command that is pip in this environment."""
    return [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--disable-pip-version-check"]


def install(home: Path, wheel: Path, extras: str = "") -> None:
    run(*pip(home), "install", "-q", f"zq-queue[{extras}] @ file://{wheel}" if extras else str(wheel))


def test_source_and_wheel_hold_what_is_needed_and_nothing_else(dist: Path, wheel: Path) -> None:
    """Redis's scripts, the console's files, the mark of types, pytest's fixtures and the settings of
    Java's log are in; tests are not."""
    assert len(list(dist.glob("zq_queue-*.tar.gz"))) == 1
    names = zipfile.ZipFile(wheel).namelist()
    [points] = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
    assert "[pytest11]\nzq = zq.pytest_plugin\n" in zipfile.ZipFile(wheel).read(points).decode()
    scripts = {str(path.relative_to(ROOT)) for path in (ROOT / "zq").rglob("*.lua")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "zq").rglob("*.py")}
    assert len(scripts) >= 10
    static = (ROOT / "zq" / "console" / "static").rglob("*")
    scripts |= {str(path.relative_to(ROOT)) for path in static if path.is_file()}
    more = {"zq/py.typed", "zq/spark/log4j2.properties", "pyspark_zq/__init__.py"}
    assert (scripts | modules | more) - set(names) == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pyspark_zq", "zq"}


@pytest.mark.timeout(600)
def test_each_extra_brings_what_it_says(home: Path, wheel: Path, stores: Stores, tmp_path: Path) -> None:
    """From the client alone to three stores. What is missing is told by a sentence that names the extra."""
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


@contextmanager
def serving(home: Path, uri: str, asking: Path | None = None) -> Iterator[str]:
    """The environment's server on a store. ``asking``: an environment that has the command line, if this has none."""
    port = free_port()
    with subprocess.Popen(
        [home / "bin" / "zq-server", "--port", str(port)],
        env={"PATH": os.environ["PATH"], "OS_STORAGE__URI": uri},
        cwd="/",
    ) as server:
        try:
            health = [
                (asking or home) / "bin" / "zq",
                "--url",
                f"http://127.0.0.1:{port}",
                "--project",
                "acme",
                "health",
            ]
            wait_for(lambda: subprocess.run(health, capture_output=True).returncode == 0, 60, "the server answers")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def life_cycle(home: Path, url: str) -> None:
    """Post, look, take, and nothing is left."""
    zq = [home / "bin" / "zq", "--url", url, "--project", "acme"]
    run(*zq, "post", "jobs", '{"n": 1}')
    assert '"n":1' in run(*zq, "list", "jobs").stdout.replace(" ", "")
    assert '"n":1' in run(*zq, "pop", "jobs").stdout.replace(" ", "")
    assert run(*zq, "list", "jobs").stdout == ""


def test_each_way_of_the_page_finds_the_distribution(wheel: Path) -> None:
    """installing.md: its lines, with this clone and this wheel in the places of what they name."""
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


def size(home: Path) -> int:
    """Bytes in the environment but for what Python wrote beside the sources."""
    return sum(file.stat().st_size for file in home.rglob("*") if file.is_file() and file.suffix != ".pyc")


def test_no_page_says_to_install_the_stranger_s_package() -> None:
    """No page, no message, no script."""
    foreign = ["pip install zq", "pip install 'zq[cli]'", "zq[spark] is not installed"]
    assert all(FOREIGN.search(text) for text in foreign)
    assert not FOREIGN.search("pip install 'zq-queue[cli]'")
    listed = run("git", "-C", ROOT, "ls-files").stdout.split()
    texts = [ROOT / name for name in listed if name.endswith((".md", ".py", ".sh", ".cfg", ".conf", "Dockerfile"))]
    told = [f"{path}: {found[0]}" for path in texts for found in [FOREIGN.search(path.read_text())] if found]
    assert [line for line in told if "test_wheel.py" not in line] == []
