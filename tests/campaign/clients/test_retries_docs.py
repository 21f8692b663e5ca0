# SPDX-License-Identifier: Apache-2.0
"""``api-ref/retries.md``: its programs continue while their server is killed and restarted."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.blocks import ROOT, blocks, only
from tests.reader import PYTHON, SHELL, succeed
from tests.servers import Lost, ZqServer, ask, every_message

PAGE = "api-ref/retries.md"
AWAY = 0.7
"""Seconds for which connections are refused."""


def total(server: ZqServer) -> int:
    """Return the number of messages in the page's queue."""
    with contextlib.suppress(Lost):
        found: int = ask(server.url, "GET", "/v2/queues/orders/stats").document["messages"]["total"]
        return found
    return 0


@contextmanager
def killing(server: ZqServer, *moments: Callable[[int], bool]) -> Iterator[list[int]]:
    """Kill and restart the server at each moment in turn; a moment is a condition on the number of messages.

    Yield the list of message counts at the kills.
    """
    over, kills = threading.Event(), list[int]()

    def nemesis() -> None:
        for moment in moments:
            while not moment(there := total(server)):
                if over.wait(0.005):
                    return
            server.kill()
            kills.append(there)
            time.sleep(AWAY)
            server.start()

    thread = threading.Thread(target=nemesis)
    thread.start()
    try:
        yield kills
    finally:
        over.set()
        thread.join()


def test_the_lines_of_the_shell_post_each_order_once(tmp_path: Path) -> None:
    """retries.md: no message is lost or duplicated."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        (program,) = (block.text for block in blocks(ROOT / PAGE) if "--retry 10" in block.text)
        lines = program.replace("http://localhost:8888", server.url)
        with killing(server, lambda total: total >= 10, lambda total: total >= 30) as kills:
            succeed([*SHELL, lines], tmp_path, 200)
        assert len(kills) == 2
        orders = [message["body"]["order"] for message in every_message(server.url, "orders")]
    assert orders == list(range(1, 61))


def test_the_program_posts_and_works_on_each_order_once(tmp_path: Path) -> None:
    """retries.md: the server is killed during the posts and, if possible, during the work."""
    most = 0

    def falls(total: int) -> bool:
        nonlocal most
        most = max(most, total)
        return 0 < total < most

    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        program = only(PAGE, "python").replace("http://localhost:8888", server.url)
        with killing(server, lambda total: total >= 50, lambda total: total >= 120, falls) as kills:
            succeed([*PYTHON, program], tmp_path, 200)
        assert len(kills) >= 2
        assert every_message(server.url, "orders") == []
