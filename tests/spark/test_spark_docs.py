# SPDX-License-Identifier: Apache-2.0
"""``api-ref/spark.md``: its program runs, and its tables have every option and column."""

import re
import subprocess
import sys

from tests.blocks import ROOT, only
from tests.servers import ZqServer
from tests.spark.conftest import prepared
from zq.spark.options import KNOWN
from zq.spark.rows import COLUMNS, PLACES

PAGE = ROOT / "api-ref" / "spark.md"


def test_the_program_of_the_page_works(server: ZqServer, project: str) -> None:
    """As a program of its own, which finds the format by itself."""
    prepared()
    program = only("api-ref/spark.md", "python").replace("http://localhost:8888", server.url).replace("acme", project)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_option_and_column_is_on_the_page() -> None:
    """Those that Spark gives by itself are no options of ours."""
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    assert {*KNOWN} - told - {"path", "checkpointLocation", "queryName"} == set()
    assert {*COLUMNS, *PLACES, "body"} - told == set()
