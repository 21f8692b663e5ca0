# SPDX-License-Identifier: Apache-2.0
"""The wording of docstrings, comments and help texts in ``zq``, and of pages; ``CONTRIBUTING.md`` has the rules.

Ruff checks the form of docstrings (D205, D400, D401).
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

FIRST_WORD = re.compile(r"(What|Who|Whoever|Those|That|Of|By|As|So|The same)\b")
# Agents and verbs of people that hide which part of a program acts.
BANNED_WORD = re.compile(
    r"\b(told|tells|heard|asked|met|said|stands(?! for)|lies|nobody|somebody|whoever|anew|so many|at last)\b",
    re.IGNORECASE,
)
# Names in backquotes and the parameters of an ``Args`` section may be any word.
NAME = re.compile(r"``[^`]*``|^ +\w+:", re.MULTILINE)
# Code and link targets in Markdown.
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL)
# The marker of a heading or a list item.
BLOCK = re.compile(r" *(?:#+|[-*]|\d+\.) +")


class Text(NamedTuple):
    """A docstring, a comment block or a help text, and its first line."""

    line: int
    words: str


class Fault(NamedTuple):
    """A place in a text that breaks a rule."""

    line: int
    rule: str


def texts(source: str) -> Iterator[Text]:
    """Yield every string statement, every ``help=`` text and every comment block."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) or (isinstance(node, ast.keyword) and node.arg == "help"):
            yield from strings(node.value)
    yield from comments(source)


def strings(value: ast.expr) -> Iterator[Text]:
    """Yield the text of a string literal; an f-string has ``{}`` for each of its values."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield Text(value.lineno, value.value.strip())
    elif isinstance(value, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in value.values]
        yield Text(value.lineno, "".join(map(str, parts)).strip())


def comments(source: str) -> Iterator[Text]:
    """Yield comments; whole-line comments on successive lines are one block."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        words = token.string.lstrip("#! ")
        is_whole_line = token.line.lstrip().startswith("#")
        if block and is_whole_line and token.start[0] == last + 1:
            block.append(words)
        else:
            if block:
                yield Text(first, "\n".join(block))
            block, first = [words], token.start[0]
        # A comment behind code never continues on the next line.
        last = token.start[0] if is_whole_line else 0
    if block:
        yield Text(first, "\n".join(block))


def blank(name: re.Match[str]) -> str:
    """Replace a name by as many backquotes and keep its line breaks, so that later line numbers are correct."""
    return re.sub(r"[^\n]", "`", name[0])


def faults(source: str) -> list[Fault]:
    """Return the faults of a module, ordered by line."""
    found = []
    for text in texts(source):
        if first := FIRST_WORD.match(text.words):
            found.append(Fault(text.line, f'begins with "{first[0]}"'))
        for word in BANNED_WORD.finditer(NAME.sub(blank, text.words)):
            line = text.line + text.words.count("\n", 0, word.start())
            found.append(Fault(line, f'says "{word[0]}"'))
    return sorted(found)


def page_faults(page: str) -> list[Fault]:
    """Return the faults of a page in Markdown, ordered by line.

    First words are checked in headings, list items, table cells and paragraphs.
    """
    found = []
    before = ""
    for number, line in enumerate(CODE.sub(blank, page).splitlines(), 1):
        is_block = BLOCK.match(line) is not None or not before.strip()
        parts = line.split("|") if line.startswith("|") else [BLOCK.sub("", line, count=1)] if is_block else []
        for part in parts:
            if first := FIRST_WORD.match(part.strip(" *")):
                found.append(Fault(number, f'begins with "{first[0]}"'))
        found += [Fault(number, f'says "{word[0]}"') for word in BANNED_WORD.finditer(line)]
        before = line
    return sorted(found)


def test_prose_follows_the_style() -> None:
    modules = [*(ROOT / "zq").rglob("*.py"), ROOT / "api-ref" / "conf.py"]
    pages = [*(ROOT / "api-ref").rglob("*.md"), *ROOT.glob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}:{fault.line}: {fault.rule}"
        for paths, check in ((modules, faults), (pages, page_faults))
        for path in sorted(paths)
        for fault in check(path.read_text())
    ]
    assert not found, "\n".join(["rewrite these texts (CONTRIBUTING.md, Style of prose):", *found])


def test_each_part_of_a_page_is_checked() -> None:
    page = """# What it is

By default, `whoever` is a name.

- a list
- Those of a list: [as](said.md)

| Cell | So it is |

```
nobody
```
Messages begin anew.
"""
    assert page_faults(page) == [
        Fault(1, 'begins with "What"'),
        Fault(3, 'begins with "By"'),
        Fault(6, 'begins with "Those"'),
        Fault(8, 'begins with "So"'),
        Fault(13, 'says "anew"'),
    ]


def test_each_kind_of_text_is_checked() -> None:
    source = '''
"""What a module is."""
import click

LIMIT = 1
"""Of a constant."""

class Post:
    """The same for posts."""

    size: int
    """Bytes that the caller was told."""

    def send(self):
        """Send the post.

        Nobody waits.
        """
        # As it was before,
        # whoever looks.
        return self.size  # So it is
        # Bytes are sent.

option = click.option("--limit", help=f"Whoever {LIMIT} is.")
'''
    assert faults(source) == [
        Fault(2, 'begins with "What"'),
        Fault(6, 'begins with "Of"'),
        Fault(9, 'begins with "The same"'),
        Fault(12, 'says "told"'),
        Fault(17, 'says "Nobody"'),
        Fault(19, 'begins with "As"'),
        Fault(20, 'says "whoever"'),
        Fault(21, 'begins with "So"'),
        Fault(24, 'begins with "Whoever"'),
        Fault(24, 'says "Whoever"'),
    ]


def test_plain_prose_has_no_faults() -> None:
    assert not faults('''
def ready(asked):
    """Return whether the time ``asked`` is over; 0 stands for now.

    Args:
        asked: The time of the request.
    """
''')
