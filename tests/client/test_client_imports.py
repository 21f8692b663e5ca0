# SPDX-License-Identifier: Apache-2.0
"""Imports of the Python client and of help texts: nothing of the server, and nothing before its first use."""

import subprocess
import sys

import pytest

SERVERS = "falcon gunicorn granian pymongo redis rocksdict oslo_config prometheus_client jsonschema"
PARTS = "zq.core zq.http zq.storage zq.serving.settings zq.spark"
TALKING = "asyncio httpx tenacity"
"""Half of the client's import time. They are loaded with the first client; asyncio only for an asynchronous one."""


def loaded(code: str, *modules: str) -> set[str]:
    """Return which of the modules a program has loaded at its end."""
    listing = f"import atexit, sys\natexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{code}"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=60)
    return {name for names in modules for name in names.split()} & set(done.stderr.split())


def test_the_client_imports_nothing_of_the_server_and_nothing_that_it_does_not_need_yet() -> None:
    """Neither libraries nor modules of the server are loaded, and every public name exists."""
    code = "import zq.client\nassert all(hasattr(zq.client, name) for name in zq.client.__all__)"
    assert loaded(code, SERVERS, PARTS, TALKING, "click rich ssl email") == set()


def test_a_blocking_client_does_without_asyncio() -> None:
    """A request does not load asyncio, either."""
    code = """
from zq.client import Client, Retries
from zq.errors import Unavailable
with Client("http://127.0.0.1:1", "acme", retries=Retries(attempts=2, deadline=5)) as client:
    try:
        client.ping()
    except Unavailable:
        pass
"""
    assert loaded(code, SERVERS, PARTS, TALKING) == {"httpx", "tenacity"}


@pytest.mark.parametrize("arguments", [["--help"], ["queue", "list", "--help"], ["pipeline", "run", "--help"]])
def test_a_help_text_asks_no_server_and_waits_for_nothing(arguments: list[str]) -> None:
    """Neither the HTTP client nor Spark nor a syntax highlighter is loaded."""
    code = f"import sys, zq.cli\nsys.argv = ['zq', *{arguments}]\nzq.cli.main()"
    assert loaded(code, SERVERS, PARTS, TALKING, "pyspark pyarrow matplotlib pygments ssl email click") == {"click"}
