# SPDX-License-Identifier: Apache-2.0
"""``zq-server`` commands that run in this process or in a forked one."""

import contextlib
import io
import os
from collections.abc import Mapping
from typing import NamedTuple
from unittest import mock

from tests.forked import Forked
from tests.servers import MODULE
from zq.serving import server


class Done(NamedTuple):
    """The output and the exit code of a command."""

    code: int
    said: str
    error: str


def run(*arguments: object) -> Done:
    """Run ``zq-server`` with these arguments in this process."""
    said, error, umask = io.StringIO(), io.StringIO(), os.umask(0o077)
    try:
        with mock.patch.dict(os.environ), contextlib.redirect_stdout(said), contextlib.redirect_stderr(error):
            code = server.main(list(map(str, arguments)))
    finally:
        os.umask(umask)
    return Done(code, said.getvalue(), error.getvalue())


def run_apart(*arguments: object, module: str = MODULE, env: Mapping[str, str] | None = None) -> Done:
    """Run ``zq-server`` in a separate process, which closes the store when it exits."""
    process = Forked(module, list(map(str, arguments)), os.environ if env is None else env)
    with process.stdout as said, process.stderr as error:
        words = said.read(), error.read()
    return Done(process.wait(60), *words)


def new_token(uri: str, project: str, *options: str) -> str:
    """Create a token of a project with ``zq-server token create`` and return it."""
    done = run_apart("token", "create", "--project", project, "--store", uri, *options)
    assert done.code == 0, done
    return done.said.strip()
