# SPDX-License-Identifier: Apache-2.0
"""The code blocks of the README and the reference: ``HELD_BY`` names the test that runs, reads or compares each.

Shell and Python blocks run in a reader's environment (``tests/reader.py``), unless ``NOT_RUN`` gives a reason.
"""

import json
import os
import re
import shlex
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import redis
import yaml

from tests.blocks import PAGES, ROOT, Block, blocks, curl_samples, only
from tests.reader import PYTHON, SHELL, succeed
from tests.servers import ZqServer
from tests.stores import RedisServer
from tests.tables import every_row
from zq.cli.profiles import read_profile
from zq.client import Client
from zq.clock import StoreClock
from zq.core import Broker
from zq.figures import openapi
from zq.serving import settings
from zq.storage import connect
from zq.subscriptions.model import Notice
from zq.subscriptions.notices import build_notification
from zq.websocket import frames

CLIENTS = "tests/campaign/clients"
CURL = "tests/test_docs.py::test_the_curl_lines_of_a_document_work"
CELERY = f"{CLIENTS}/test_celery.py::test_the_application_of_the_page_works"
CLIENT = "tests/client/test_client_docs.py::test_the_samples_of_the_client_work"
CLI = "tests/cli/test_cli_docs.py::test_the_samples_of_the_command_line_work"
STARTED = f"{CLIENTS}/test_getting_started.py::test_each_line_is_worked_on_and_counted_once_though_a_worker_is_killed"
MOVED = "tests/client/test_migration_docs.py::test_the_samples_of_a_page_work"
GENERATOR = "tests/test_blocks.py::test_a_client_can_be_generated"
FROM_SQS = "tests/client/test_from_sqs.py::test_the_tutorial_works_from_top_to_bottom"
SDK = "tests/client/test_openstacksdk.py::test_the_program_of_the_page_works"
OPENSTACK = f"{CLIENTS}/test_openstackclient.py::test_the_commands_do_what_the_page_says"
SPARK = "tests/campaign/spark/test_programs.py::test_the_program_of_the_page_works_as_a_file_with_nothing_set"
PIPELINE = "tests/spark/test_pipeline_page.py::test_the_sample_of_the_page_runs_until_nothing_is_left"
JOBS = "tests/spark/test_archive.py::test_the_examples_of_the_reference_run"
SALVAGE = "tests/client/test_check_store.py::test_the_steps_of_the_page_save_all_but_what_is_named_as_lost"
PROGRAMS = "tests/test_blocks.py::test_the_programs_of_the_readme_are_there"
DRAWING = "tests/test_blocks.py::test_a_drawing_shows_states_that_there_are"
DRIVER = "tests/test_write_a_driver.py"
TEAMS = f"{CLIENTS}/test_two_teams.py::test_two_teams_are_apart_when_the_page_was_followed"

SQS = "tests/sqs/test_page.py::test_the_program_of_the_page_works"
BACKUP = "tests/faults/test_backup.py::test_the_commands_of_the_page_work"
MIGRATION = "tests/faults/test_migrate.py::test_the_command_of_the_page_works"
VM = "tests/packaging/test_virtual_machine.py::test_the_page_leads_to_a_monitored_server_with_backups"
KUBERNETES = "tests/packaging/test_kubernetes_page.py::test_the_page_leads_to_a_monitored_service_with_backups"
NGINX = "tests/faults/test_nginx.py::test_the_commands_of_the_page_start_a_proxy_with_tls"
MOVE = "tests/faults/test_migrate.py::test_a_move_without_downtime_delivers_each_message_once"
REDIS_BACKUP = "tests/faults/test_backup.py::test_the_commands_for_redis_bring_back_what_it_had"

