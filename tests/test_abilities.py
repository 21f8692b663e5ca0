# SPDX-License-Identifier: Apache-2.0
"""The table of optional programs and abilities, and the effect of a missing one on tests, runs and scripts."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import abilities
from tests.abilities import ABILITIES, ROOT, able

pytest_plugins = ["pytester"]
CALLS = {"able", "need", "ability", "demand"}
RUN = """\
from tests import abilities

def pytest_configure(config):
    config.pluginmanager.register(abilities)
"""
TESTS = """\
import pytest
from tests.abilities import need

@pytest.fixture
def proxy():
    need("nginx")

@pytest.mark.parametrize("number", [1, 2])
def test_behind_a_proxy(proxy, number): ...

@pytest.mark.ability("curl", "wrk")
def test_measured(): ...

def test_plain(): ...
"""


def names() -> Iterator[tuple[str, str]]:
    """Yield each name in a call of ``CALLS`` in tests and benchmarks, and its place."""
    for file in [*sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]:
        text = file.read_text()
        if "abilities" not in text and "mark.ability" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CALLS:
                for given in node.args:
                    if isinstance(given, ast.Constant) and isinstance(given.value, str):
                        yield given.value, f"{file.relative_to(ROOT)}:{node.lineno}"


def test_every_name_in_the_source_is_in_the_table() -> None:
    """Otherwise a misspelt name would be found only where the ability is missing."""
    found = list(names())
    assert [(name, place) for name, place in found if name not in ABILITIES] == []
    assert {"nginx", "unshare", "wrk", "root", "swift"} <= {name for name, _ in found}


def test_continuous_integration_requires_each_program_that_it_installs() -> None:
    """No test for a program that ``.ci/run`` installs may be skipped."""
    text = (ROOT / ".ci/run").read_text()
    (required,) = re.findall(r"ZQ_REQUIRE-([\w,-]+)", text)
    assert set(required.split(",")) <= set(ABILITIES)
    installed = {package for packages in re.findall(r"packages\+=\((.*)\)", text) for package in packages.split()}
    assert len(installed) >= 5
    for package in installed:
        named = [name for name, ability in ABILITIES.items() if f"apt-get install {package}" in ability.install]
        assert named, package
        assert set(named) <= set(required.split(",")), package


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Create a folder with tests, for a machine that has curl but neither nginx nor wrk."""
    for variable in ("ZQ_REQUIRE", "ZQ_REQUIRE_SERVERS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(abilities, "able", {"curl": True, "nginx": False, "wrk": False}.__getitem__)
    pytester.makeconftest(RUN)
    pytester.makepyfile(TESTS)
    return pytester


def test_a_run_ends_with_a_line_for_each_missing_ability(run: pytest.Pytester) -> None:
    """The line has the number and the purpose of the skipped tests, and the command that installs the program."""
    result = run.runpytest_inprocess()
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "*not tested on this machine*",
            "nginx is missing, 2 tests skipped: etc/nginx.conf, and*To run them: apt-get install nginx-light",
            "wrk is missing, 1 test skipped: the benchmarks. To run them: apt-get install wrk",
        ]
    )


def test_a_missing_ability_that_is_required_fails(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZQ_REQUIRE", "nginx,curl")
    result = run.runpytest_inprocess()
    result.assert_outcomes(passed=1, skipped=1, errors=2)
    result.stdout.fnmatch_lines(["*nginx is missing: apt-get install nginx-light"])


def test_an_unknown_name_that_is_required_ends_the_run(run: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZQ_REQUIRE", "nginx,ngnix")
    result = run.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*ZQ_REQUIRE: unknown ngnix; the names are *nginx*"])


def test_wheels_are_required_with_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZQ_REQUIRE_SERVERS", "1")
    monkeypatch.setenv("ZQ_REQUIRE", "wrk")
    assert abilities.required() == {"java", "kubectl", "mongod", "swift", "valkey-server", "wrk"}


def stub(folder: Path, name: str, script: str = "exit 1") -> None:
    """Write a program with this name that runs a script."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("name", ["unshare", "nginx", "redis-server", "setpriv"])
def test_a_program_that_fails_is_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In most containers ``unshare`` is installed but not permitted."""
    stub(tmp_path, name)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    able.cache_clear()
    try:
        assert not able(name)
    finally:
        able.cache_clear()


@pytest.mark.parametrize(
    ("required", "code", "state"),
    [("", 0, "missing"), ("wrk", 0, "missing"), ("nginx", 1, "MISSING, required"), ("ngnix", 2, "")],
)
def test_the_table_says_what_is_missing_and_fails_if_that_is_required(
    required: str, code: int, state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is the output of ``python -m tests.abilities``."""
    monkeypatch.setattr(abilities, "able", lambda name: name != "nginx")
    monkeypatch.setenv("ZQ_REQUIRE_SERVERS", "1")
    monkeypatch.setenv("ZQ_REQUIRE", required)
    assert abilities.main() == code
    shown = [re.split(r"  +", line) for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in shown] == [
        [name, state if name == "nginx" else "there"] for name in ABILITIES if state
    ]
