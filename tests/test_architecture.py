# SPDX-License-Identifier: Apache-2.0
"""The shape of ``zq``, read from its source: who imports whom, drivers' signatures, where time is read, what each file
begins with. The rules are the two tables below; ``design/architecture.md`` gives the reasons."""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from zq.storage import api, extensions
from zq.storage.api import Storage

ROOT = Path(__file__).parent.parent
VALUES = ["zq.errors", "zq.model", "zq.expiry", "zq.measures", "zq.records", "zq.topics"]
ABOVE_STORES = [*VALUES, "zq.limits", "zq.wire", "zq.clock", "zq.storage.api", "zq.storage.extensions"]

MAY_IMPORT: dict[str, list[str]] = {
    # module, with all below it: what of zq it may import besides itself. The longest name that fits decides.
    "zq": [],
    "zq.errors": [],
    "zq.model": ["zq.errors"],
    "zq.expiry": ["zq.errors", "zq.model"],
    "zq.measures": ["zq.errors", "zq.model"],
    "zq.records": ["zq.errors", "zq.model"],
    "zq.topics": ["zq.errors", "zq.model"],
    "zq.limits": VALUES,
    "zq.clock": VALUES,
    "zq.wire": [*VALUES, "zq.limits"],
    "zq.client": ["zq.errors", "zq.model", "zq.wire"],
    "zq.secrets": [],
    "zq.cli": ["zq.cli.pipeline", "zq.client", "zq.errors", "zq.limits", "zq.secrets", "zq.wire"],
    "zq.cli.pipeline": ["zq.cli", "zq.spark"],
    "zq.spark": ["zq.client", "zq.clock", "zq.errors", "zq.model", "zq.wire"],
    "zq.spark.jobs": ["zq.spark", "zq.client", "zq.errors", "zq.cli"],
    "zq.storage.api": [*VALUES, "zq.storage.extensions"],
    "zq.storage.extensions": VALUES,
    "zq.storage": [*VALUES, "zq.storage.api", "zq.storage.extensions"],
    "zq.storage.mongodb": [*VALUES, "zq.storage.api", "zq.storage.extensions"],
    "zq.storage.redis": [*VALUES, "zq.storage.api", "zq.storage.extensions"],
    "zq.storage.rocksdb": [*VALUES, "zq.storage.api", "zq.storage.extensions"],
    "zq.settings": [*VALUES, "zq.limits", "zq.secrets"],
    "zq.logs": [],
    "zq.signals": [],
    "zq.pace": VALUES,
    "zq.upkeep": [*ABOVE_STORES, "zq.pace"],
    "zq.metrics": [*ABOVE_STORES, "zq.broker", "zq.strain"],
    "zq.broker": [*ABOVE_STORES],
    "zq.http.heads": [],
    "zq.http.suspension": [],
    "zq.http": ["zq.http.heads", "zq.http.suspension", *VALUES, "zq.limits", "zq.wire", "zq.broker", "zq.stopping"],
    "zq.strain": [],
    "zq.stopping": [],
    "zq.probes": ["zq.errors", "zq.stopping"],
    "zq.announcement": ["zq.engines", "zq.secrets", "zq.settings"],
    "zq.engines": [
        "zq.errors",
        "zq.http.heads",
        "zq.http.suspension",
        "zq.settings",
        "zq.signals",
        "zq.strain",
        "zq.stopping",
    ],
    "zq.serving": ["zq.server"],
    "zq.testing": ["zq.storage", *ABOVE_STORES, "zq.broker", "zq.http", "zq.client"],
    "zq.pytest_plugin": ["zq.testing", "zq.client"],
    "zq.server": [
        *("zq.settings", "zq.logs", "zq.signals", "zq.storage", *ABOVE_STORES, "zq.broker", "zq.http"),
        *("zq.pace", "zq.upkeep", "zq.metrics", "zq.engines", "zq.stopping", "zq.probes", "zq.secrets"),
        "zq.announcement",
    ],
}
VENDORS: dict[str, list[str]] = {
    # what is foreign: the only modules that may import it.
    "falcon": ["zq.http"],
    "bson": ["zq.storage.mongodb"],
    "pymongo": ["zq.storage.mongodb"],
    "redis": ["zq.storage.redis"],
    "rocksdict": ["zq.storage.rocksdb"],
    "oslo_config": ["zq.settings"],
    "gunicorn": ["zq.engines"],
    "granian": ["zq.engines"],
    "jsonschema": ["zq.broker"],
    "prometheus_client": ["zq.metrics"],
    "click": ["zq.cli", "zq.spark.jobs"],
    "jmespath": ["zq.cli"],
    "rich": ["zq.cli"],
    "tomlkit": ["zq.cli"],
    "yaml": ["zq.cli"],
    "httpx": ["zq.client"],
    "tenacity": ["zq.client"],
    "pyspark": ["zq.spark", "zq.cli.pipeline"],
    "py4j": ["zq.spark"],
    "pyarrow": ["zq.spark"],
    "matplotlib": ["zq.spark.jobs.plots"],
}
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
DEEPEST = 3
CONTROLLERS = {
    "queues": api.QueueController,
    "messages": api.MessageController,
    "claims": api.ClaimController,
    "history": extensions.HistoryController,
    "transactions": extensions.TransactionController,
    "topics": extensions.TopicController,
    "records": extensions.RecordController,
}

