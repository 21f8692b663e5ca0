# SPDX-License-Identifier: Apache-2.0
"""The architecture of ``zq``, checked in its source: imports, drivers' signatures, wall clocks, file headers.

The rules are the two tables below; ``design/architecture.md`` gives the reasons.
"""

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench import structure
from tests.tables import every_row
from tests.words import WORDS, names, parsed, used
from zq.storage import api, capabilities
from zq.storage.api import Storage

ROOT = Path(__file__).parent.parent
VALUES = ["zq.errors", "zq.model"]
ABOVE_STORES = [
    *VALUES,
    "zq.cache",
    "zq.turns",
    "zq.model.limits",
    "zq.wire",
    "zq.clock",
    "zq.events",
    "zq.storage.api",
    "zq.storage.capabilities",
]
PROMISE = [
    *VALUES,
    "zq.diagnosis",
    *(f"zq.storage.{name}" for name in ("api", "browsing", "capabilities", "concurrency", "exporting", "options")),
]
ROCKSDB = [
    f"zq.storage.rocksdb.{name}"
    for name in ("admission", "files", "rescue", "store", "survey", "tuning", "write_ahead")
]
OBJECT = [
    f"zq.storage.object.{name}"
    for name in (
        *("checkpoints", "cloud", "entries", "epochs", "following", "objects", "offline", "restoring", "shipping"),
        *("store", "swift"),
    )
]

