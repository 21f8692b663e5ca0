# SPDX-License-Identifier: Apache-2.0
"""``api-ref/migration-from-sqs.md``: its shell and Python blocks run in order."""

from itertools import groupby
from pathlib import Path

import pytest

from tests.blocks import ROOT, blocks
from tests.reader import PYTHON, SHELL, succeed
from tests.servers import ZqServer

pytestmark = pytest.mark.slow

RUN_BY = {"sh": SHELL, "python": PYTHON}


def test_the_tutorial_works_from_top_to_bottom(running: ZqServer, project: str, tmp_path: Path) -> None:
    """Consecutive blocks of a language run in one process with the page's variables."""
    page = blocks(ROOT / "api-ref" / "migration-from-sqs.md")
    export = next(line for line in page[0].text.splitlines() if line.startswith("export "))
    said = ""
    for language, following in groupby(page, key=lambda block: block.language):
        lines = "\n".join(block.text for block in following)
        begin = f"{export}\n" if language == "sh" and export not in lines else ""
        program = (begin + lines).replace("http://localhost:8888", running.url).replace("acme", project)
        said += succeed([*RUN_BY[language], program], tmp_path)
    assert "not all of it was done" in said
    assert '"reason":"max_claim_count"' in said.replace(" ", "")
