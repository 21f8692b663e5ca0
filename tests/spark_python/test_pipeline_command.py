# SPDX-License-Identifier: Apache-2.0
"""``zq pipeline run`` without Spark: the job, the server, and errors."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError

from zq.cli.pipeline import MASTER, _with_settings
from zq.cli.session import Session
from zq.spark import session as sessions
from zq.spark.pipeline import Pipeline

IMPORT = "from zq.spark.pipeline import Pipeline\n"
HERE = "http://here:1"
FILE = f'[profiles.default]\nurl = "{HERE}"\nproject = "p"\ntoken = "secret"\n'


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ("import nowhere", "job.py, line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("pipeline = (\n", "job.py, line 1: '(' was never closed"),
        ("pipeline = 1", "job.py does not define pipeline"),
        (
            "from zq.spark.pipeline import Pipeline\n\nPipeline(source='a', stages=[])",
            "job.py, line 3: Invalid: stages",
        ),
    ],
)
def test_an_invalid_job_is_refused_with_an_error(command, tmp_path: Path, job: str, sentence: str) -> None:
    """The error is a single line."""
    (tmp_path / "job.py").write_text(job)
    code, _, err = command("--project", "p", "pipeline", "run", tmp_path / "job.py")
    assert code != 0
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_session_that_does_not_start_is_reported_in_a_sentence(command, monkeypatch, tmp_path: Path) -> None:
    """An unknown master is an example."""
    (tmp_path / "job.py").write_text(f"{IMPORT}pipeline = Pipeline(source='a', sink='b', stages=[print])")

    def fails(*_: object) -> None:
        raise Py4JError("An error occurred while calling x.\n: SparkException: Could not parse Master URL: 'b'\n\tat")

    monkeypatch.setattr(sessions, "start_session", fails)
    code, _, err = command("--project", "p", "pipeline", "run", tmp_path / "job.py", "--master=bogus")
    assert (code, err) == (1, "zq: SparkException: Could not parse Master URL: 'b'\n")


@pytest.mark.parametrize(
    ("job", "flags", "token"),
    [
        ({}, {}, "secret"),
        ({"url": HERE, "project": "q"}, {}, "secret"),
        ({"url": "http://there:1"}, {}, None),
        ({"url": "http://there:1"}, {"token": "given"}, "given"),
        ({"url": "http://there:1", "project": "q"}, {"token": "given"}, "given"),
        ({"token": "own"}, {"token": "given"}, "own"),
    ],
)
def test_a_token_is_sent_only_to_its_server(tmp_path: Path, job: Any, flags: Any, token: str | None) -> None:
    """An explicit token is used for any server, and that of a profile only for the profile's server."""
    (tmp_path / "config.toml").write_text(FILE)
    session = Session({**flags, "config": tmp_path / "config.toml"})
    made = _with_settings(Pipeline(source="a", sink="b", stages=[print], **job), session)
    assert made.token == token
    assert (made.url, made.project) == (job.get("url", HERE), job.get("project", "p"))


def test_flags_set_client_id_and_retry_time(tmp_path: Path) -> None:
    """The flags override the job's defaults."""
    (tmp_path / "config.toml").write_text(FILE)
    session = Session({"client_id": "c", "retry": 2.5, "config": tmp_path / "config.toml"})
    made = _with_settings(Pipeline(source="a", sink="b", stages=[print]), session)
    assert (made.client_id, made.retry_for) == ("c", 3)


def test_the_master_of_the_help_is_that_of_sessions() -> None:
    """The command does not import the module of sessions before it runs."""
    assert MASTER == sessions.MASTER
