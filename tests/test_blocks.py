# SPDX-License-Identifier: Apache-2.0
"""Every fenced block of the README and the reference is run, read or compared by a test; ``HELD_BY`` says by which."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import redis
import yaml

from tests.blocks import PAGES, ROOT, blocks, curl_samples, only
from tests.servers import ZqServer
from tests.stores import RedisServer
from zq import settings
from zq.cli.profiles import read_profile
from zq.client import Client

CURL = "tests/test_docs.py::test_the_curl_lines_of_a_document_work"
CLIENT = "tests/client/test_client_docs.py::test_the_samples_of_the_client_work"
CLI = "tests/cli/test_cli_docs.py::test_the_samples_of_the_command_line_work"
HELP = "tests/cli/test_cli_docs.py::test_the_commands_and_exit_codes_are_those_of_the_program"
STARTED = "tests/cli/test_getting_started.py::test_each_line_is_worked_on_and_counted_once_though_a_worker_is_killed"
MOVED = "tests/client/test_migration_docs.py::test_the_samples_of_a_page_work"
OPENAPI = "tests/http/test_openapi.py::test_the_file_is_the_generated_one"
GENERATOR = "tests/test_blocks.py::test_a_client_can_be_generated"
OPENSTACK = "tests/client/test_openstackclient.py::test_the_commands_do_what_the_page_says"
SPARK = "tests/spark/test_spark_docs.py::test_the_program_of_the_page_works_as_a_file_with_nothing_set"
PIPELINE = "tests/spark/test_pipeline_command.py::test_the_sample_of_the_page_runs_until_nothing_is_left"
JOBS = "tests/spark/test_archive.py::test_the_examples_of_the_reference_run"
SALVAGE = "tests/client/test_check_store.py::test_the_steps_of_the_page_save_all_but_what_is_named_as_lost"
DRAWING = "tests/test_blocks.py::test_a_drawing_shows_states_that_there_are"

HELD_BY = [
    # Page, language, how the block begins ("" = all of the page in this language), test.
    ("README.md", "sh", "devstack/run\n", "tests/test_blocks.py::test_the_programs_of_the_readme_are_there"),
    ("README.md", "sh", "devstack/test\n", "tests/test_blocks.py::test_the_programs_of_the_readme_are_there"),
    ("README.md", "python", "", "tests/test_blocks.py::test_the_sample_with_openstacks_client_works"),
    ("api-ref/cli.md", "sh", "", CLI),
    ("api-ref/cli.md", "toml", "", "tests/test_blocks.py::test_the_profiles_are_read"),
    ("api-ref/cli.md", "text", "Usage: zq", HELP),
    ("api-ref/client.md", "python", "", CLIENT),
    ("api-ref/concepts.md", "python", "", MOVED),
    ("api-ref/concepts.md", "text", "", DRAWING),
    ("api-ref/expiry.md", "ini", "", "tests/test_blocks.py::test_the_options_of_queue_ttl_are_read"),
    ("api-ref/getting-started.md", "python", "", STARTED),
    ("api-ref/getting-started.md", "sh", "", STARTED),
    ("api-ref/metrics.md", "yaml", "", "tests/test_blocks.py::test_prometheus_is_told_where_the_alerts_are"),
    ("api-ref/migration-from-sqs.md", "python", "", MOVED),
    ("api-ref/migration-from-sqs.md", "sh", "", MOVED),
    ("api-ref/openapi.md", "sh", "python -m zq.http.openapi > api-ref/openapi.json\n", OPENAPI),
    ("api-ref/openapi.md", "sh", "openapi-python-client generate", GENERATOR),
    ("api-ref/openapi.md", "yaml", "", GENERATOR),
    ("api-ref/openstack-client.md", "sh", "", OPENSTACK),
    ("api-ref/openstack-client.md", "yaml", "", OPENSTACK),
    (
        "api-ref/installing.md",
        "sh",
        "",
        "tests/packaging/test_wheel.py::test_each_way_of_the_page_finds_the_distribution",
    ),
    ("api-ref/pipelines.md", "python", "", PIPELINE),
    ("api-ref/pipelines.md", "text", "", PIPELINE),
    ("api-ref/spark-jobs.md", "sh", "", JOBS),
    ("api-ref/spark.md", "python", "", SPARK),
    ("api-ref/states.md", "text", "", DRAWING),
    ("api-ref/storage-redis.md", "text", "", "tests/test_blocks.py::test_the_rights_of_the_page_are_enough"),
    ("api-ref/storage-rocksdb.md", "sh", "", SALVAGE),
    ("api-ref/topics.md", "text", "", CURL),
]


def test_every_block_is_held_by_a_test() -> None:
    """By the curl lines' test, or by one in the table; every line of the table is of use."""
    unheld, used = [], set()
    for page in PAGES:
        run = curl_samples(page)
        for block in blocks(page):
            holding = [
                row for row in HELD_BY if row[:2] == (block.page, block.language) and block.text.startswith(row[2])
            ]
            used.update(holding)
            if not holding and block.text not in run:
                unheld.append(f"{block.page}:{block.line}: {block.language or 'no language'}")
    assert unheld == []
    assert [row for row in HELD_BY if row not in used] == []


