# SPDX-License-Identifier: Apache-2.0
"""The reference's tables of operations, options and keys, compared with OpenAPI and the code."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from zq.serving.settings.reference import build_tables, with_tables
from zq.wire.metadata import KEYS

FOLDER = Path(__file__).parent.parent / "api-ref"
METHODS = ("get", "head", "put", "post", "patch", "delete")
TABLE = re.compile(r"^(\| Method \| Path \|.*)\n\|[-|]+\n((?:\|.*\n)+)(?:\n(?!```|#)((?:.+\n)+))?", re.MULTILINE)


class Row(Struct, frozen=True):
    """An operation in a table; ``statuses`` are in the row or in the paragraph below the table."""

    operation: tuple[str, str]
    query: str
    page: str
    statuses: frozenset[str]
    links: tuple[str, ...]


NAMES_OF_TOPICS = ("OF_TOPICS", "NOT_OF_TOPICS")
GUARDED = frozenset({"401", "429"})
"""Statuses of every operation that needs a credential (``authentication.md``)."""


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def statuses(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\b[2-5]\d\d\b", text))


def rows(page: Path) -> Iterator[Row]:
    """Yield the rows of the tables with the columns ``Method``, ``Path`` and ``Answers``."""
    for head, body, beneath in TABLE.findall(page.read_text()):
        column = cells(head).index("Answers")
        for row in map(cells, body.splitlines()):
            path, _, query = row[1].strip("`").partition("?")
            own = statuses(row[column])
            told = own | statuses(beneath) if own else own
            for method in re.findall(r"[A-Z]+", row[0]):
                yield Row((method, path), query, page.name, told, tuple(re.findall(r"([\w-]+\.md)", row[column])))


ROWS = [row for page in sorted(FOLDER.glob("*.md")) for row in rows(page)]


def test_operations_answer_as_the_tables_say() -> None:
    """The rows have exactly the operations of OpenAPI and their statuses; an operation may have a row for each query.

    Statuses for missing or invalid credentials are on the page on authentication.
    """
    document = json.loads((FOLDER / "openapi.json").read_text())
    described = {
        (method.upper(), path): frozenset(item[method]["responses"])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    }
    open_to_all = {name for name, found in described.items() if not found & GUARDED}
    assert {path for _, path in open_to_all} == {"/", "/healthz", "/readyz"}
    assert all(found >= GUARDED for name, found in described.items() if name not in open_to_all)
    described = {name: found - GUARDED for name, found in described.items()}
    told: dict[tuple[str, str], frozenset[str]] = defaultdict(frozenset)
    for row in ROWS:
        told[row.operation] |= row.statuses
    assert {name: found for name, found in told.items() if found != described.get(name)} == {}
    assert [name for name in described if name not in told] == []


def test_an_operation_is_described_in_one_place() -> None:
    """The operation's statuses are in one row; its other rows link to the page of that row."""
    described = [row for row in ROWS if row.statuses]
    assert [row for row, count in Counter((row.operation, row.query) for row in described).items() if count > 1] == []
    pages = {(row.operation, row.page) for row in described}
    lost = [row for row in ROWS if not row.statuses and not any((row.operation, link) in pages for link in row.links)]
    assert lost == []


def test_options_and_reserved_keys_have_one_place_on_their_pages() -> None:
    """The site has a table in each place; the pages have none."""
    for name in ("configuration.md", "queues.md"):
        page = (FOLDER / name).read_text()
        tables = build_tables(name)
        assert page.count("<!-- The site has the table of") == len(tables)
        assert [title for title, rows in tables.items() if rows in page] == []
        assert [title for title, rows in tables.items() if rows not in with_tables(name, page)] == []


def test_the_console_has_the_keys_that_topics_use() -> None:
    """The OpenAPI document does not show which keys affect topics."""
    source = (FOLDER.parent / "zq" / "console" / "static" / "pages" / "metadata.js").read_text()
    listed, shown = (re.findall(rf"^const {name} = (.+);$", source, re.MULTILINE)[0] for name in NAMES_OF_TOPICS)
    assert json.loads(listed) == [name for name, (_, key) in KEYS.items() if key.topics]
    assert [json.loads(shown)] == [name for name, (_, key) in KEYS.items() if key.shown_on_topics and not key.topics]


def test_every_page_is_in_the_table_of_contents() -> None:
    """``index.md`` has one row for each page."""
    listed = re.findall(r"^\| \[[^\]]+\]\(([^)#]+)\)", (FOLDER / "index.md").read_text(), re.MULTILINE)
    pages = {page.name for page in FOLDER.glob("*.md")} - {"index.md"}
    assert sorted(listed) == sorted(pages)
