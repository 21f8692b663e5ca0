# SPDX-License-Identifier: Apache-2.0
"""``api-ref/client.md``: its samples run and contain every method."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.reader import PYTHON, succeed
from tests.servers import ZqServer
from tests.sink import CONFIG
from zq.client import Client, Delivery, Queue, Topic
from zq.testing import server

PAGE = (Path(__file__).parent.parent.parent / "api-ref" / "client.md").read_text()
# ``test_testing.py`` runs the samples of the last section.
SAMPLES = re.findall(
    r"^```python\n(.*?)^```$", PAGE.partition("\n## Test your programs\n")[0], re.MULTILINE | re.DOTALL
)


def test_the_samples_of_the_client_work(tmp_path: Path) -> None:
    """The samples run in order, in one program, against a new server."""
    with ZqServer(f"rocksdb://{tmp_path}/store", config=CONFIG) as server:
        program = "\n".join(SAMPLES).replace("http://localhost:8888", server.url)
        succeed([*PYTHON, program], tmp_path)


def test_every_verb_of_the_client_is_in_a_sample() -> None:
    """The samples contain the methods of clients, queues, topics and deliveries."""
    code = "\n".join(SAMPLES)
    verbs = [
        name for kind in (Client, Queue, Topic) for name in dir(kind) if not name.startswith("_") and name != "kind"
    ]
    verbs += [name for name in vars(Delivery) if not name.startswith("_") and callable(getattr(Delivery, name))]
    assert "post_many" in verbs
    comments = " ".join(re.findall(r"^#.*", code, re.MULTILINE))
    assert [name for name in verbs if f".{name}(" not in code and not re.search(rf"\b{name}\b", comments)] == []


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


TYPES: dict[str, list[tuple[Any, Any]]] = {
    "`bytes`, `bytearray`, `memoryview`": [(kind(b"ab"), "YWI=") for kind in (bytes, bytearray, memoryview)],
    "`set`, `frozenset`, `tuple`": [({1}, [1]), (frozenset([1]), [1]), ((1, 2), [1, 2])],
    "`Decimal`, `UUID`, `datetime`, `date`, `time`, `timedelta`": [
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), str(UUID(int=1))),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(1, 2), "01:02:00"),
        (timedelta(seconds=90), "PT90S"),
    ],
    "a member of an `Enum`": [(Colour.RED, "red")],
    "an instance of a dataclass, `Struct` or attrs class": [(Point(1), {"x": 1})],
    "`int` and `float` keys of a `dict`": [({1: "a"}, {"1": "a"})],
}


def test_each_value_that_json_does_not_have_comes_back_as_the_page_says() -> None:
    """The table lists the types, and ``body_as`` restores the values."""
    table = PAGE.partition("| Posted | `body` |\n|---|---|\n")[2].partition("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] == [*TYPES]
    with server() as served, served.client() as client:
        queue = client.queue("types")
        for given, expected in (pair for pairs in TYPES.values() for pair in pairs):
            queue.post(given)
            [message] = queue.pop()
            assert message.body == expected
            if not isinstance(given, memoryview | dict):
                assert message.body_as(type(given)) == given
