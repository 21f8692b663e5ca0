# SPDX-License-Identifier: Apache-2.0
"""The page of licences: the packages of each extra and their licences, from the packages' metadata.

``python -m tests.packaging.licences THIRD-PARTY.md`` updates its tables, in an environment with every extra.
"""

import configparser
import re
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent.parent
CLIENT: Final = "client"
EXTRAS: Final = (
    "cli",
    "server",
    "rocksdb",
    "mongodb",
    "redis",
    "object",
    "granian",
    "jwt",
    "keystone",
    "policy",
    "delivery",
    "encryption",
    "fast",
    "spark",
    "tracing",
    "report",
)
"""The extras that users install; the others are for the development of zq."""
MARK: Final = "<!-- Written by python -m tests.packaging.licences. -->\n"
LONGEST: Final = 60
"""Maximum length of a licence's name; some packages have the text of their licence in that field."""


def requirements(extra: str) -> list[Requirement]:
    """Return the requirements of an extra in setup.cfg, or of the client, which needs no extra."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    section, key = ("options", "install_requires") if extra == CLIENT else ("options.extras_require", extra)
    return [Requirement(line) for line in setup[section][key].splitlines() if line]


def packages(extra: str) -> set[str]:
    """Return the names of all packages that an extra installs, including indirect requirements."""
    found: set[str] = set()
    todo = requirements(extra)
    while todo:
        wanted = todo.pop()
        if not applies(wanted, "") or (name := canonicalize_name(wanted.name)) in found:
            continue
        found.add(name)
        needs = map(Requirement, distribution(name).requires or [])
        todo += [need for need in needs for chosen in ("", *wanted.extras) if applies(need, chosen)]
    return found


def applies(wanted: Requirement, extra: str) -> bool:
    """Return whether the requirement applies to this machine and the extra."""
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def licence(name: str) -> str:
    """Return the shortest form of a package's licence in its metadata. Raises ``ValueError`` if there is none."""
    said = distribution(name).metadata
    if short := named([said.get("License-Expression"), _classified(said), said.get("License")]):
        return short
    raise ValueError(f"{name} says nothing of its licence.")


def named(texts: Iterable[str | None]) -> str | None:
    """Return the first text that is the name of a licence, rather than its text or nothing."""
    lines = (" ".join(text.split()) for text in texts if text)
    return next((line for line in lines if line not in ("", "UNKNOWN") and len(line) <= LONGEST), None)


def _classified(said: PackageMetadata) -> str:
    kinds = [line.split(" :: ")[-1] for line in said.get_all("Classifier", []) if line.startswith("License :: ")]
    return ", ".join(kind for kind in kinds if kind != "OSI Approved")


def rows() -> Iterator[str]:
    """Yield a row for each package: its name, its licence, and the extras that install it."""
    brought = {extra: packages(extra) for extra in (CLIENT, *EXTRAS)}
    for name in sorted(set().union(*brought.values())):
        extras = (
            ["every install"] if name in brought[CLIENT] else [f"`{key}`" for key in EXTRAS if name in brought[key]]
        )
        yield f"| [{name}](https://pypi.org/project/{name}/) | {licence(name)} | {', '.join(extras)} |\n"


def renewed(page: str) -> str:
    """Return the page with an updated table."""
    before, mark, after = page.partition(MARK)
    rest = re.sub(r"\A\n(\|.*\n)*", "", after)
    return f"{before}{mark}\n| Package | Licence | Comes with |\n|---|---|---|\n{''.join(rows())}{rest}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    try:
        file.write_text(renewed(file.read_text()))
    except PackageNotFoundError as missing:
        sys.exit(f"{missing.name} is not installed here: every extra must be.")
