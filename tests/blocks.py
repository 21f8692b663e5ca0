# SPDX-License-Identifier: Apache-2.0
"""The fenced code blocks of the README and the reference."""

import re
from pathlib import Path
from textwrap import dedent

from msgspec import Struct

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "api-ref").rglob("*.md"))]
FENCED = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)


class Block(Struct, frozen=True):
    """A code block of a page in the repository; ``line`` is its first line."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page in order. Blocks in a list lose their indentation."""
    content = page.read_text()
    name = str(page.relative_to(ROOT))
    return [
        Block(name, content.count("\n", 0, found.start()) + 1, found[2], dedent(found[3]))
        for found in FENCED.finditer(content)
    ]


def curl_samples(page: Path) -> list[str]:
    """Return the blocks in the language ``sh`` that call curl."""
    return [block.text for block in blocks(page) if block.language == "sh" and re.search(r"\bcurl\b", block.text)]


def only(page: str, language: str, part: str = "") -> str:
    """Return the only block of a page in this language that contains `part`."""
    (found,) = (block.text for block in blocks(ROOT / page) if block.language == language and part in block.text)
    return found


def section(page: str, heading: str) -> list[str]:
    """Return the code blocks below a second-level heading of a page of the reference, in order."""
    text = (ROOT / "api-ref" / f"{page}.md").read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert text, heading
    return [dedent(found[3]) for found in FENCED.finditer(text)]
