# SPDX-License-Identifier: Apache-2.0
"""The contents and the metadata of the wheel, and the name in the pages' install commands."""

import re
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.blocks import ROOT
from tests.packaging.conftest import run

pytestmark = pytest.mark.slow

# The name ``zq`` in an install command: on the package index, it belongs to another project.
FOREIGN = re.compile(r"""pip3? install[^\n`]*[ '"/](zq(\[[a-z,]*\])?)(?=['"\s`]|$)|\bzq\[[a-z,]+\]""")


def test_the_wheel_holds_the_packages_and_no_tests(dist: Path, wheel: Path) -> None:
    """The wheel also has the Redis scripts, the console's files, the marker of types and the settings of Java's log."""
    assert len(list(dist.glob("zq_queue-*.tar.gz"))) == 1
    names = zipfile.ZipFile(wheel).namelist()
    assert "[pytest11]\nzq = zq.testing.plugin\n" in read(wheel, "entry_points.txt")
    scripts = {str(path.relative_to(ROOT)) for path in (ROOT / "zq").rglob("*.lua")}
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "zq").rglob("*.py")}
    assert len(scripts) >= 10
    static = (ROOT / "zq" / "console" / "static").rglob("*")
    scripts |= {str(path.relative_to(ROOT)) for path in static if path.is_file()}
    more = {"zq/py.typed", "zq/spark/log4j2.properties", "pyspark_zq/__init__.py"}
    assert (scripts | modules | more) - set(names) == set()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pyspark_zq", "zq"}


def read(wheel: Path, name: str) -> str:
    """Return a file of the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        [path] = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(path).decode()


def test_the_metadata_names_the_licence_and_each_supported_python(wheel: Path) -> None:
    """There is a classifier for each version from the oldest supported one, without a gap."""
    metadata = message_from_string(read(wheel, "METADATA"))
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] or metadata["License"] == "Apache-2.0"
    found = re.findall(
        r"^Programming Language :: Python :: 3\.(\d+)$", "\n".join(metadata.get_all("Classifier", [])), re.M
    )
    assert [int(minor) for minor in found] == [*range(11, 11 + len(found))]
    assert len(found) >= 2


def test_no_page_installs_the_package_of_a_stranger() -> None:
    """Messages and scripts use the right name too."""
    foreign = ["pip install zq", "pip install 'zq[cli]'", "zq[spark] is not installed"]
    assert all(FOREIGN.search(text) for text in foreign)
    assert not FOREIGN.search("pip install 'zq-queue[cli]'")
    listed = run("git", "-C", ROOT, "ls-files").stdout.split()
    kinds = (".md", ".py", ".sh", ".cfg", ".conf", "Dockerfile")
    texts = [ROOT / name for name in listed if name.endswith(kinds) and (ROOT / name).exists()]
    told = [f"{path}: {found[0]}" for path in texts for found in [FOREIGN.search(path.read_text())] if found]
    own = ("test_wheel.py", "test_installs.py")  # These name both packages in one line.
    assert [line for line in told if not any(name in line for name in own)] == []
