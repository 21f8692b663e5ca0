# SPDX-License-Identifier: Apache-2.0
"""Documentation that can fail: routes, options, errors and flags are each looked up in ``api-ref/``, the sample
configuration is compared, and the README's and the reference's curl lines are run. Beside it: ``test_reference.py``
compares tables, ``test_blocks.py`` says which test runs which sample."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from falcon.inspect import inspect_app

from tests.blocks import PAGES, ROOT, curl_samples, only
from tests.reader import SHELL, follow
from tests.servers import ZqServer
from zq import errors, settings
from zq.broker import Broker
from zq.clock import ManualClock
from zq.http.app import create_app
from zq.metrics.definitions import COUNTED, READ, STORE_GAUGES, STORE_TOTALS
from zq.storage.api import Storage

REFERENCE = [page for page in PAGES if page != ROOT / "README.md"]
ADDRESS = re.compile(r"http://(127\.0\.0\.1|localhost):8888")
WRITTEN = {"topics.md": "heard"}
"""Pages that show, as ``text``, what their lines have written into a file."""

PRELUDE = """\
curl() {
    local expected status
    expected=$(cat .expected 2>/dev/null || true)
    rm -f .expected
    command curl --silent --show-error --max-time 20 --dump-header .head "$@" || return
    status=$(awk '/^HTTP/ { code = $2 } END { print code }' .head)
    if [[ -n $expected ]]; then [[ $status == "$expected" ]]; else ((status < 400)); fi && return
    echo "curl $* answered $status${expected:+ and not $expected}" >&2
    return 22
}
"""


def text() -> str:
    return "\n".join(file.read_text() for file in REFERENCE)


def missing(names: list[str]) -> list[str]:
    """Those that stand nowhere in the reference as a word of their own."""
    reference = text()
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reference)]


def test_every_route_and_method_is_documented(storage: Storage, clock: ManualClock) -> None:
    """Some line of ``api-ref/`` has both the path template and the method."""
    app = create_app(Broker(storage, clock), admin_mode=True)
    lines = text().splitlines()
    undocumented = []
    for route in inspect_app(app).routes:
        path = re.compile(rf"(?<![\w/}}]){re.escape(route.path)}(?![\w/{{-])")
        there = "\n".join(line for line in lines if path.search(line))
        for method in route.methods:
            if not method.internal and not re.search(rf"\b{method.method}\b", there):
                undocumented.append(f"{method.method} {route.path}")
    assert undocumented == []


def test_every_option_is_documented() -> None:
    """By its name in code style, and its section in brackets."""
    names = [option.dest for options in settings.OPTIONS.values() for option in options]
    sections = [f"[{section}]" for section in settings.OPTIONS]
    reference = text()
    code = " ".join(re.findall(r"`[^`\n]+`", reference))
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", code)] == []
    assert [section for section in sections if section not in reference] == []


def test_every_error_is_documented() -> None:
    """Each class of ``zq.errors``, by its name."""
    classes = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert missing(classes) == []


def test_every_metric_is_documented_and_no_other() -> None:
    """Each definition has a row with its kind and its labels; each row is of a definition."""
    defined = COUNTED | STORE_TOTALS | STORE_GAUGES | READ
    page = (ROOT / "api-ref" / "metrics.md").read_text()
    rows = re.findall(r"^\| `zq_(\w+)` \| (\w+) \| ([^|]*)\|", page, re.MULTILINE)
    assert {name: (kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows} == {
        name: (definition.kind.value, definition.labels) for name, definition in defined.items()
    }
    assert len(rows) == len(defined)


def zq_server(*arguments: str) -> str:
    command = [sys.executable, "-m", "zq.server", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_every_flag_of_the_command_line_is_documented() -> None:
    """As ``zq-server --help`` lists them."""
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", zq_server("--help"))) - {"--help"})
    assert "--store" in flags
    assert missing(flags) == []


def test_the_sample_configuration_is_the_generated_one() -> None:
    """``zq-server --sample-config > etc/zq.conf.sample`` brings it up to date."""
    assert (ROOT / "etc" / "zq.conf.sample").read_text() == zq_server("--sample-config")


def anchors(file: Path) -> set[str]:
    """The names that a document's headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    """Relative links of the README and the reference name files, and headings in them, that exist."""
    broken = []
    for file in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
            name, _, heading = link.partition("#")
            target = file.parent / name if name else file
            if "://" in link:
                continue
            if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
                broken.append(f"{file.relative_to(ROOT)}: {link}")
    assert broken == []


def script(blocks: list[str], url: str) -> str:
    """The blocks as one script. A comment that names a status, as in "# 404", is what the next curl must answer."""
    lines = [PRELUDE]
    for line in ADDRESS.sub(url, "\n".join(blocks)).splitlines():
        expected = re.search(r"\b[45]\d\d\b", line) if line.startswith("#") else None
        lines.append(f"echo {expected.group()} >.expected" if expected else line)
    return "\n".join(lines) + "\n"


def run(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("curl") is None and os.environ.get("ZQ_REQUIRE_SERVERS") != "1":
        pytest.skip("curl is not installed; tests/client/test_curl.py goes the same way without it")
    return follow([*SHELL, commands], folder)


@pytest.mark.parametrize(
    "file",
    [file for file in PAGES if curl_samples(file)],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_the_curl_lines_of_a_document_work(file: Path, tmp_path: Path) -> None:
    """In their order, against a new server; each answers below 400, or what the comment before it says.

    Where a page shows what came, that came.
    """
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        done = run(script(curl_samples(file), server.url), tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if file.name in WRITTEN:
        assert only(f"api-ref/{file.name}", "text") in (tmp_path / WRITTEN[file.name]).read_text()


def test_the_readme_has_a_sample_to_run() -> None:
    """So that the test above cannot pass by finding nothing."""
    assert curl_samples(ROOT / "README.md") != []


@pytest.fixture(scope="module")
def some_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    with ZqServer(f"rocksdb://{tmp_path_factory.mktemp('docs')}/store") as server:
        yield server


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        ("curl http://localhost:8888/healthz", True),
        ("curl http://localhost:8888/nothing", False),
        ("# 404, since it is not there\ncurl http://localhost:8888/nothing | cat", True),
        ("# 404\ncurl http://localhost:8888/nothing\ncurl http://localhost:8888/nothing", False),
        ("# 404\ncurl http://localhost:8888/healthz", False),
        ("X=$(curl http://localhost:8888/nothing)\necho $X", False),
    ],
)
def test_a_sample_that_fails_is_noticed(some_server: ZqServer, line: str, passes: bool, tmp_path: Path) -> None:
    """The runner itself: an unexpected status fails, in a pipe and in a substitution too."""
    done = run(script([line + "\n"], some_server.url), tmp_path)
    assert (done.returncode == 0) is passes, done.stderr