MAY_IMPORT: dict[str, list[str]] = {
    # Module, including all modules below it, and the modules of zq that it may import. The longest match applies.
    "zq": [],
    "zq.errors": [],
    "zq.cache": ["zq.errors"],
    "zq.model": ["zq.errors"],
    "zq.events": VALUES,
    "zq.model.limits": VALUES,
    "zq.clock": VALUES,
    "zq.wire": [*VALUES, "zq.model.limits", "zq.turns"],
    "zq.client": ["zq.clock", "zq.errors", "zq.model", "zq.wire"],
    "zq.cli": [
        "zq.cli.declared",
        "zq.cli.pipeline",
        "zq.client",
        "zq.clock",
        "zq.diagnosis",
        "zq.errors",
        "zq.model.limits",
        "zq.logs",
        "zq.wire",
    ],
    "zq.cli.declared": [*VALUES, "zq.cli", "zq.client", "zq.model.limits", "zq.wire"],
    "zq.cli.pipeline": ["zq.cli", "zq.spark"],
    "zq.spark": ["zq.client", "zq.clock", "zq.errors", "zq.model", "zq.wire"],
    "zq.jobs": ["zq.spark", "zq.client", "zq.errors", "zq.cli"],
    "zq.storage.api": [*VALUES, "zq.storage.browsing", "zq.storage.capabilities"],
    "zq.storage.browsing": [*VALUES, "zq.storage.api", "zq.storage.capabilities"],
    "zq.storage.capabilities": VALUES,
    "zq.storage.exporting": [*VALUES, "zq.storage.api", "zq.storage.browsing"],
    "zq.storage.concurrency": ["zq.errors"],
    "zq.storage.options": VALUES,
    "zq.storage": [
        *VALUES,
        "zq.cache",
        "zq.diagnosis",
        "zq.storage.api",
        "zq.storage.browsing",
        "zq.storage.capabilities",
    ],
    "zq.storage.inline": [],
    "zq.storage.memory": [*PROMISE, "zq.storage.ordered", "zq.storage.ordered.store"],
    "zq.storage.mongodb": PROMISE,
    "zq.storage.redis": PROMISE,
    "zq.storage.ordered": [*PROMISE, "zq.storage.inline", "zq.storage.ordered.store"],
    "zq.storage.ordered.store": VALUES,
    # Only the composition, in the package's __init__, may use more of the engine than the Store protocol.
    "zq.storage.rocksdb": [*PROMISE, "zq.storage.ordered", "zq.storage.ordered.store", *ROCKSDB],
    **{name: [*VALUES, "zq.storage.inline", "zq.storage.ordered.store", *ROCKSDB] for name in ROCKSDB},
    "zq.storage.object": [
        *PROMISE,
        *OBJECT,
        "zq.storage.ordered",
        "zq.storage.ordered.store",
        "zq.storage.rocksdb",
        *ROCKSDB,
    ],
    **{name: [*VALUES, *OBJECT, "zq.storage.ordered.store", *ROCKSDB] for name in OBJECT},
    "zq.logs": [],
    "zq.diagnosis": ["zq.errors", "zq.logs"],
    "zq.turns": [],
    "zq.core": [*ABOVE_STORES, "zq.audit", "zq.storage.concurrency"],
    "zq.figures": [*ABOVE_STORES, "zq.core", "zq.http"],
    "zq.sqs": [
        *(*ABOVE_STORES, "zq.auth", "zq.auth.signatures", "zq.auth.tokens", "zq.core", "zq.http"),
    ],
    "zq.auth.tokens": [*VALUES, "zq.clock", "zq.storage.api", "zq.storage.capabilities"],
    "zq.auth.signatures": [
        *(*VALUES, "zq.cache", "zq.model.limits", "zq.clock", "zq.storage.api", "zq.storage.capabilities", "zq.auth"),
    ],
    "zq.auth": [
        *(
            "zq.audit",
            "zq.auth.tokens",
            *VALUES,
            "zq.model.limits",
            "zq.clock",
            "zq.storage.api",
            "zq.storage.capabilities",
        ),
    ],
    "zq.http.heads": [],
    "zq.http": [
        *(
            "zq.http.heads",
            "zq.storage.api",
            "zq.storage.inline",
            "zq.turns",
            *VALUES,
            "zq.model.limits",
            "zq.wire",
            "zq.core",
            "zq.events",
        ),
        *(
            "zq.audit",
            "zq.auth.policy",
            "zq.auth.signatures",
            "zq.auth.tokens",
        ),
    ],
    "zq.console": ["zq.http", "zq.model"],
    "zq.audit": VALUES,
    "zq.auth.policy": [*VALUES, "zq.audit"],
    "zq.testing": [
        "zq.serving",
        "zq.sqs",
        "zq.auth",
        "zq.auth.tokens",
        "zq.storage",
        *ABOVE_STORES,
        "zq.core",
        "zq.http",
        "zq.client",
    ],
    "zq.conformance": [*ABOVE_STORES, "zq.core"],
    "zq.testing.plugin": ["zq.testing", "zq.client"],
    "zq.administration": [*ABOVE_STORES, "zq.core", "zq.http"],
    "zq.pools": [*ABOVE_STORES, "zq.core", "zq.http"],
    "zq.subscriptions": [*ABOVE_STORES, "zq.core", "zq.http", "zq.auth.signatures"],
    "zq.tracing": [*ABOVE_STORES, "zq.http"],
    "zq.websocket": [*ABOVE_STORES, "zq.core", "zq.http", "zq.auth.signatures"],
    "zq.serving": [
        *(
            *ABOVE_STORES,
            "zq.audit",
            "zq.diagnosis",
            "zq.logs",
            "zq.storage",
            "zq.storage.inline",
            "zq.storage.options",
            "zq.core",
            "zq.http",
        ),
        *("zq.http.heads", "zq.auth", "zq.auth.policy", "zq.auth.signatures", "zq.auth.tokens"),
        *("zq.administration", "zq.console", "zq.figures", "zq.pools", "zq.sqs", "zq.subscriptions", "zq.tracing"),
        "zq.websocket",
    ],
}
VENDORS: dict[str, list[str]] = {
    # Third-party package, and the only modules that may import it.
    "cachetools": ["zq.auth", "zq.core", "zq.serving.metrics", "zq.sqs", "zq.storage", "zq.subscriptions"],
    "aiohttp": ["zq.subscriptions.delivery"],
    "falcon": [
        *("zq.administration", "zq.console", "zq.figures", "zq.http", "zq.pools", "zq.sqs", "zq.subscriptions"),
        "zq.tracing",
    ],
    "jwt": ["zq.auth"],
    "opentelemetry": ["zq.client", "zq.tracing"],
    "keystoneauth1": ["zq.auth.keystone", "zq.subscriptions.trusts"],
    "keystonemiddleware": ["zq.auth.keystone", "zq.subscriptions.trusts"],
    "webob": ["zq.auth.keystone", "zq.subscriptions.trusts"],
    "bson": ["zq.storage.mongodb"],
    "pymongo": ["zq.storage.mongodb"],
    "redis": ["zq.storage.redis"],
    "rocksdict": ["zq.storage.rocksdb"],
    "obstore": ["zq.storage.object.cloud"],
    "sortedcontainers": ["zq.storage.memory"],
    "oslo_config": ["zq.serving.settings", "zq.auth.policy", "zq.auth.keystone", "zq.subscriptions.trusts"],
    "oslo_policy": ["zq.auth.policy"],
    "gunicorn": ["zq.serving"],
    "granian": ["zq.serving"],
    "uvloop": ["zq.serving"],
    "jsonschema": ["zq.cli.declared", "zq.core", "zq.pools"],
    "prometheus_client": ["zq.serving.metrics", "zq.cli.canary"],
    "click": ["zq.cli", "zq.jobs"],
    "jmespath": ["zq.cli"],
    "rich": ["zq.cli"],
    "tomlkit": ["zq.cli"],
    "yaml": ["zq.cli"],
    "httpx": ["zq.client"],
    "tenacity": ["zq.client"],
    "pyspark": ["zq.spark", "zq.cli.pipeline", "zq.jobs"],
    "py4j": ["zq.spark"],
    "pyarrow": ["zq.jobs", "zq.spark"],
    "matplotlib": ["zq.jobs.plots"],
}
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
DEEPEST = 3
CONTROLLERS = {
    "queues": api.QueueController,
    "messages": api.MessageController,
    "claims": api.ClaimController,
    "history": capabilities.HistoryController,
    "transactions": capabilities.TransactionController,
    "topics": capabilities.TopicController,
    "documents": api.DocumentController,
    "parcels": capabilities.ParcelController,
}

