# SPDX-License-Identifier: Apache-2.0
"""The Sphinx site of the reference: built without warnings, with navigation and search."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.blocks import ROOT

pytestmark = pytest.mark.slow

REFERENCE = ROOT / "api-ref"
MADE = {"genindex.html", "py-modindex.html", "search.html"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site and return its folder; broken references and other warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", REFERENCE, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> list[Path]:
    return [page for page in sorted(site.rglob("*.html")) if page.name not in MADE and "_static" not in page.parts]


def test_every_page_leads_on_and_its_blocks_can_be_copied(site: Path) -> None:
    """Each page has a link to the previous or next page and the copy buttons' script."""
    assert len(pages(site)) > 30
    for page in pages(site):
        content = page.read_text()
        assert re.search(r'class="(next|prev)-page"', content), page.name
        assert "copybutton.js" in content, page.name


WORDS = [
    *("ack", "nack", "visibility timeout", "consumer group", "dlq", "poison message", "redrive", "lease", "offset"),
    *("receipt handle", "fan-out", "at least once", "prefetch", "ttl", "back-off", "consumer", "heartbeat", "peek"),
    *("group commit", "lazy expiry", "active expiry", "retention", "history entry", "competing consumers"),
]


def test_a_search_for_a_word_of_the_field_lands_in_the_glossary(site: Path) -> None:
    """Each word is a heading in concepts.md, which Sphinx's search ranks first, and each entry has a link."""
    index = json.loads((site / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    concepts = index["docnames"].index("concepts")
    titles = {title.lower(): [page for page, _ in places] for title, places in index["alltitles"].items()}
    assert [word for word in WORDS if concepts not in titles.get(word, [])] == []
    glossary = (REFERENCE / "concepts.md").read_text().partition("\n## Glossary\n")[2]
    _, *entries = glossary.split("\n### ")
    headings = {entry.partition("\n")[0].lower() for entry in entries}
    assert sorted(headings) == [entry.partition("\n")[0].lower() for entry in entries]
    for entry in entries:
        elsewhere = {word.lower() for word in re.findall(r"(?<!\*)\*(\w[^*\n]+)\*", entry)}
        assert elsewhere <= headings
        assert ".md" in entry or elsewhere


def test_no_section_is_called_as_a_page_to_begin_with() -> None:
    """Readers could not distinguish them in the search results."""
    begin = (REFERENCE / "index.md").read_text().partition("## Tutorials")[2].partition("\n## ")[0]
    titles = re.findall(r"^\| \[([^\]]+)\]", begin, re.MULTILINE)
    assert "Getting started" in titles
    headings = [
        (page.name, heading)
        for page in REFERENCE.glob("*.md")
        for heading in re.findall(r"^##+ (.+)$", page.read_text(), re.MULTILINE)
    ]
    assert [(page, heading) for page, heading in headings if heading in titles] == []
