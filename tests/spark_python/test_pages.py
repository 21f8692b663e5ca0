# SPDX-License-Identifier: Apache-2.0
"""The pages on Spark list every option, column and setting."""

import re
from dataclasses import fields

import pytest

from tests.blocks import ROOT
from zq.cli.session import GlobalOption

pytest.importorskip("pyspark")

from tests.spark.jobs import JOBS
from zq.spark.options import NAMES
from zq.spark.pipeline import Pipeline
from zq.spark.rows import COLUMNS, PLACE_COLUMNS


def page(name: str) -> str:
    return (ROOT / "api-ref" / name).read_text()


def test_every_option_and_column_is_on_the_page_of_spark() -> None:
    """Options that Spark itself gives a source are not options of zq."""
    listed = set(re.findall(r"`(\w+)`", page("spark.md")))
    assert {*NAMES.values()} - listed - {"path", "checkpointLocation", "queryName"} == set()
    assert {*COLUMNS, *PLACE_COLUMNS, "body"} - listed == set()


def test_every_setting_of_a_pipeline_is_on_its_page_with_its_default() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", page("pipelines.md"), re.MULTILINE)
    listed = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    for setting in fields(Pipeline):
        assert setting.name in listed
        if isinstance(setting.default, int):
            assert listed[setting.name] == f"{setting.default:,}"


def test_every_option_of_the_jobs_is_on_their_page() -> None:
    """Options that every command has are on the page of the command line."""
    own = [option for job in JOBS.values() for option in job.params if not isinstance(option, GlobalOption)]
    names = {name for option in own for name in (*option.opts, *option.secondary_opts)}
    flags = sorted(name for name in names if name.startswith("--"))
    assert len(flags) > 10
    assert [flag for flag in flags if not re.search(rf"`{flag}[` ]", page("spark.md"))] == []
