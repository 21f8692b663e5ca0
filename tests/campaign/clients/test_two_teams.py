# SPDX-License-Identifier: Apache-2.0
"""``api-ref/two-teams.md``, followed exactly except for the port."""

import re
from pathlib import Path

from tests.blocks import ROOT, blocks
from tests.reader import SHELL, follow
from tests.servers import free_port

PAGE = ROOT / "api-ref" / "two-teams.md"


def test_two_teams_are_apart_when_the_page_was_followed(tmp_path: Path) -> None:
    """All lines run in one shell, each response is the documented one, and no output has a token."""
    lines = "".join(block.text for block in blocks(PAGE))
    done = follow([*SHELL, lines.replace("8888", str(free_port()))], tmp_path, within=240)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{(tmp_path / 'zq.log').read_text()}"
    answers = [line for line in done.stdout.splitlines() if re.match(r"[1-5]\d\d ", line)]
    assert [line[:3] for line in answers] == [
        *("201", "201", "201", "201", "200", "200"),  # the requests of each team
        *("200", "200", "200"),  # quotas
        *("401", "403", "403"),
        *("201", "401", "200"),  # rotated, revoked, suspended
    ], done.stdout
    assert re.search(r"^\W*(name\W+)?orders\.new\b", done.stdout, re.MULTILINE), done.stdout  # what zq lists
    orders, runs = answers[4:6]
    assert ("orders.new" in orders, "runs" in orders) == (True, False)
    assert ("orders.new" in runs, "runs" in runs) == (False, True)
    passed, refused = (int(count) for count in re.findall(r"^ *(\d+) (?:200|429)$", done.stdout, re.MULTILINE))
    assert (passed + refused, refused > 0) == (40, True), done.stdout
    assert "The project may make at most 5 requests per second" in done.stdout
    audited = [line for line in done.stdout.splitlines() if line.startswith('{"time"')]
    assert [line for line in audited if '"outcome":"refused"' not in line and '"rule":"admin:' not in line] == []
    assert len([line for line in audited if '"outcome":"refused"' in line]) == 3
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir() if path.suffix in {".header", ".log"}] == [0] * 6
    said = done.stdout + (tmp_path / "audit.log").read_text() + (tmp_path / "zq.log").read_text()
    assert re.findall(r"zq_\w{10}_\w+", said) == []