HELD_BY = [
    # Page, language, first characters of the block ("" = all blocks of the language on the page), and test.
    ("README.md", "sh", "devstack/run\n", PROGRAMS),
    ("README.md", "sh", "devstack/test\n", PROGRAMS),
    ("README.md", "python", "", "tests/test_blocks.py::test_the_python_samples_of_the_readme_work"),
    ("api-ref/backup.md", "sh", "zq-server backup", BACKUP),
    ("api-ref/backup.md", "sh", "redis-cli", REDIS_BACKUP),
    ("api-ref/backup.md", "sh", "zq-server migrate", MIGRATION),
    ("api-ref/backup.md", "sh", "zq export", MOVE),
    ("api-ref/backup.md", "python", "", MOVE),
    ("api-ref/backup.md", "sh", "mkdir /srv/redis", REDIS_BACKUP),
    ("api-ref/cli.md", "sh", "", CLI),
    ("api-ref/cli.md", "yaml", "", "tests/cli/test_cli_docs.py::test_the_workflow_of_the_page_applies_its_file"),
    ("api-ref/cli.md", "toml", "", "tests/test_blocks.py::test_the_profiles_are_read"),
    ("api-ref/client.md", "python", "", CLIENT),
    (
        "api-ref/console.md",
        "nginx",
        "",
        "tests/console/test_access.py::test_it_works_below_any_path_of_a_proxy",
    ),
    ("api-ref/concepts.md", "python", "", MOVED),
    ("api-ref/concepts.md", "text", "", DRAWING),
    (
        "api-ref/metrics.md",
        "json",
        '{\n  "name"',
        "tests/test_blocks.py::test_a_row_of_figures_has_the_form_of_the_page",
    ),
    ("api-ref/operations.md", "ini", "", "tests/test_blocks.py::test_the_options_of_queue_ttl_are_read"),
    ("api-ref/operations.md", "bash", "", NGINX),
    ("api-ref/operations.md", "sh", "useradd ", VM),
    ("api-ref/operations.md", "sh", "cp etc/alerts.yml ", VM),
    ("api-ref/operations.md", "sh", "systemctl start zq-backup\n", VM),
    ("api-ref/operations.md", "sh", "backup=", VM),
    ("api-ref/operations.md", "sh", "docker build ", KUBERNETES),
    ("api-ref/operations.md", "sh", "overlay=", KUBERNETES),
    ("api-ref/operations.md", "sh", "kubectl ", KUBERNETES),
    ("api-ref/operations.md", "sh", "sed ", KUBERNETES),
    ("api-ref/operations.md", "sh", "$zq ", KUBERNETES),
    ("api-ref/operations.md", "sh", "python3 ", KUBERNETES),
    ("api-ref/operations.md", "sh", "token=", KUBERNETES),
    ("api-ref/pools.md", "ini", "", "tests/test_blocks.py::test_the_options_of_pools_are_read"),
    (
        "api-ref/metrics.md",
        "json",
        '{\n  "storage_reachable"',
        "tests/test_blocks.py::test_a_health_report_has_the_form_of_the_page",
    ),
    (
        "api-ref/subscriptions.md",
        "json",
        "",
        "tests/test_blocks.py::test_a_delivery_is_as_on_the_page",
    ),
    ("api-ref/headers-and-paging.md", "json", "", "tests/test_blocks.py::test_the_request_of_the_page_is_one"),
    ("api-ref/migration-from-sqs.md", "python", "", FROM_SQS),
    ("api-ref/migration-from-sqs.md", "sh", "", FROM_SQS),
    ("api-ref/getting-started.md", "python", "", STARTED),
    ("api-ref/getting-started.md", "sh", "", STARTED),
    ("api-ref/policy.md", "yaml", "", "tests/unit/test_policy_file.py::test_the_file_of_the_page_is_read"),
    ("api-ref/internals.md", "text", "", "tests/test_docs.py::test_the_files_that_the_tour_names_are_there"),
    ("api-ref/metrics.md", "yaml", "", "tests/test_blocks.py::test_prometheus_is_told_where_the_alerts_are"),
    ("api-ref/headers-and-paging.md", "sh", "openapi-python-client generate", GENERATOR),
    ("api-ref/headers-and-paging.md", "yaml", "", GENERATOR),
    ("api-ref/migration-from-zaqar.md", "sh", "export OS_AUTH_TYPE", OPENSTACK),
    ("api-ref/migration-from-zaqar.md", "sh", "OS_CLOUD=zq", OPENSTACK),
    ("api-ref/migration-from-zaqar.md", "yaml", "", OPENSTACK),
    ("api-ref/migration-from-zaqar.md", "python", "", SDK),
    ("api-ref/policy.md", "json", "", "tests/unit/test_signatures.py::test_the_page_shows_the_vector"),
    (
        "api-ref/authentication.md",
        "sh",
        "",
        "tests/campaign/faults/test_token_page.py::test_the_commands_of_the_page_work",
    ),
    (
        "api-ref/installing.md",
        "sh",
        "",
        "tests/campaign/packages/test_installs.py::test_each_way_of_the_page_finds_the_distribution",
    ),
    ("api-ref/pipelines.md", "python", "", PIPELINE),
    ("api-ref/pipelines.md", "sh", "", PIPELINE),
    (
        "api-ref/retries.md",
        "python",
        "",
        f"{CLIENTS}/test_retries_docs.py::test_the_program_posts_and_works_on_each_order_once",
    ),
    (
        "api-ref/retries.md",
        "sh",
        "Z=http://localhost:8888/v2/queues/orders/messages",
        f"{CLIENTS}/test_retries_docs.py::test_the_lines_of_the_shell_post_each_order_once",
    ),
    ("api-ref/spark.md", "sh", "", JOBS),
    ("api-ref/spark.md", "python", "", SPARK),
    ("api-ref/sqs.md", "sh", "zq-server sqs-key", "tests/sqs/test_page.py::test_the_commands_on_keys_work"),
    ("api-ref/sqs.md", "ini", "", SQS),
    ("api-ref/sqs.md", "python", "import boto3", SQS),
    ("api-ref/sqs.md", "python", "chosen =", SQS),
    ("api-ref/sqs.md", "python", "from celery", CELERY),
    ("api-ref/sqs.md", "sh", "celery -A", CELERY),
    ("api-ref/storage-object.md", "sh", "", "tests/campaign/objects/test_page.py::test_the_commands_of_the_page_work"),
    ("api-ref/storage-redis.md", "text", "", "tests/test_blocks.py::test_the_rights_of_the_page_are_enough"),
    ("api-ref/storage-rocksdb.md", "sh", "", SALVAGE),
    (
        "api-ref/client.md",
        "python",
        "import asyncio\n\nfrom",
        "tests/client/test_testing.py::test_the_tests_of_the_page_pass",
    ),
    (
        "api-ref/client.md",
        "python",
        "import zq.testing\n",
        "tests/client/test_testing.py::test_the_program_of_the_page_prints_an_address_and_nothing_else",
    ),
    ("api-ref/topics.md", "text", "", CURL),
    ("api-ref/two-teams.md", "bash", "", TEAMS),
    (
        "api-ref/write-a-driver.md",
        "ini",
        "",
        f"{DRIVER}::test_the_entry_point_of_the_page_names_a_function",
    ),
    ("api-ref/write-a-driver.md", "python", "", f"{DRIVER}::test_the_page_leads_to_a_store_that_passes"),
    ("api-ref/write-a-driver.md", "sh", "", f"{DRIVER}::test_the_page_leads_to_a_store_that_passes"),
    ("api-ref/write-a-driver.md", "text", "", f"{DRIVER}::test_the_page_opens_a_store_as_the_example_does"),
]

