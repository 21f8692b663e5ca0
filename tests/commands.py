# SPDX-License-Identifier: Apache-2.0
"""The commands of ``zq-server``, in this process."""

import contextlib
import io
import os
from typing import NamedTuple
from unittest import mock

from zq import server


class Done(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    said: str
    error: str


def run(*arguments: object) -> Done:
    """``zq-server`` with these arguments."""
    said, error, umask = io.StringIO(), io.StringIO(), os.umask(0o077)
    try:
        with mock.patch.dict(os.environ), contextlib.redirect_stdout(said), contextlib.redirect_stderr(error):
            code = server.main(list(map(str, arguments)))
    finally:
        os.umask(umask)
    return Done(code, said.getvalue(), error.getvalue())
