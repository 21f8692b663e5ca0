# SPDX-License-Identifier: Apache-2.0
"""Connections that are kept, counted and cut here."""

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from zq.storage.redis.lines import Lines


class Plain:
    """A connection that is not open."""

    _sock = None


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that interrupt each other often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_connections_are_cut_while_others_are_made() -> None:
    """As when a master is replaced: whoever makes one just then must not keep the others from being cut."""
    make: Any = Plain
    lines = Lines(make)
    deadline = time.monotonic() + 1

    def open_more() -> None:
        kept = []
        while time.monotonic() < deadline:
            kept = [*kept[-100:], lines.own()]

    makers = [threading.Thread(target=open_more) for _ in range(3)]
    for maker in makers:
        maker.start()
    try:
        while time.monotonic() < deadline:
            lines.drop()
    finally:
        for maker in makers:
            maker.join()
    assert lines.retired
