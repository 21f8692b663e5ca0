# SPDX-License-Identifier: Apache-2.0
"""Metrics of the source's structure: sizes, imports and wiring. Run ``python -m bench.structure``."""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
# Files and functions above these sizes are listed; there is no limit.
MAX_FILE_LINES: Final = 600
MAX_FUNCTION_LINES: Final = 50
MAX_IMPORTS: Final = 12
# Names of Falcon's objects, whose attributes middleware and resources set.
FALCON: Final = ("req", "resp", "request", "context", "req.context", "call.request.context")

Modules = Mapping[str, ast.Module]


def modules(root: Path = ROOT) -> dict[str, ast.Module]:
    """Return the parsed modules of ``zq`` below ``root`` by name, without ``zq.conformance``."""
    found = {}
    for file in sorted((root / "zq").rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not name.startswith("zq.conformance"):
            found[name] = ast.parse(file.read_text(), str(file))
    return found


def imported(module: str, tree: ast.Module, known: Modules) -> set[str]:
    """Return the modules of ``zq`` that a module imports, at any depth of its code."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
    return {name for name in found if name in known and name not in (module, "zq")}


def unit(module: str) -> str:
    """Return the entry at the top of ``zq`` to which a module belongs."""
    return ".".join(module.split(".")[:2])


def set_from_outside(known: Modules) -> list[str]:
    """Return each assignment to an attribute of an object of another module, as "module:line target".

    Fields of value classes (annotated in the class body) do not count, nor do Falcon's request and response.
    """
    own = {module: {target.attr for target in _targets(tree) if _is_self(target)} for module, tree in known.items()}
    fields = {
        statement.target.id
        for tree in known.values()
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef)
        for statement in kind.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    objects = set().union(*own.values()) - fields
    return [
        f"{module}:{target.lineno} {ast.unparse(target)}"
        for module, tree in known.items()
        for target in _targets(tree)
        if target.attr in objects - own[module] and ast.unparse(target.value) not in FALCON
    ]


def _is_self(target: ast.Attribute) -> bool:
    return isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")


def _targets(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that statements below a node assign."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        while targets:
            target, *targets = targets
            if isinstance(target, ast.Tuple | ast.List):
                targets += target.elts
            elif isinstance(target, ast.Attribute):
                yield target


def cycles(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one node."""
    reach = {node: _reachable(node, edges) for node in edges}
    found: list[set[str]] = []
    for node in edges:
        group = {other for other in reach[node] if node in reach.get(other, ())}
        if len(group) > 1 and group not in found:
            found.append(group)
    return found


def _reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    left = [start]
    while left:
        for target in edges.get(left.pop(), ()):
            if target not in seen:
                seen.add(target)
                left.append(target)
    return seen


def floors(edges: Mapping[str, set[str]]) -> int:
    """Return the number of nodes on the longest path of imports, with each cycle as one node."""
    groups = cycles(edges)
    home = {node: next((f"cycle {at}" for at, group in enumerate(groups) if node in group), node) for node in edges}
    merged: dict[str, set[str]] = defaultdict(set)
    for node, targets in edges.items():
        merged[home[node]] |= {home[target] for target in targets if target in home} - {home[node]}
    depths: dict[str, int] = {}

    def depth(node: str) -> int:
        if node not in depths:
            depths[node] = 1 + max((depth(target) for target in merged[node]), default=0)
        return depths[node]

    return max(depth(node) for node in list(merged))


def prose_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines of docstrings and comments."""
    count = sum(line.lstrip().startswith("#") for line in text.splitlines())
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            count += (value.end_lineno or value.lineno) - value.lineno + 1
    return count


def print_sizes(known: Modules, root: Path) -> None:
    """Print lines of Python and of prose by package, then the files and functions that stand out."""
    lines, prose = Counter[str](), Counter[str]()
    large = []
    for module, tree in known.items():
        folder = root.joinpath(*module.split("."))
        text = (folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text()
        parts = module.split(".")
        package = ".".join(parts[:3] if parts[1:2] == ["storage"] and len(parts) > 3 else parts[:2])
        count = len(text.splitlines())
        lines[package] += count
        prose[package] += prose_lines(text, tree)
        if count > MAX_FILE_LINES:
            large.append(f"{module}: {count} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > MAX_FUNCTION_LINES:
                    large.append(f"{module}.{node.name}: {size} lines")
        if (count := len(imported(module, tree, known))) > MAX_IMPORTS:
            large.append(f"{module}: imports {count} modules of zq")
    for package, count in lines.most_common():
        print(f"{package:28} {count:6} lines, {prose[package]:5} of prose")
    print(f"{'all':28} {lines.total():6} lines, {prose.total():5} of prose")
    print("\nWhat stands out:", *large, sep="\n  ")


def print_structure(known: Modules) -> None:
    """Print the numbers of units, floors, cycles, assignments from outside, and importers of the whole broker."""
    files = {module: imported(module, tree, known) for module, tree in known.items()}
    units: dict[str, set[str]] = defaultdict(set)
    for module, targets in files.items():
        units[unit(module)] |= {unit(target) for target in targets} - {unit(module)}
    outside = set_from_outside(known)
    brokers = [
        module
        for module, tree in known.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and any(alias.name == "Broker" for alias in node.names)
    ]
    print(f"\nunits at the top of zq: {len(units) - 1}, floors of imports: {floors(units)}")
    print("cycles of units:", [sorted(group) for group in cycles(units)])
    print("cycles of files:", [sorted(group) for group in cycles(files)])
    print(f"attributes set from outside: {len(outside)}", *outside, sep="\n  ")
    print(f"modules that import the whole broker: {len(brokers)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to measure")
    given = parser.parse_args()
    known = modules(given.root)
    print_sizes(known, given.root)
    print_structure(known)


if __name__ == "__main__":
    main()