def test_fences_come_in_pairs() -> None:
    """So that no block is overlooked by the test above."""
    odd = [
        page.name
        for page in PAGES
        if len(re.findall(r"^\s*(```|~~~)", page.read_text(), re.M)) != 2 * len(blocks(page))
    ]
    assert odd == []


@pytest.mark.parametrize("test", sorted({row[3] for row in HELD_BY}))
def test_the_tests_of_the_table_exist(test: str) -> None:
    """Each names the pages that it is said to hold."""
    file, _, name = test.partition("::")
    source = (ROOT / file).read_text()
    assert f"def {name}(" in source
    pages = {Path(row[0]).stem for row in HELD_BY if row[3] == test}
    assert [page for page in pages if page not in source] == []


def output(*command: str, **variables: str) -> str:
    """What a program says, both ways. Fails if it does."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **variables}
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_the_programs_of_the_readme_are_there() -> None:
    """Both are run by whoever runs this: the tests by ``devstack/test``, which prepares what ``devstack/run`` does."""
    programs = [block.text.strip() for block in blocks(ROOT / "README.md") if block.text.startswith("devstack/")]
    assert programs
    for program in programs:
        assert os.access(ROOT / program, os.X_OK)
        output("bash", "-n", str(ROOT / program))


def test_the_sample_with_openstacks_client_works(tmp_path: Path) -> None:
    """README.md: the message that was posted is claimed, printed and deleted."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        program = only("README.md", "python").replace("http://localhost:8888", server.url)
        assert "{'order': 1}\n" in output(sys.executable, "-W", "ignore", "-c", program)
        with Client(server.url, "acme") as client:
            assert client.queue("orders").stats().total == 0


def test_the_profiles_are_read(tmp_path: Path) -> None:
    """cli.md: the file's own choice is a profile in it."""
    file = tmp_path / "config.toml"
    file.write_text(only("api-ref/cli.md", "toml"))
    assert read_profile(None, file)["project"] == "acme"


def test_the_options_of_queue_ttl_are_read(tmp_path: Path) -> None:
    """expiry.md: a server would start with this file."""
    file = tmp_path / "zq.conf"
    file.write_text(only("api-ref/expiry.md", "ini"))
    assert [pattern for pattern, _ in settings.load(str(file)).queue_ttl] == ["mqtt-*", "system-logs"]


def test_prometheus_is_told_where_the_alerts_are() -> None:
    """metrics.md: rules that there are, and servers with the port at which zq tells its metrics."""
    told = yaml.safe_load(only("api-ref/metrics.md", "yaml"))
    assert all((ROOT / "etc" / name).exists() for name in told["rule_files"])
    (job,) = told["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"localhost:{settings.load().metrics_port}"]


def test_a_client_can_be_generated(tmp_path: Path) -> None:
    """openapi.md: by the command and with the file of the page, without a warning; the modules can be imported."""
    (tmp_path / "generator.yaml").write_text(only("api-ref/openapi.md", "yaml"))
    (command,) = (
        block.text
        for block in blocks(ROOT / "api-ref" / "openapi.md")
        if block.text.startswith("openapi-python-client")
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    arguments = command.replace("api-ref/", f"{ROOT}/api-ref/").replace("generator.yaml", f"{tmp_path}/generator.yaml")
    told = output(*shlex.split(arguments), "--output-path", str(tmp_path / "made"), PATH=path)
    assert re.fullmatch(r"Generating \S+\s*", told), told
    output(sys.executable, "-c", "import zq_client.api.messages.post_messages", PYTHONPATH=str(tmp_path / "made"))


def test_a_drawing_shows_states_that_there_are() -> None:
    """states.md and concepts.md: words in capitals are states of the table in states.md, or GONE."""
    beginning = (ROOT / "api-ref" / "states.md").read_text().partition("\n## ")[0]
    states = {name.upper() for name in re.findall(r"^\| (\w+) \|", beginning, re.MULTILINE)} | {"GONE"}
    for drawn in ("states.md", "concepts.md"):
        shown = set(re.findall(r"\b[A-Z]{2,}\b", only(f"api-ref/{drawn}", "text")))
        assert shown >= {"READY", "CLAIMED", "DELAYED"}
        assert shown <= states


def test_the_rights_of_the_page_are_enough(tmp_path: Path) -> None:
    """storage-redis.md: a server whose user has these and no others starts and serves."""
    with RedisServer(None) as store:
        with redis.Redis(port=store.port) as administrator:
            administrator.execute_command(*shlex.split(only("api-ref/storage-redis.md", "text")))
        uri = store.uri.replace("redis://", "redis://zq:password@")
        with ZqServer(uri) as server, Client(server.url, "acme") as client:
            client.queue("orders").post({"order": 1})
            client.topic("news").publish("Oslo")
            (message,) = client.queue("orders").pop(1)
            assert message.body == {"order": 1}
