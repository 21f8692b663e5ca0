# SPDX-License-Identifier: Apache-2.0
"""Checks of the documentation: routes, options, errors and flags in ``api-ref/``, links, and curl samples.

The sample configuration is compared, and the curl lines of the README and the reference are run. See also
``test_reference.py`` for tables and ``test_blocks.py`` for the tests of samples.
"""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from falcon.inspect import inspect_app

from tests.abilities import need
from tests.blocks import PAGES, ROOT, curl_samples, only
from tests.reader import SHELL, follow
from tests.servers import ZqServer
from tests.tables import every_row
from zq import errors
from zq.cli.reference import with_commands
from zq.clock import ManualClock
from zq.core import Broker
from zq.http.app import create_app
from zq.serving import settings
from zq.serving.features import described_features
from zq.serving.metrics.definitions import ALL
from zq.serving.metrics.reference import with_metrics
from zq.serving.settings.reference import with_tables
from zq.storage.api import Storage
from zq.wire.reference import with_classes

REFERENCE = [page for page in PAGES if page != ROOT / "README.md"]
ADDRESS = re.compile(r"http://(127\.0\.0\.1|localhost):8888")
LONGEST = 125
SOURCES = re.compile(r"`((?:zq|tests|etc|devstack)/[\w./-]+)`")
ADDED = {
    "cli.md": with_commands,
    "configuration.md": partial(with_tables, "configuration.md"),
    "errors.md": with_classes,
    "metrics.md": with_metrics,
    "queues.md": partial(with_tables, "queues.md"),
}
"""Functions that add generated text to a page of the site."""
WRITTEN = {"topics.md": "heard"}
"""Pages with a ``text`` block that shows the content of a file that the samples write."""

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


def on_the_site(file: Path) -> str:
    """Return the text of a page with the tables and the help that the site adds."""
    return ADDED.get(file.name, str)(file.read_text())


def text() -> str:
    return "\n".join(map(on_the_site, REFERENCE))


def missing(names: list[str]) -> list[str]:
    """Return the names that are not words of the reference."""
    reference = text()
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reference)]


