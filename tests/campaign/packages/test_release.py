# SPDX-License-Identifier: Apache-2.0
"""A whole release by ``devstack/release``, built from a clone of this repository. It publishes nothing."""

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.abilities import need
from tests.blocks import ROOT
from zq import __version__

pytestmark = pytest.mark.slow


def release(clone: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(clone / "devstack" / "release.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)


@pytest.mark.timeout(900)
def test_a_release_contains_packages_bill_of_materials_and_image_context(tmp_path: Path) -> None:
    """The release contains the commit; uncommitted changes are rejected. The image is built only from these files.

    The checksums do not list files of other releases, which are in the same folder.
    """
    need("git")
    clone, out = tmp_path / "clone", tmp_path / "out"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", clone], check=True)
    (clone / "new").touch()
    assert "changes that are not committed" in release(clone).stderr
    (clone / "new").unlink()
    out.mkdir()
    former = {f"zq-1{__version__}.cdx.json", f"zq_queue-{__version__}rc1.tar.gz"}
    for name in former:
        (out / name).touch()
    done = release(clone, "--out", out)
    assert done.returncode == 0, done.stderr
    stem = f"zq-{__version__}"
    packages = {f"zq_queue-{__version__}-py3-none-any.whl", f"zq_queue-{__version__}.tar.gz"}
    files = packages | {f"{stem}.cdx.json", f"{stem}-image.tar.gz"}
    assert {path.name for path in out.iterdir()} == files | {"SHA256SUMS"} | former
    sums = dict(reversed(line.split()) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in files}
    listed = json.loads((out / f"{stem}.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    names = {component["name"] for component in listed["components"]}
    assert {"falcon", "granian", "rocksdict", "zq-queue"} <= names
    assert names & {"pip", "pytest"} == set()
    with tarfile.open(out / f"{stem}-image.tar.gz") as archive:
        names = {name for name in archive.getnames() if archive.getmember(name).isfile()}
    assert {"Dockerfile", "etc/requirements.lock", "zq/__init__.py"} <= names
    copied = [line.split()[1:-1] for line in (ROOT / "Dockerfile").read_text().splitlines() if line[:6] == "COPY e"]
    assert {name for line in copied for name in line} <= names
    assert not any(name.startswith(("tests", "devstack", "deploy")) for name in names)
    image = f"registry.example.org/zq:{__version__}"
    assert f"docker push {image}" in done.stdout
    (base,) = (line[17:] for line in (ROOT / "Dockerfile").read_text().splitlines() if line[:17] == "ARG PYTHON_IMAGE=")
    for use, name in (("--build-arg PYTHON_IMAGE=", base), ("\nimage=", image)):
        assert f"{use}$(docker image inspect --format '{{{{index .RepoDigests 0}}}}' {name})" in done.stdout
    [pin] = (line for line in done.stdout.splitlines() if line.startswith("sed "))
    folder, digest = clone / "deploy" / "kubernetes" / "base", f"sha256:{0:064}"
    subprocess.run(["bash", "-euc", f"image=registry.example.org/zq@{digest}\n{pin}"], cwd=folder, check=True)
    assert f"\n    digest: {digest}\n" in (folder / "kustomization.yaml").read_text()
    assert "newTag: " not in (folder / "kustomization.yaml").read_text()
    assert "pip-audit --disable-pip --require-hashes" in done.stdout
    assert f"git tag --sign v{__version__}" in done.stdout
