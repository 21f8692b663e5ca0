# SPDX-License-Identifier: Apache-2.0
"""Levels of the log: zq's own as chosen, others' never below INFO, since drivers write bodies there (S13)."""

import logging
from collections.abc import Iterator

import pytest

from zq import logs

FOREIGN = ["pymongo.command", "httpx", "httpcore.http11", "gunicorn.error", "_granian", "asyncio", "urllib3", "redis"]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """What was set before is set again."""
    root = logging.getLogger()
    own = [logging.getLogger(name) for name in ("zq", "__main__", "httpx")]
    former, handlers = [each.level for each in [root, *own]], list(root.handlers)
    logging.getLogger("httpx").setLevel(logging.NOTSET)  # as where zq.client, which no server has, is not imported
    yield
    root.handlers[:] = handlers
    for each, level in zip([root, *own], former, strict=True):
        each.setLevel(level)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize(
    ("level", "least"), [("DEBUG", "INFO"), ("INFO", "INFO"), ("WARNING", "WARNING"), ("ERROR", "ERROR")]
)
def test_what_others_log_is_never_below_info(name: str, level: str, least: str) -> None:
    """Neither at the start nor when the level is read again; and never more than was asked for."""
    logs.configure("text", "INFO")
    for change in (lambda: logs.configure("json", level), lambda: logs.set_level(level)):
        change()
        assert logging.getLogger(name).getEffectiveLevel() == logging.getLevelName(least)
        for own in ("zq.requests", "zq.storage.mongodb", "__main__"):
            assert logging.getLogger(own).getEffectiveLevel() == logging.getLevelName(level)