# Words of ``tests/words.py`` that names of a package still use. Remove a word when its last use is renamed.
STILL_THERE: dict[str, str] = {}


def module_name(file: Path, root: Path) -> str:
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources(root: Path = ROOT) -> dict[str, ast.Module]:
    """Return every module of ``zq`` below ``root``; each is parsed once."""
    return {module_name(file, root): parsed(file.read_text()) for file in sorted((root / "zq").rglob("*.py"))}


def imports(module: str, tree: ast.Module, known: dict[str, ast.Module]) -> Iterator[str]:
    """Yield the full names of a module's imports at any place; ``from zq import wire`` is an import of ``zq.wire``."""
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
            yield node.value  # importlib.import_module("zq....") and other module names


def owner(module: str, table: dict[str, list[str]]) -> str:
    """Return the longest entry of the table that is the module or a package above it."""
    return max((name for name in table if within(module, name)), key=len)


def within(module: str, name: str) -> bool:
    return module == name or module.startswith(name + ".")


def forbidden_imports(known: dict[str, ast.Module], of: dict[str, ast.Module] | None = None) -> list[str]:
    """Return every import that the tables do not allow, as "a -> b"; ``of`` limits the check to these modules."""
    found = []
    for module, tree in (known if of is None else of).items():
        home = owner(module, MAY_IMPORT)
        for target in imports(module, tree, known):
            vendor = target.partition(".")[0]
            if vendor == "zq":
                # The package itself contains only its version.
                fine = target == "zq" or owner(target, MAY_IMPORT) in [home, *MAY_IMPORT[home]]
            else:
                fine = vendor not in VENDORS or any(within(module, name) for name in VENDORS[vendor])
            if not fine:
                found.append(f"{module} -> {target}")
    return found


def test_imports_point_only_in_the_directions_of_the_architecture() -> None:
    """Modules import neither higher layers nor their peers, and third-party packages stay in their modules."""
    assert forbidden_imports(sources()) == []


@every_row(
    ("module", "line"),
    [
        ("zq.model", "from zq import clock"),
        ("zq.clock", "from .model.limits import Limits"),
        ("zq.storage.ordered.layout", "import zq.model.limits"),
        ("zq.storage.ordered.layout", "from ...broker.queues import Queues"),
        ("zq.core.queues", "from zq.storage.ordered import connect"),
        ("zq.core.queues", "from zq.storage import connect"),
        ("zq.core.queues", "import falcon"),
        ("zq.http.resources", "def later():\n    from zq.serving.settings import Settings"),
        ("zq.http.resources", "import importlib\nimportlib.import_module('zq.storage.rocksdb')"),
        ("zq.serving.server", "from zq.storage.ordered import OrderedStorage"),
    ],
)
def test_a_planted_forbidden_import_is_caught(module: str, line: str) -> None:
    """The check notices every form of import."""
    assert module in sources(), "plant it in a module that exists"
    assert forbidden_imports(sources(), {module: ast.parse(line)}) != []


@every_row("controller", CONTROLLERS)
def test_a_driver_has_exactly_the_verbs_of_the_interface(storage: Storage, controller: str) -> None:
    """Names, parameters, defaults and types are the same, and there are no other public methods."""
    promised, built = CONTROLLERS[controller], type(getattr(storage, controller))
    assert verbs(built) == verbs(promised)


