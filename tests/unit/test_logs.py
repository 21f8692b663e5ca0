# SPDX-License-Identifier: Apache-2.0
"""Log levels: zq's own as configured, other libraries' never below INFO, because drivers log bodies there (S13)."""

import logging
from collections.abc import Iterator

import pytest

from zq import logs

FOREIGN = ["pymongo.command", "httpx", "httpcore.http11", "gunicorn.error", "_granian", "asyncio", "urllib3", "redis"]
OWN = ["zq.requests", "zq.storage.mongodb", "__main__"]


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restore the log levels and handlers after the test."""
    root = logging.getLogger()
    own = [logging.getLogger(name) for name in ("zq", "__main__", "httpx")]
    former, handlers = [each.level for each in [root, *own]], list(root.handlers)
    logging.getLogger("httpx").setLevel(logging.NOTSET)  # as in a server, which does not import zq.client
    yield
    root.handlers[:] = handlers
    for each, level in zip([root, *own], former, strict=True):
        each.setLevel(level)


@pytest.mark.parametrize(
    ("level", "least"), [("DEBUG", "INFO"), ("INFO", "INFO"), ("WARNING", "WARNING"), ("ERROR", "ERROR")]
)
def test_the_levels_of_other_libraries_are_never_below_info(level: str, least: str) -> None:
    """The rule applies at the start and when the level is changed later; zq's own level is the configured one."""
    logs.configure("text", "INFO")
    for change in (lambda: logs.configure("json", level), lambda: logs.set_level(level)):
        change()
        levels = {name: logging.getLevelName(logging.getLogger(name).getEffectiveLevel()) for name in [*FOREIGN, *OWN]}
        assert levels == dict.fromkeys(FOREIGN, least) | dict.fromkeys(OWN, level)
