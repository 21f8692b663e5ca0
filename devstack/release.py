# SPDX-License-Identifier: Apache-2.0
"""Build a release of the last commit: wheel, source archive, software bill of materials and context of the image.

``devstack/release`` calls this program. It first checks that all places have the same version. It publishes nothing.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
NUMBER: Final = r"(\d+\.\d+\.\d+)"
# The pattern of the version in each file that has it. Packages get their version from the first file. The changelog has
# it in its first heading of a version.
PLACES: Final = {
    "zq/__init__.py": rf'^__version__ = "{NUMBER}"$',
    "CHANGELOG.md": rf"\A(?:(?!## ).*\n)*## \[(?:Unreleased\] )?{NUMBER}\b",
    "Dockerfile": rf'^LABEL org\.opencontainers\.image\.version="{NUMBER}"',
    "deploy/kubernetes/base/kustomization.yaml": rf"^ +newTag: {NUMBER}$",
}
# The files from which the image is built.
CONTEXT: Final = (
    *("Dockerfile", ".dockerignore", "etc/requirements.lock"),
    *("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "zq"),
)
IMAGE: Final = "registry.example.org/zq"
BASE: Final = "python:3.11-slim"


class ReleaseRefused(Exception):
    """A commit that cannot be released; the message says why."""


def versions(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the first version of each place. Raises ``ReleaseRefused`` if a place has none."""
    for name, pattern in PLACES.items():
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        if found is None:
            raise ReleaseRefused(f"{name} has no version in the expected line.")
        yield name, found[1]


def check(root: Path) -> str:
    """Return the version. Raises ``ReleaseRefused`` if two places differ."""
    (first, version), *others = versions(root)
    for name, other in others:
        if other != version:
            raise ReleaseRefused(f"{name} has version {other}, but {first} has {version}.")
    return version


def check_tag(version: str) -> None:
    """Raises ``ReleaseRefused`` if another commit is released as this version. The same commit may be built again."""
    tag = f"v{version}"
    if run("git", "tag", "--list", tag) and tag not in run("git", "tag", "--points-at", "HEAD").splitlines():
        raise ReleaseRefused(f"Another commit has the tag {tag}: write a new version into {', '.join(PLACES)}.")


def run(*command: str | Path, **variables: str) -> str:
    """Run a command in the repository and return its output. Raises ``ReleaseRefused`` if it fails."""
    done = subprocess.run(  # noqa: S603 (fixed commands)
        [str(part) for part in command], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True
    )
    if done.returncode:
        raise ReleaseRefused(f"{command[0]} {command[1]} failed:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout.strip()


def build(version: str, out: Path) -> None:
    """Build all files of the release from the last commit. The bill of materials lists the packages of the image."""
    epoch = run("git", "log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory(prefix="zq-release-") as folder:
        sources = Path(folder, "zq")
        sources.mkdir()
        run("git", "archive", "--output", f"{folder}/sources.tar", "HEAD")
        run("tar", "-xf", f"{folder}/sources.tar", "-C", sources)
        run(sys.executable, "-m", "build", "--outdir", out, sources, SOURCE_DATE_EPOCH=epoch)
        python = install(Path(folder, "venv"), wheel(out, version))
        made = ("--output-reproducible", "--output-file", materials(out, version))
        run(sys.executable, "-m", "cyclonedx_py", "environment", *made, python, SOURCE_DATE_EPOCH=epoch)
    run("git", "archive", "--output", context(out, version), "HEAD", *CONTEXT)
    files = (materials(out, version), context(out, version), wheel(out, version), archive(out, version))
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (out / "SHA256SUMS").write_text("".join(sums))


def install(venv: Path, wheel: Path) -> str:
    """Install the packages of the image into a new environment, and return its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = str(venv / "bin" / "python")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*pip, "--require-hashes", "--requirement", ROOT / "etc" / "requirements.lock")
    run(*pip, wheel)
    return python


def wheel(out: Path, version: str) -> Path:
    return out / f"zq_queue-{version}-py3-none-any.whl"


def archive(out: Path, version: str) -> Path:
    return out / f"zq_queue-{version}.tar.gz"


def materials(out: Path, version: str) -> Path:
    return out / f"zq-{version}.cdx.json"


def context(out: Path, version: str) -> Path:
    return out / f"zq-{version}-image.tar.gz"


def digest_of(image: str) -> str:
    """Return a substitution of the shell: the name of a pulled or pushed image with its digest."""
    return f"$(docker image inspect --format '{{{{index .RepoDigests 0}}}}' {image})"


def instructions(version: str, out: Path) -> Iterator[str]:
    """Yield the commands that a maintainer runs to publish the release."""
    if f"[Unreleased] {version}" in (ROOT / "CHANGELOG.md").read_text():
        yield f"# First replace [Unreleased] {version} in CHANGELOG.md by [{version}] and the date, and build again."
    # Not a step of the build, because it queries databases of vulnerabilities, which a build machine may not reach.
    yield f"pip-audit --disable-pip --require-hashes --requirement {ROOT}/etc/requirements.lock"
    yield f"git tag --sign v{version} && git push origin v{version}"
    yield f"twine upload {wheel(out, version)} {archive(out, version)}"
    arguments = f"--build-arg REVISION={run('git', 'rev-parse', 'HEAD')} --build-arg PYTHON_IMAGE={digest_of(BASE)}"
    image = f"{IMAGE}:{version}"
    yield f"docker pull {BASE}"
    yield f"docker build {arguments} --tag {image} - < {context(out, version)}"
    yield f"docker push {image}"
    yield "# To deploy exactly this image, run in your copy of deploy/kubernetes/base:"
    yield f"image={digest_of(image)}"
    yield r'sed -i -E "s/^([ -]+)(newTag|digest): .*/\1digest: ${image#*@}/" kustomization.yaml'
    yield f"# Attach {materials(out, version)} and {out}/SHA256SUMS to the release."


def main() -> int:
    parser = argparse.ArgumentParser(prog="devstack/release", description="Build a release of the last commit.")
    parser.add_argument("--check", action="store_true", help="only check the versions")
    parser.add_argument("--out", metavar="DIR", type=Path, default=ROOT / "dist", help="directory for the files")
    given = parser.parse_args()
    try:
        version = check(ROOT)
        if given.check:
            print(f"All {len(PLACES)} places have version {version}.")  # noqa: T201
            return 0
        if run("git", "status", "--porcelain"):
            raise ReleaseRefused("The working tree has changes that are not committed; a release is built of a commit.")
        check_tag(version)
        given.out.mkdir(parents=True, exist_ok=True)
        build(version, given.out.resolve())
        print(f"{given.out.resolve()} contains the release {version}. To publish it:\n")  # noqa: T201
        print("\n".join(instructions(version, given.out.resolve())))  # noqa: T201
    except ReleaseRefused as refusal:
        print(f"devstack/release: {refusal}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