NOT_RUN = {
    # Pattern of the first characters of a block, and the reason why no test runs the block.
    r"(OS_\w+=\S+ )?devstack/run\n": "it makes an environment in this clone; a server of the same options is started",
    r"devstack/test\n": "it runs this test",
    r"pip install ": "run with --dry-run, from this clone and a wheel of it, by tests/campaign/packages",
    r"export ZQ_URL=\S+ ZQ_PROJECT=acme\n(python -m zq\.jobs|.*\nzq pipeline run)": "a Java for each line takes "
    "minutes: tests/spark runs the same words, and the variables, in the session that it has",
    r"# job\.py\n": "it is the file that the line above runs",
    r"zq-server token create --admin\n": "two-teams.md has the same commands, on a server of its own",
    r"mongodump ": "MongoDB's tools are in no package that is installed here",
    r"export AWS_ACCESS_KEY_ID=": "AWS's command line and Sphinx want two versions of docutils",
    r"docker run ": "there is no Docker where these tests run",
}
COMMANDS = {"sh", "bash", "console", "shell", "python"}


def holding(block: Block) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table that match a block."""
    return [row for row in HELD_BY if row[:2] == (block.page, block.language) and block.text.startswith(row[2])]


def left_out(block: Block) -> bool:
    """Return whether a reason exempts the block from running."""
    return block.language in COMMANDS and any(re.match(start, block.text) for start in NOT_RUN)


def test_every_block_is_held_by_a_test() -> None:
    """The test of the curl lines or a test in the table covers each block, and every row of the table is used."""
    unheld, used = [], set()
    for page in PAGES:
        run = curl_samples(page)
        for block in blocks(page):
            rows = holding(block)
            used.update(rows)
            if not rows and block.text not in run and not left_out(block):
                unheld.append(f"{block.page}:{block.line}: {block.language or 'no language'}")
    assert unheld == []
    assert [row for row in HELD_BY if row not in used] == []


def test_shell_and_python_are_run_as_by_a_reader() -> None:
    """The tests in the table use the reader's environment, and no reason in ``NOT_RUN`` is unused."""
    every = [block for page in PAGES for block in blocks(page)]
    commands = [block for block in every if block.language in COMMANDS]
    assert [start for start in NOT_RUN if not any(re.match(start, block.text) for block in commands)] == []
    run = [block for block in commands if not left_out(block)]
    tests = {row[3] for block in run for row in holding(block)} | {CURL}
    sources = {test: (ROOT / test.partition("::")[0]).read_text() for test in tests}
    assert [test for test, source in sources.items() if "from tests.reader import" not in source] == []


