# SPDX-License-Identifier: Apache-2.0
"""Metrics of a tree of zq: sizes, the storage interface, former terms, calls per request.

``python -m bench.figures [TREE] [--stores rocksdb,mongodb,redis]`` examines this tree or another checkout, with that
one's ``.venv`` if it has one. ``--stores ''`` omits the calls, which need servers. The command asserts nothing.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median_high, quantiles
from typing import NamedTuple

from tests.stores import MongoServer, RedisServer
from tests.words import WORDS, names, used

HERE = Path(__file__).parent.parent
CALLS = Path(__file__).with_name("calls.py")
TOO_LONG = 40
"""Maximum number of lines of a function, by convention."""


class Sizes(NamedTuple):
    """Sizes of the files in a folder."""

    name: str
    files: list[int]
    """Number of lines of each Python file."""
    scripts: list[int]
    """Number of lines of each Lua script."""
    functions: list[int]
    """Number of lines of each function."""

    def row(self) -> str:
        functions = sorted(self.functions) or [0]
        p95 = quantiles(functions, n=20, method="inclusive")[-1] if len(functions) > 1 else functions[0]
        above = sum(length > TOO_LONG for length in functions)
        files = f"{len(self.files)} | {sum(self.files):,} | {median_high(self.files or [0])}"
        scripts = f"{len(self.scripts)} | {sum(self.scripts):,}"
        lengths = f"{len(self.functions):,} | {median_high(functions)} | {p95:.0f} | {functions[-1]} | {above}"
        return f"| {self.name} | {files} | {scripts} | {lengths} |"


HEAD = """\
| | files | lines | median file | Lua files | lines | functions | median | p95 | longest | above 40 |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"""


def sizes(name: str, paths: list[Path]) -> Sizes:
    """Return the sizes of these files and of all files in these folders."""
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
    python = [file for file in files if file.suffix == ".py"]
    lengths = [
        node.end_lineno - node.lineno + 1
        for file in python
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    return Sizes(name, *([lines(file) for file in files if file.suffix == end] for end in (".py", ".lua")), lengths)


def lines(file: Path) -> int:
    return file.read_text().count("\n")


def parts(folder: Path) -> dict[str, list[Path]]:
    """Return the parts of a package: a folder with the module of the same name, or a single module."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" or (path.is_dir() and path.name != "__pycache__"):
            found.setdefault(path.stem, []).append(path)
    return found


def packages(tree: Path) -> Iterator[Sizes]:
    """Yield the sizes of zq without its conformance suite, of its packages, of its other modules, and of the tests."""
    found = parts(tree / "zq")
    yield sizes("zq", [path for name, paths in found.items() if name != "conformance" for path in paths])
    single = []
    for name, paths in found.items():
        if any(path.is_dir() for path in paths):
            yield sizes(f"zq.{name}", paths)
        else:
            single += paths
    yield sizes("zq, top level", single)
    yield sizes("tests", [tree / "tests"])


def stores(tree: Path) -> Iterator[Sizes]:
    """Yield the sizes of the drivers, the ordered engine, its stores, and shared modules."""
    for name, paths in parts(tree / "zq" / "storage").items():
        yield sizes(f"storage.{name}", paths)


def protocols(tree: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the name of each shared protocol of ``zq/storage``, and its numbers of methods and parameters."""
    files = [*sorted((tree / "zq/storage").glob("*.py")), *sorted((tree / "zq/storage/ordered").glob("store.py"))]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef) and not each.decorator_list]
                arguments = [argument for each in methods for argument in (*each.args.args, *each.args.kwonlyargs)]
                name = f"ordered {node.name}" if file.parent.name == "ordered" else node.name
                yield name, len(methods), len(arguments) - len(methods)


@contextmanager
def started(store: str) -> Iterator[str]:
    """Yield the URI of an empty store."""
    if store == "memory":
        yield "memory:"
    elif store == "rocksdb":
        with tempfile.TemporaryDirectory() as folder:
            yield f"rocksdb://{folder}/store"
    else:
        with MongoServer() if store == "mongodb" else RedisServer() as server:
            yield server.uri


def interpreter(tree: Path) -> tuple[str, dict[str, str]]:
    """Return the tree's Python, and an environment in which it finds the tree's ``zq``."""
    own = tree / ".venv" / "bin" / "python"
    return str(own if own.exists() else sys.executable), {**os.environ, "PYTHONPATH": str(tree)}


def calls(tree: Path, store: str) -> dict[str, list[int]]:
    """Return for each request its calls above and below the storage interface, files, and depth."""
    python, environment = interpreter(tree)
    with started(store) as uri:
        command = [python, "-P", str(CALLS), uri]
        done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, timeout=300)
    counted: dict[str, list[int]] = json.loads(done.stdout)
    return counted


def print_calls(tree: Path, chosen: list[str]) -> None:
    table = {store: calls(tree, store) for store in chosen}
    print("\n## Calls of zq's own functions per request: above + below the storage interface (files, depth)\n")
    print(f"| | {' | '.join(chosen)} |\n|---|{'---|' * len(chosen)}")
    for request in table[chosen[0]]:
        cells = ["{} + {} ({}, {})".format(*table[store][request]) for store in chosen]
        print(f"| {request} | {' | '.join(cells)} |")


def print_interface(tree: Path) -> None:
    found = list(protocols(tree))
    seam = [row for row in found if "ordered" not in row[0]]
    methods, parameters = (sum(row[column] for row in seam) for column in (1, 2))
    print(f"\n## The storage interface: {methods} methods, {parameters} parameters\n")
    print(", ".join(f"{name} {count}" for name, count, _ in found))


def print_words(tree: Path) -> None:
    uses = used(names(tree))
    total = sum(len(places) for places in uses.values())
    print(f"\n## Words that are to go: {len(uses)} of {len(WORDS)} are still names, {total} times\n")
    print(", ".join(f"{word} {len(places)}" for word, places in uses.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, nargs="?", default=HERE, help="another checkout (default: this one)")
    parser.add_argument("--stores", default="rocksdb,mongodb,redis", help="those on which requests are traced")
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    print(f"# {tree}\n\n## Packages\n\n{HEAD}")
    print("\n".join(each.row() for each in packages(tree)))
    print(f"\n## Drivers, engine, stores\n\n{HEAD}")
    print("\n".join(each.row() for each in stores(tree)))
    print_interface(tree)
    print_words(tree)
    if arguments.stores:
        print_calls(tree, arguments.stores.split(","))


if __name__ == "__main__":
    main()
