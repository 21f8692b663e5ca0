# SPDX-License-Identifier: Apache-2.0
"""SQS clients from the package index, current ones and ones that predate JSON, each in its own environment.

``aws`` calls all operations on every store, and moto's own tests run against zq (decision 0130).
"""

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from botocore import xform_name

from tests.campaign.packages.environments import environment, pip
from tests.packaging.conftest import run
from tests.servers import ZqServer
from tests.sqs.conftest import REGION
from tests.sqs.walk import Ask, Refused, Walk, complete
from tests.stores import Stores

pytestmark = pytest.mark.slow

CONFIG: Final = "[sqs]\nenabled = true\nauth = none\n"
ACCOUNT: Final = "123456789012"
KEYS: Final = {
    "AWS_ACCESS_KEY_ID": ACCOUNT,
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
RELEASES: Final = {
    "JSON": ("awscli", "boto3"),
    "query": ("awscli==1.29.80", "boto3==1.28.80", "botocore==1.31.80"),
}
"""Packages by the protocol that they use."""
REFUSAL: Final = re.compile(r"An error occurred \((\S+)\) when calling the \w+ operation")
"""The error message of the AWS command line."""
COMMAND_LINE: Final = """\
import contextlib, io, json, sys
from awscli.clidriver import create_clidriver
aws = create_clidriver()
for line in sys.stdin:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = aws.main(json.loads(line))
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
"""A program that runs many ``aws`` commands, because starting ``aws`` takes longer than a command."""
MOTO: Final = "5.2.5"
BEFORE_EACH: Final = """\
import os, boto3, pytest

@pytest.fixture
def account_id():
    return os.environ["AWS_ACCESS_KEY_ID"]

@pytest.fixture(autouse=True)
def no_queues():
    sqs = boto3.client("sqs", "us-east-1", endpoint_url=os.environ["TEST_SERVER_MODE_ENDPOINT"])
    for url in sqs.list_queues().get("QueueUrls", []):
        sqs.delete_queue(QueueUrl=url)
"""
"""Fixtures for moto's tests: an empty server before each test, and the account id without a call of another API."""
EXPLAINED: Final = {
    "test_get_queue_with_prefix",
    "test_create_queues_in_multiple_region",
    "test_delete_message_using_old_receipt_handle",
    "test_change_message_visibility_on_old_message",
    "test_delete_message_errors",
    "test_change_message_visibility_on_unknown_receipt_handle",
    "test_permissions",
    "test_message_with_invalid_attributes",
    "test_send_messages_to_fifo_without_message_group_id",
    "test_message_delay_is_more_than_15_minutes",
    "test_create_fifo_queue_with_dlq",
    "test_create_queue_with_different_attributes_fail",
    "test_message_retention_period",
}
"""The tests in decision 0130: no others fail, and none of these passes."""
YOUNGER: Final = {
    "test_message_attributes_contains_trace_header",
    "test_message_system_attributes_contains_system_attribute",
    "test_message_system_attributes_contains_all_attributes",
}
"""Tests with a parameter that the old client does not know."""
CAME: Final = {
    "JSON": (EXPLAINED, "13 failed, 137 passed, 14 skipped"),
    "query": (EXPLAINED | YOUNGER, "22 failed, 128 passed"),
}


@pytest.fixture(scope="module", params=RELEASES)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def home(protocol: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with the clients of one protocol and the requirements of moto's tests."""
    made = environment(tmp_path_factory.mktemp(protocol) / "venv")
    run(*pip(made), "install", "-q", *RELEASES[protocol], f"moto=={MOTO}", "pytest", "freezegun")
    return made


@pytest.fixture(scope="module")
def motos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Download moto's SQS tests and return their folder."""
    folder = tmp_path_factory.mktemp("moto")
    run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        "moto",
        "--dest",
        folder,
        f"moto=={MOTO}",
    )
    tests = folder / f"moto-{MOTO}" / "tests"
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        for member in archive:  # The filters of extractall are newer than Python 3.11.2.
            place = (folder / member.name).resolve()
            if member.isfile() and place.is_relative_to(tests):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    (tests / "test_sqs" / "conftest.py").write_text(BEFORE_EACH)
    return tests


@contextmanager
def command_line(home: Path, url: str) -> Iterator[Ask]:
    """Yield a function that makes requests with ``aws sqs``."""
    command = [str(home / "bin" / "python"), "-c", COMMAND_LINE]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "AWS_DEFAULT_REGION": REGION, **KEYS}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as aws:
        questions, answers = aws.stdin, aws.stdout
        assert questions is not None
        assert answers is not None

        def ask(operation: str, **given: Any) -> dict[str, Any]:
            asked = ["--endpoint-url", url, "--output", "json", "--no-paginate", "sqs", xform_name(operation, "-")]
            print(json.dumps([*asked, "--cli-input-json", json.dumps(given)]), file=questions, flush=True)
            code, out, error = json.loads(answers.readline())
            if code == 0:
                return dict(json.loads(out or "{}"))
            found = REFUSAL.search(error)
            assert found, f"{operation}: {error}"
            raise Refused(found[1])

        yield ask
        questions.close()


@pytest.mark.parametrize("store", ["memory", "rocksdb", "redis", "mongodb"])
def test_the_command_line_walks_over_all_operations(home: Path, store: str, stores: Stores, tmp_path: Path) -> None:
    """Each operation succeeds, and wrong requests get the correct error code."""
    with (
        ZqServer(stores.empty(store, tmp_path, "a"), config=CONFIG) as server,
        command_line(home, server.url) as ask,
    ):
        walk = Walk(ask)
        walk.make()
        complete(walk)


@pytest.mark.timeout(600)
def test_motos_own_tests_pass(protocol: str, home: Path, motos: Path) -> None:
    """Only the tests that decision 0130 explains fail."""
    files = [motos / "test_sqs" / f"test_{name}.py" for name in ("sqs", "sqs_message_attributes")]
    for file in files:  # Six tests have an attribute name with a trailing blank, which AWS rejects.
        file.write_text(file.read_text().replace('"VisibilityTimeout "', '"VisibilityTimeout"'))
    with ZqServer("memory:", config=CONFIG) as server:
        made = subprocess.run(
            [
                home / "bin" / "python",
                "-m",
                "pytest",
                "-q",
                "-rf",
                "-p",
                "no:cacheprovider",
                "--tb=line",
                "--color=no",
                *files,
            ],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "TEST_SERVER_MODE": "true",
                "TEST_SERVER_MODE_ENDPOINT": server.url,
                "MOTO_CALL_RESET_API": "false",
                "AWS_DEFAULT_REGION": "us-east-1",
                **KEYS,
            },
            cwd=motos.parent,
            capture_output=True,
            text=True,
        )
    failed = set(re.findall(r"^FAILED \S+::(\w+)", made.stdout, re.MULTILINE))
    explained, verdict = CAME[protocol]
    assert failed == explained, made.stdout[-8000:]
    assert verdict in made.stdout, made.stdout[-2000:]