def test_commands_are_marked_as_such() -> None:
    """A command in a text block or an indented block would escape the test above."""
    begins = re.compile(r"(\$ |export |(zq|zq-server|curl|pip|python3?|docker|systemctl|devstack/\w+) )")
    every = [block for page in PAGES for block in blocks(page)]
    assert [block for block in every if block.language not in COMMANDS and begins.match(block.text)] == []
    indented = [
        f"{page.name}: {line}"
        for page in PAGES
        for line in re.findall(r"\n\n    (\S.*)", page.read_text())
        if begins.match(line)
    ]
    assert indented == []


def test_code_fences_are_paired() -> None:
    """An unpaired fence would hide a block from the test above."""
    odd = [
        page.name
        for page in PAGES
        if len(re.findall(r"^\s*(```|~~~)", page.read_text(), re.M)) != 2 * len(blocks(page))
    ]
    assert odd == []


@every_row("test", sorted({row[3] for row in HELD_BY}))
def test_the_tests_of_the_table_exist(test: str) -> None:
    """The source of each test names the pages of its rows."""
    file, _, name = test.partition("::")
    source = (ROOT / file).read_text()
    assert f"def {name}(" in source
    pages = {Path(row[0]).stem for row in HELD_BY if row[3] == test}
    assert [page for page in pages if page not in source] == []


def test_the_programs_of_the_readme_are_there() -> None:
    """Both programs are also used: the tests run in ``devstack/test``, which prepares what ``devstack/run`` needs."""
    programs = [block.text.strip() for block in blocks(ROOT / "README.md") if block.text.startswith("devstack/")]
    assert programs
    for program in programs:
        assert os.access(ROOT / program, os.X_OK)
        subprocess.run(["bash", "-n", ROOT / program], check=True)


def test_the_python_samples_of_the_readme_work(tmp_path: Path) -> None:
    """README.md: each client prints the message that it has posted, and leaves no message."""
    samples = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    env = {"OS_SQS__ENABLED": "true", "OS_SQS__AUTH": "none"}
    with ZqServer(f"rocksdb://{tmp_path}/store", env=env) as server:
        printed = [
            succeed([*PYTHON, sample.replace("http://localhost:8888", server.url)], tmp_path) for sample in samples
        ]
        for output, body in zip(printed, ("{'order': 1}", "one pair of shoes", "{'order': 1}"), strict=True):
            assert f"{body}\n" in output
        with Client(server.url, "acme") as client:
            assert client.queue("orders").stats().total == 0


def test_the_profiles_are_read(tmp_path: Path) -> None:
    """cli.md: the selected profile is in the file."""
    file = tmp_path / "config.toml"
    file.write_text(only("api-ref/cli.md", "toml"))
    assert read_profile(None, file)["project"] == "acme"


def test_the_options_of_queue_ttl_are_read(tmp_path: Path) -> None:
    """operations.md: a server accepts the file."""
    file = tmp_path / "zq.conf"
    file.write_text(only("api-ref/operations.md", "ini"))
    assert [pattern for pattern, _ in settings.load(str(file)).queue_ttl] == ["mqtt-*", "system-logs"]


