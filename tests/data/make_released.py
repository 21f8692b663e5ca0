# SPDX-License-Identifier: Apache-2.0
"""Make ``released.tar.xz`` and ``released.json``, of the last release.

The archive is a store of the embedded driver with all kinds of data. The JSON file has the fields of all structs that
stores contain as arrays.

Run it in a worktree of the commit in ``tests/campaign/upgrade/released``: ``PYTHONPATH=. python make_released.py
FOLDER``. The script prints the contents of the store. The files of this repository are of that commit.
"""

import importlib
import json
import pkgutil
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

from msgspec import Struct

from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.conformance.test_parcels import contents, fill
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.storage.rocksdb import connect

NOW = 1_764_000_000.0
JOBS = QueueRef("acme", "jobs")
LEFT_OUT = ("LOCK", "LOG", ".zq")
PACKAGES = [f"zq.{name}" for name in ("auth", "core", "figures", "model", "pools", "sqs", "storage", "subscriptions")]


def find_arrays() -> dict[str, type[Struct]]:
    """Return the structs that are encoded as arrays, by module and name."""
    found = {}
    for package in map(importlib.import_module, PACKAGES):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            for name, value in vars(module).items():
                is_own = isinstance(value, type) and issubclass(value, Struct) and value.__module__ == each.name
                if is_own and value.__struct_config__.array_like:
                    found[f"{each.name}.{name}"] = value
    return found


def main(target: Path) -> None:
    fields = {name: kind.__struct_fields__ for name, kind in sorted(find_arrays().items())}
    (target / "released.json").write_text(json.dumps(fields, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        expiry = Expiry(compaction_filter=False)
        storage = connect(f"rocksdb://{folder}/store", expiry, sync="always", max_clock_jump=0)
        scene = Scene(storage, ManualClock(NOW), JOBS)
        fill(scene)
        found = Counter(fact.kind for fact in contents(scene, storage.parcels))
        print(scene.now - NOW, dict(found))  # noqa: T201
        storage.close()
        with tarfile.open(target / "released.tar.xz", "w:xz") as archive:
            for file in sorted(Path(folder, "store").iterdir()):
                if not file.name.startswith(LEFT_OUT):
                    archive.add(file, file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
