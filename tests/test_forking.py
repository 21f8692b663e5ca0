# SPDX-License-Identifier: Apache-2.0
"""The plugin that forks test processes, and the progress of a campaign, each with its own pytest."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.abilities import need
from tests.campaign import __main__ as campaign

ROOT = Path(__file__).parent.parent
TESTS = """\
import os, pathlib, pytest, signal, time

@pytest.fixture(scope="session", autouse=True)
def server():
    up = pathlib.Path("up-" + str(os.getpid()))
    up.touch()
    yield
    up.unlink()

@pytest.mark.parametrize("number", range(60))
def test_number(number):
    if number == 20 and os.environ.get("DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("SLOW"):
        time.sleep(0.2)
    assert number != 30 or "FAILS" not in os.environ
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a folder with sixty tests; a process leaves a file behind unless its fixtures are torn down."""
    need("git")
    (tmp_path / "test_numbers.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "x", "--allow-empty"],
        cwd=tmp_path,
        check=True,
    )
    return tmp_path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-p", "tests.forking", "--forks", "3", *map(str, arguments)]


def run(folder: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(command(*arguments), cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_forks_when_a_process_dies_report_its_test_and_run_all_others(folder: Path) -> None:
    """The test that killed its process fails by name, all sixty results exist, and fixtures are torn down."""
    done = run(folder, DIES="1", FAILS="1")
    assert "2 failed, 58 passed" in done.stdout, done
    assert "FAILED test_numbers.py::test_number[20] - its process" in done.stdout
    assert "FAILED test_numbers.py::test_number[30] - AssertionError" in done.stdout
    assert done.returncode == 1
    assert len(list(folder.glob("up-*"))) == 1, "Only the killed process leaves its file."


@pytest.mark.slow
def test_forks_when_interrupted_tear_fixtures_down(folder: Path) -> None:
    """SIGINT to only the parent ends every process, and each removes what its fixtures created."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "SLOW": "1"}
    with subprocess.Popen(command(), cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("up-*"))) < 3:
            assert time.monotonic() < deadline, "The processes did not start."
            time.sleep(0.02)
        process.send_signal(2)
        process.communicate(timeout=90)
    assert process.returncode == 2
    assert list(folder.glob("up-*")) == []


@pytest.mark.slow
def test_progress_after_a_failure_or_a_deadline_continues_with_the_rest(folder: Path) -> None:
    """A second run covers failed and remaining tests; after the last test has passed, all tests run again."""
    record = ("-p", "tests.campaign.progress", "--progress", folder / "done")
    cut = run(folder, *record, "--until", time.time())
    left = int(re.findall(r"(\d+) tests were not reached", cut.stdout)[0])
    assert 54 <= left <= 60, "Each process had a first run of two tests at most."
    assert cut.returncode == 0, cut
    assert f"1 failed, {left - 1} passed" in run(folder, *record, FAILS="1").stdout
    assert "1 passed, 59 deselected" in run(folder, *record).stdout
    assert not (folder / "done").exists()
    (folder / "done").write_text("another commit\ntest_numbers.py::test_number[1]\n")
    assert "60 passed" in run(folder, *record).stdout


def test_campaign_with_a_wrong_value_is_refused_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and the message names the option, its allowed values and the given value."""
    for option, value, bound in (
        ("--part", "nope", "one of histories, "),
        ("--store", "oracle", "one of memory, "),
        ("--seed", "-1", "a whole number from 0 to 1000000000"),
        ("--seed", "x", "a whole number from 0 to 1000000000"),
        ("--minutes", "0", "a whole number from 1 to 60"),
        ("--minutes", "61", "a whole number from 1 to 60"),
    ):
        with pytest.raises(SystemExit) as refusal:
            campaign.main([f"{option}={value}"])
        assert refusal.value.code == 2
        sentence = capsys.readouterr().err
        assert sentence.startswith(f"{option} must be {bound}"), sentence
        assert sentence.endswith(f", not {value}.\n"), sentence