Source = tuple[str, ast.Module]


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Every module of ``zq`` below ``root``, parsed once."""
    return {module_name(file, root): ast.parse(file.read_text()) for file in sorted((root / "zq").rglob("*.py"))}


def imports(module: str, tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Full names of what a module imports, anywhere in it; ``from zq import wire`` is an import of ``zq.wire``."""
    package = module if any(name.startswith(module + ".") for name in known) else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                yield name if name in known else origin
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known:
            yield node.value  # importlib.import_module("zq....") and whatever else names a module


def owner(module: str, table: dict[str, list[str]]) -> str:
    """The longest entry of the table that is the module or above it."""
    return max((name for name in table if within(module, name)), key=len)


def within(module: str, name: str) -> bool:
    return module == name or module.startswith(name + ".")


def forbidden_imports(known: dict[str, ast.Module]) -> list[str]:
    """Every arrow that the tables do not have, as "a -> b"."""
    found = []
    for module, tree in known.items():
        home = owner(module, MAY_IMPORT)
        for target in imports(module, tree, known):
            vendor = target.partition(".")[0]
            if vendor == "zq":
                # Importing the package itself brings nothing but its version.
                fine = target == "zq" or owner(target, MAY_IMPORT) in [home, *MAY_IMPORT[home]]
            else:
                fine = vendor not in VENDORS or any(within(module, name) for name in VENDORS[vendor])
            if not fine:
                found.append(f"{module} -> {target}")
    return found


def test_imports_point_only_in_the_directions_of_the_architecture() -> None:
    """No module knows what is above it or beside it; foreign libraries stay where they belong."""
    assert forbidden_imports(sources()) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("zq.model", "from zq import limits"),
        ("zq.clock", "from .limits import Limits"),
        ("zq.storage.rocksdb.layout", "import zq.limits"),
        ("zq.storage.rocksdb.layout", "from ...broker.queues import Queues"),
        ("zq.broker.queues", "from zq.storage.rocksdb import connect"),
        ("zq.broker.queues", "from zq.storage import connect"),
        ("zq.broker.queues", "import falcon"),
        ("zq.http.queues", "def later():\n    from zq.settings import Settings"),
        ("zq.http.queues", "import importlib\nimportlib.import_module('zq.storage.rocksdb')"),
        ("zq.server", "from zq.storage.rocksdb import RocksStorage"),
    ],
)
def test_a_planted_forbidden_import_is_caught(module: str, line: str) -> None:
    """The check above sees every way to write an import."""
    assert module in sources(), "plant it in a module that exists"
    planted = {**sources(), module: ast.parse(line)}
    assert [arrow for arrow in forbidden_imports(planted) if arrow.startswith(module + " -> ")] != []


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_driver_has_exactly_the_verbs_of_the_interface(storage: Storage, controller: str) -> None:
    """Same names, parameters, defaults and types, and no verb more: what one driver can, all can."""
    promised, built = CONTROLLERS[controller], type(getattr(storage, controller))
    assert verbs(built) == verbs(promised)


def verbs(kind: type[Any]) -> dict[str, inspect.Signature]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method, eval_str=True) for name, method in methods if not name.startswith("_")}


def test_a_storage_has_everything_of_the_interface(storage: Storage) -> None:
    """The controllers are there, and ``now``, ``ping``, ``maintain`` … take what the interface says."""
    promised, built = verbs(api.Storage), verbs(type(storage))
    assert {name: built.get(name) for name in promised} == promised
    assert all(hasattr(storage, controller) for controller in CONTROLLERS)


def test_wall_clocks_are_read_in_two_places_only() -> None:
    """``zq.clock``, and ``now`` of a driver's storage; every other moment is an argument."""
    found = []
    for module, tree in sources().items():
        allowed = set()
        if within(module, "zq.storage"):
            classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "Storage" in node.name]
            methods = [node for kind in classes for node in kind.body if isinstance(node, ast.FunctionDef)]
            allowed = {id(node) for method in methods if method.name == "now" for node in ast.walk(method)}
        if module != "zq.clock":
            found += [f"{module}:{node.lineno}" for node in wall_clock_reads(tree) if id(node) not in allowed]
    assert found == []


def wall_clock_reads(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Attribute):
            names = [".".join(ast.unparse(node).split(".")[-2:])]
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = [f"time.{alias.name}" for alias in node.names]
        if WALL_CLOCK.intersection(names):
            yield node


def test_folders_are_no_deeper_than_three() -> None:
    """zq/storage/rocksdb is as deep as it gets."""
    folders = [file.relative_to(ROOT).parent for file in (ROOT / "zq").rglob("*.py")]
    assert [str(folder) for folder in folders if len(folder.parts) > DEEPEST] == []


@pytest.mark.parametrize("file", sorted((ROOT / "zq").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_begins_with_its_licence_and_says_what_it_is_for(file: Path) -> None:
    """One SPDX line, then a docstring."""
    text = file.read_text()
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    assert ast.get_docstring(ast.parse(text)), "no docstring"
