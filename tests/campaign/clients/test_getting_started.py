# SPDX-License-Identifier: Apache-2.0
"""``api-ref/getting-started.md``, followed exactly: 100,000 lines and four workers, one of which is killed."""

import re
from pathlib import Path

from tests.blocks import ROOT
from tests.reader import SHELL, follow
from tests.servers import ZqServer

PAGE = (ROOT / "api-ref" / "getting-started.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_each_line_is_worked_on_and_counted_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    """The page's commands show that every line is processed at least once and counted exactly once."""
    (_, serve), *shell = [block for block in BLOCKS if block[0] == "sh"]
    ((_, worker),) = [block for block in BLOCKS if block[0] == "python"]
    assert serve == "devstack/run\n"  # with no variable set
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        (tmp_path / "worker.py").write_text(worker.replace("http://localhost:8888", server.url))
        lines = "\n".join(text for _, text in shell).replace("http://localhost:8888", server.url)
        done = follow([*SHELL, lines], tmp_path, within=280, installed=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.isdigit()] == ["100000", "100000"], done.stdout
    worked_on_by_the_killed = (tmp_path / "lines.2").read_text().splitlines()
    assert worked_on_by_the_killed, "it was killed before it had begun"
    assert re.fullmatch(r"lines +0 +0 +0 *", lines[-1]), done.stdout