def verbs(kind: type[Any]) -> dict[str, inspect.Signature]:
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method, eval_str=True) for name, method in methods if not name.startswith("_")}


def test_a_storage_has_everything_of_the_interface(storage: Storage) -> None:
    """The storage has all controllers, and its methods have the signatures of the interface."""
    promised, built = verbs(api.Storage), verbs(type(storage))
    assert {name: built.get(name) for name in promised} == promised
    assert all(hasattr(storage, controller) for controller in CONTROLLERS)


def test_no_object_sets_an_attribute_of_another_modules_object() -> None:
    """Constructors take what an object needs; later changes are made by its methods."""
    shipped = {module: tree for module, tree in sources().items() if not within(module, "zq.conformance")}
    assert structure.set_from_outside(shipped) == []


def test_no_modules_import_each_other() -> None:
    """The rule also covers imports for types, so that a module can be read without its importers."""
    shipped = structure.modules(ROOT)
    imported = {module: structure.imported(module, tree, shipped) for module, tree in shipped.items()}
    assert structure.cycles(imported) == []


def test_an_attribute_that_is_set_from_outside_is_noticed() -> None:
    """The check notices assignments to objects of other modules, but not to a field of a value."""
    known = {
        "zq.queues": ast.parse("class Queues:\n    def __init__(self): self.wake = self.own = None"),
        "zq.values": ast.parse("class Record:\n    ends: float"),
        "zq.wiring": ast.parse("def wire(queues, record):\n    queues.wake, record.ends = print, 1.0"),
    }
    assert structure.set_from_outside(known) == ["zq.wiring:2 queues.wake"]


def test_wall_clocks_are_read_in_two_places_only() -> None:
    """Only ``zq.clock`` and ``now`` of a driver's storage read the time; other code gets it as an argument."""
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
    """The deepest folders are like zq/storage/rocksdb."""
    folders = [file.relative_to(ROOT).parent for file in (ROOT / "zq").rglob("*.py")]
    assert [str(folder) for folder in folders if len(folder.parts) > DEEPEST] == []


def test_each_file_begins_with_its_licence_and_says_what_it_is_for() -> None:
    """A file begins with an SPDX line and a docstring."""
    texts = {file: file.read_text() for file in (ROOT / "zq").rglob("*.py")}
    licence = "# SPDX-License-Identifier: Apache-2.0\n"
    assert [str(file) for file, text in texts.items() if not text.startswith(licence)] == []
    assert [module for module, tree in sources().items() if not ast.get_docstring(tree)] == [], "no docstring"


def package(module: str) -> str:
    """Return the package for the rules, such as ``zq.core`` or ``zq.storage.redis``."""
    return ".".join(module.split(".")[: 3 if within(module, "zq.storage") else 2])


@pytest.mark.slow
def test_words_that_went_do_not_come_back_as_names() -> None:
    """No class, function, module, parameter or constant has a name that the table replaces by the field's term."""
    uses, instead = used(names(ROOT)), {word.old: word.new for word in WORDS}
    there = {(package(module), old): module for old, modules in uses.items() for module in modules}
    known = {(home, old) for home, words in STILL_THERE.items() for old in words.split()}
    assert [f"{old} in {there[home, old]}: say {instead[old]}" for home, old in there if (home, old) not in known] == []
    assert sorted(known - there.keys()) == [], "These words are gone: take them out of STILL_THERE."


def test_an_old_word_is_noticed_as_what_it_names(tmp_path: Path) -> None:
    """The check notices each kind of name, but only in the packages of the table."""
    for module, text in {
        "zq/storage/redis/ways.py": "class _Told: ...",
        "zq/storage/mongodb/x.py": "async def ask(tell): ...",
        "zq/storage/rocksdb/x.py": "LOST_TAIL: int = 1\ndef ask(once, /): ...",
        "zq/cli/ways.py": "def main(once, told_so): ...",
        "tests/http/x.py": "def test(*, realm): ...",
    }.items():
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / module).write_text(text)
    assert used(names(tmp_path)) == {
        "Told": ["zq.storage.redis.ways"],
        "ask()": ["zq.storage.mongodb.x"],
        "tell": ["zq.storage.mongodb.x"],
        "LOST_TAIL": ["zq.storage.rocksdb.x"],
        "once": ["zq.storage.rocksdb.x"],
        "ways.py": ["zq.storage.redis.ways"],
        "realm": ["tests.http.x"],
    }
