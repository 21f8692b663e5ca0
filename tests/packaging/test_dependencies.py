# SPDX-License-Identifier: Apache-2.0
"""The packages that are installed with zq: the lock file of the image, and the licence of each package."""

import re

import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tests.blocks import ROOT
from tests.packaging import licences

pytestmark = pytest.mark.slow

LOCK = ROOT / "etc" / "requirements.lock"
# The extras in the image. The extras spark and report are left out: PySpark with Java, and matplotlib, are too large.
IMAGE = (
    *("server", "rocksdb", "mongodb", "redis", "object", "granian", "fast", "delivery", "encryption", "jwt"),
    *("tracing", "keystone", "policy", "cli"),
)
PINNED = re.compile(r"^(\S+)==(\S+)(?: ; (.+?))?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
# An extra that needs a compiler, so not every test environment has it.
OPTIONAL = "fast"


@pytest.fixture(scope="session")
def locked() -> dict[str, str]:
    """Return the versions of the packages that this Python needs; assert that the lock file has hashes for each."""
    text = "".join(line for line in LOCK.read_text().splitlines(keepends=True) if not line.startswith("#"))
    assert PINNED.sub("", text).strip() == ""
    return {
        canonicalize_name(name): number
        for name, number, marker, _ in PINNED.findall(text)
        if not marker or Marker(marker).evaluate()
    }


def test_the_lock_file_satisfies_setup_cfg(locked: dict[str, str]) -> None:
    """The lock file's header names the extras of the image; no package that they need is missing."""
    assert tuple(re.findall(r"--extra (\w+)", LOCK.read_text())) == IMAGE
    for extra in (licences.CLIENT, *IMAGE):
        for wanted in licences.requirements(extra):
            assert wanted.specifier.contains(locked[canonicalize_name(wanted.name)]), f"{wanted}: {locked}"
        if extra != OPTIONAL:
            assert licences.packages(extra) - set(locked) == set()


def test_the_licence_of_every_dependency_is_listed(locked: dict[str, str]) -> None:
    """The page lists all packages of the client and of each extra, with their licences."""
    page = (ROOT / "THIRD-PARTY.md").read_text()
    listed = dict(re.findall(r"^\| \[([\w.-]+)\]\(\S+\) \| ([^|]+) \|", page, re.MULTILINE))
    needed = set(locked)
    for extra in (licences.CLIENT, *licences.EXTRAS):
        needed |= {canonicalize_name(wanted.name) for wanted in licences.requirements(extra)}
        needed |= licences.packages(extra) if extra != OPTIONAL else set()
    assert needed - set(listed) == set()
    assert [name for name, licence in listed.items() if not licence.strip() or "UNKNOWN" in licence] == []


def test_neither_nothing_nor_a_whole_text_is_a_licence_s_name() -> None:
    """The test checks the function of the other test."""
    assert licences.named([None, "", "UNKNOWN", "Permission is hereby granted, " * 9]) is None
    assert licences.named([None, "UNKNOWN", "MIT\n"]) == "MIT"


def test_the_extra_standard_brings_what_a_first_server_needs() -> None:
    """The extra has the server, the embedded store and the command line, but neither PySpark nor another store."""
    assert [wanted.extras for wanted in licences.requirements("standard")] == [{"cli", "rocksdb", "server"}]
    parts = {name for extra in ("cli", "rocksdb", "server") for name in licences.packages(extra)}
    assert {"click", "falcon", "rocksdict"} <= parts
    assert parts & {"pyspark", "pymongo", "redis", "obstore"} == set()


def test_the_extra_all_brings_each_extra_but_those_that_are_large_or_need_a_compiler() -> None:
    """PySpark takes most of 1.2 GB."""
    [wanted] = licences.requirements("all")
    assert wanted.extras == {*licences.EXTRAS} - {"fast", "spark"}
