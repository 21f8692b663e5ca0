# SPDX-License-Identifier: Apache-2.0
"""The fenced blocks of the README and the reference."""

import re
from pathlib import Path
from textwrap import dedent

from msgspec import Struct

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "api-ref").rglob("*.md"))]
FENCED = re.compile(r"^( *)```(.*)\n((?:.*\n)*?)\1```$", re.MULTILINE)


class Block(Struct, frozen=True):
    """A block of a page of the repository; ``line``: where it begins."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Those of a page, in their order. Blocks in a list lose their indentation."""
    content = page.read_text()
    name = str(page.relative_to(ROOT))
    return [
        Block(name, content.count("\n", 0, found.start()) + 1, found[2], dedent(found[3]))
        for found in FENCED.finditer(content)
    ]


def curl_samples(page: Path) -> list[str]:
    """The blocks that are marked ``sh`` and call curl."""
    return [block.text for block in blocks(page) if block.language == "sh" and re.search(r"\bcurl\b", block.text)]


def only(page: str, language: str, part: str = "") -> str:
    """The one block of a page in this language that has this part."""
    (found,) = (block.text for block in blocks(ROOT / page) if block.language == language and part in block.text)
    return found
