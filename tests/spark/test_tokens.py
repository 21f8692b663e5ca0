# SPDX-License-Identifier: Apache-2.0
"""Jobs of Spark against a server that asks for tokens: each process reads its file for itself (tenancy 2)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from zq.testing import Server, server

SECRET_OF_NOBODY = "zq_" + "0" * 10 + "_" + "0" * 43 + "_" + "0" * 6


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with server(auth_strategy="token") as running:
        yield running


@pytest.fixture
def options_of(guarded: Server, tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The options of a job with this token."""

    def write(token: str) -> dict[str, str]:
        file = tmp_path / "token"
        file.write_text(token + "\n")
        file.chmod(0o600)
        return {"url": guarded.url, "project": "acme", "tokenFile": str(file), "retryFor": "10"}

    return write


def test_a_job_writes_and_reads_within_its_scopes(spark: Any, guarded: Server, options_of: Any, capfd: Any) -> None:
    """Sink in two phases, source by listing and by claims; neither plan nor log has the token."""
    token = guarded.token("acme", scopes=["*:queue/in", "produce+consume:work/**"])
    options = options_of(token)
    rows = spark.range(0, 500, 1, 2).selectExpr("cast(id as string) body")
    rows.write.format("zq").options(**options, queue="in").mode("append").save()
    frame = spark.read.format("zq").options(**options, queue="in").load()
    assert sorted(int(row.body) for row in frame.select("body").collect()) == list(range(500))
    frame.explain(extended=True)
    shown = "".join(capfd.readouterr())
    assert "zq" in shown
    assert token not in shown
    assert token[14:57] not in shown


@pytest.mark.parametrize(
    ("scopes", "sentence"),
    [(None, "The credential is not valid."), (["*:queue/other", "*:work/**"], "This credential does not allow")],
)
def test_a_job_that_may_not_fails_at_once_and_says_why(
    spark: Any, guarded: Server, options_of: Any, scopes: list[str] | None, sentence: str
) -> None:
    """Not after the patience that it has for servers that are down."""
    options = options_of(guarded.token("acme", scopes=scopes) if scopes else SECRET_OF_NOBODY)
    rows = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) body")
    with pytest.raises(Exception, match=sentence.replace(".", r"\.")):
        rows.write.format("zq").options(**options, queue="in").mode("append").save()