def test_every_route_and_method_is_documented(storage: Storage, clock: ManualClock) -> None:
    """A line of ``api-ref/`` has both the path template and the method."""
    core = Broker(storage, clock)
    app = create_app(core, admin_mode=True, features=described_features(core))
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
    """The reference has the option's name in code style and its section in brackets."""
    names = [option.name for options in settings.OPTIONS.values() for option in options]
    sections = [f"[{section}]" for section in settings.OPTIONS]
    reference = text()
    code = " ".join(re.findall(r"`[^`\n]+`", reference))
    assert [name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", code)] == []
    assert [section for section in sections if section not in reference] == []


def test_every_error_is_documented() -> None:
    """The reference names each class of ``zq.errors``."""
    classes = [name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert missing(classes) == []


def test_every_metric_is_documented_and_no_other() -> None:
    """Each definition has a row with its kind and its labels, and each row has a definition."""
    page = on_the_site(ROOT / "api-ref" / "metrics.md")
    rows = re.findall(r"^\| `zq_(\w+)` \| (\w+) \| ([^|]*)\|", page, re.MULTILINE)
    assert {name: (kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows} == {
        name: (definition.kind.value, definition.labels) for name, definition in ALL.items()
    }
    assert len(rows) == len(ALL)


def zq_server(*arguments: str) -> str:
    command = [sys.executable, "-m", "zq.serving.server", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_every_flag_of_the_command_line_is_documented() -> None:
    """Every flag in the output of ``zq-server --help`` is in the reference."""
    flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", zq_server("--help"))) - {"--help"})
    assert "--store" in flags
    assert missing(flags) == []


def test_the_sample_configuration_is_the_generated_one() -> None:
    """To update the sample, run ``zq-server --sample-config > etc/zq.conf.sample``."""
    assert (ROOT / "etc" / "zq.conf.sample").read_text() == zq_server("--sample-config")


DECISIONS = sorted((ROOT / "api-ref" / "decisions").glob("0*.md"))
FORM = re.compile(
    r"# (?P<number>\d{4}) (?P<title>[^\n]+)\n"
    r"\n\*\*Status\.\*\* (?P<status>Accepted\.)\n"
    r"\n\*\*Context\.\*\* .+\n\n\*\*Decision\.\*\* .+\n\n\*\*Consequences\.\*\* .+\n",
    re.DOTALL,
)
"""Form of a decision record: the required parts in order."""


@every_row("file", DECISIONS, ids=lambda file: file.stem)
def test_a_decision_has_a_status_a_context_and_consequences(file: Path) -> None:
    """The number in the title is that of the file. Superseded records are deleted. A record fits on one page."""
    record = FORM.fullmatch(file.read_text())
    assert record is not None
    assert file.name.startswith(record["number"] + "-")
    assert len(file.read_text().split()) <= 500


def test_the_index_of_decisions_has_their_titles_and_status() -> None:
    """The index has a row for each record, with the record's title and status."""
    records = [(file, FORM.fullmatch(file.read_text())) for file in DECISIONS]
    rows = [
        f"| [{record['number']}]({file.name}) | {record['title']} | {record['status']} |".replace("\n", " ")
        for file, record in records
        if record is not None
    ]
    assert len({file.name[:4] for file in DECISIONS}) == len(DECISIONS), "two records have one number"
    index = DECISIONS[0].with_name("index.md").read_text()
    assert [line for line in index.splitlines() if line.startswith("| [")] == rows


def test_the_decisions_are_at_most_sixty() -> None:
    """Records that no longer explain any code are deleted."""
    assert len(DECISIONS) <= 60


def test_the_pages_stay_few_and_short() -> None:
    """Readers find pages by their titles and read them to the end. Merge a short page into another one."""
    pages = list((ROOT / "api-ref").glob("*.md"))
    assert len(pages) <= 45
    assert sum(len(page.read_text().split()) for page in pages) <= 60_000


def test_code_refers_to_decisions_that_exist() -> None:
    """Comments and docstrings name decisions by their numbers."""
    numbers = {file.name[:4] for file in DECISIONS}
    folders = [ROOT / name for name in ("zq", "tests", "bench", "devstack", "etc")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in {".py", ".lua", ".sh", ".yml"}]
    named = {(file.name, number) for file in files for number in re.findall(r"decision (0\d{3})\b", file.read_text())}
    assert {(file, number) for file, number in named if number not in numbers} == set()


def anchors(file: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", on_the_site(file), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    """Relative links of the README and the reference name files and headings that exist."""
    broken = []
    for file in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", on_the_site(file)):
            name, _, heading = link.partition("#")
            target = file.parent / name if name else file
            if "://" in link:
                continue
            if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
                broken.append(f"{file.relative_to(ROOT)}: {link}")
    assert broken == []


def test_the_files_that_the_tour_names_are_there() -> None:
    """The files and folders that ``internals.md`` names exist."""
    named = SOURCES.findall((ROOT / "api-ref" / "internals.md").read_text())
    assert "zq/core/messages.py" in named
    assert [name for name in named if not (ROOT / name).exists()] == []


def prose(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of prose, without tables, code blocks and inline code."""
    fenced = False
    for number, line in enumerate(file.read_text().splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and not line.startswith(("|", "    ")):
            yield number, re.sub("`[^`]+`", "", line)


def test_lines_of_prose_are_short() -> None:
    """Short lines are easy to edit and compare."""
    long = [
        f"{file.relative_to(ROOT)}:{number}" for file in PAGES for number, line in prose(file) if len(line) > LONGEST
    ]
    assert long == []


def script(blocks: list[str], url: str) -> str:
    """Return the blocks as one script. A comment with a status, such as "# 404", gives the status of the next curl."""
    lines = [PRELUDE]
    for line in ADDRESS.sub(url, "\n".join(blocks)).splitlines():
        expected = re.search(r"\b[45]\d\d\b", line) if line.startswith("#") else None
        lines.append(f"echo {expected.group()} >.expected" if expected else line)
    return "\n".join(lines) + "\n"


def run(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    need("curl")
    return follow([*SHELL, commands], folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [file for file in PAGES if curl_samples(file)],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_the_curl_lines_of_a_document_work(file: Path, tmp_path: Path) -> None:
    """The lines run in order against a new server; each status is below 400 or the one in the preceding comment.

    If a page shows the content of a file, the file has that content.
    """
    with ZqServer(f"rocksdb://{tmp_path}/store", env={"OS_SIGNED_URL__SECRET_KEY": "k" * 32}) as server:
        done = run(script(curl_samples(file), server.url), tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    if file.name in WRITTEN:
        assert only(f"api-ref/{file.name}", "text") in (tmp_path / WRITTEN[file.name]).read_text()


def test_the_readme_has_a_sample_to_run() -> None:
    """The test above must not pass because it finds no sample."""
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
    """An unexpected status fails, also in a pipe or a substitution."""
    done = run(script([line + "\n"], some_server.url), tmp_path)
    assert (done.returncode == 0) is passes, done.stderr
