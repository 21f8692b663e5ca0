# SPDX-License-Identifier: Apache-2.0
"""``api-ref/concepts.md``: its sample runs."""

import re
from pathlib import Path

import pytest

from tests.reader import PYTHON, SHELL, succeed
from tests.servers import ZqServer

REFERENCE = Path(__file__).parent.parent.parent / "api-ref"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "language"),
    [("concepts", "python")],
)
def test_the_samples_of_a_page_work(running: ZqServer, project: str, tmp_path: Path, page: str, language: str) -> None:
    """The samples run in order in one program that stops at the first failure, in a separate project."""
    samples = re.findall(rf"^```{language}\n(.*?)^```$", (REFERENCE / f"{page}.md").read_text(), re.M | re.S)
    assert samples
    program = "\n".join(samples).replace("http://localhost:8888", running.url).replace("acme", project)
    succeed([*{"python": PYTHON, "sh": SHELL}[language], program], tmp_path)