def test_the_options_of_pools_are_read(tmp_path: Path) -> None:
    """pools.md: a server accepts the file."""
    file = tmp_path / "zq.conf"
    file.write_text(only("api-ref/pools.md", "ini"))
    pooling = settings.load(str(file)).pooling
    assert pooling is not None
    assert pooling.hosts == ("redis-1.example.org", "redis-2.example.org:6380")


def test_a_health_report_has_the_form_of_the_page() -> None:
    """metrics.md: the report has the same members."""
    shown = json.loads(only("api-ref/metrics.md", "json", "storage_reachable"))
    with closing(connect("memory:")) as storage:
        report = msgspec.to_builtins(Broker(storage, StoreClock(storage.now)).health.report())
    assert shown.keys() == report.keys()
    assert shown["message_volume"].keys() == report["message_volume"].keys()
    [(name, operation)] = shown["operation_status"].items()
    assert operation.keys() == report["operation_status"][name].keys()


def test_the_request_of_the_page_is_one() -> None:
    """headers-and-paging.md: the schema accepts the request."""
    assert frames.check(json.loads(only("api-ref/headers-and-paging.md", "json"))) == "message_post"


def test_a_delivery_is_as_on_the_page() -> None:
    """subscriptions.md: the delivery is the one that zq sends."""
    sent = build_notification(Notice("1", "queue", "orders", b'{"n": 1}', 3600))
    assert json.loads(sent) == json.loads(only("api-ref/subscriptions.md", "json"))


def test_prometheus_is_told_where_the_alerts_are() -> None:
    """metrics.md: the rule files exist, and the target is zq's metrics port."""
    told = yaml.safe_load(only("api-ref/metrics.md", "yaml"))
    assert all((ROOT / "etc" / name).exists() for name in told["rule_files"])
    (job,) = told["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"localhost:{settings.load().metrics.port}"]


@pytest.mark.slow
def test_a_client_can_be_generated(tmp_path: Path) -> None:
    """headers-and-paging.md: the page's command and file give no warning, and the generated modules can be imported."""
    (tmp_path / "generator.yaml").write_text(only("api-ref/headers-and-paging.md", "yaml"))
    (command,) = (
        block.text
        for block in blocks(ROOT / "api-ref" / "headers-and-paging.md")
        if block.text.startswith("openapi-python-client")
    )
    (tmp_path / "api-ref").symlink_to(ROOT / "api-ref")
    told = succeed([*SHELL, command], tmp_path)
    assert re.fullmatch(r"Generating \S+\s*", told), told
    [made] = (folder.parent for folder in tmp_path.glob("*/zq_client"))
    succeed([*PYTHON, f"import sys; sys.path.append('{made}'); import zq_client.api.messages.post_messages"], tmp_path)


def test_a_drawing_shows_states_that_there_are() -> None:
    """concepts.md: words in capitals are states of the table below, or GONE."""
    section = (ROOT / "api-ref" / "concepts.md").read_text().partition("\n## The life of a message\n")[2]
    table = section.partition("\n### ")[0]
    states = {name.upper() for name in re.findall(r"^\| (\w+) \|", table, re.MULTILINE)} | {"GONE"}
    shown = set(re.findall(r"\b[A-Z]{2,}\b", only("api-ref/concepts.md", "text")))
    assert shown >= {"READY", "CLAIMED", "DELAYED"}
    assert shown <= states


@pytest.mark.slow
def test_the_rights_of_the_page_are_enough(tmp_path: Path) -> None:
    """storage-redis.md: a server works with a Redis user that has only these permissions."""
    with RedisServer(None) as store:
        with redis.Redis(port=store.port) as administrator:
            administrator.execute_command(*shlex.split(only("api-ref/storage-redis.md", "text")))
        uri = store.uri.replace("redis://", "redis://zq:password@")
        with ZqServer(uri) as server, Client(server.url, "acme") as client:
            client.queue("orders").post({"order": 1})
            client.topic("news").publish("Oslo")
            (message,) = client.queue("orders").pop(1)
            assert message.body == {"order": 1}


def test_a_row_of_figures_has_the_form_of_the_page() -> None:
    """metrics.md: the row has exactly the members of the schema."""
    row = msgspec.json.decode(only("api-ref/metrics.md", "json", "oldest_ready"))
    assert set(row) == set(openapi.schemas()["FiguresRow"]["properties"])
