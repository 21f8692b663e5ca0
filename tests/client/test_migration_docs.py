# SPDX-License-Identifier: Apache-2.0
"""``api-ref/migration-from-sqs.md`` and ``api-ref/concepts.md``: their samples are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import install
from tests.servers import ZqServer

REFERENCE = Path(__file__).parent.parent.parent / "api-ref"


@pytest.mark.parametrize(
    ("page", "language", "command"),
    [
        ("concepts", "python", [sys.executable, "-c"]),
        ("migration-from-sqs", "python", [sys.executable, "-c"]),
        ("migration-from-sqs", "sh", ["bash", "-euo", "pipefail", "-c"]),
    ],
)
def test_the_samples_of_a_page_work(
    running: ZqServer, project: str, tmp_path: Path, page: str, language: str, command: list[str]
) -> None:
    """From top to bottom, in one program that stops at the first failure, in a project of its own."""
    samples = re.findall(rf"^```{language}\n(.*?)^```$", (REFERENCE / f"{page}.md").read_text(), re.M | re.S)
    assert samples
    program = "\n".join(samples).replace("http://localhost:8888", running.url).replace("acme", project)
    env = os.environ | {"PATH": f"{install(tmp_path)}:{os.environ['PATH']}", "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, program], cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
