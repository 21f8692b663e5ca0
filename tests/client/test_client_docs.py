# SPDX-License-Identifier: Apache-2.0
"""``api-ref/client.md``: its samples are run, and every verb is in them."""

import re
from pathlib import Path

from tests.reader import PYTHON, succeed
from tests.servers import ZqServer
from tests.sink import CONFIG
from zq.client import Client, Delivery, Queue, Topic

PAGE = (Path(__file__).parent.parent.parent / "api-ref" / "client.md").read_text()
SAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_samples_of_the_client_work(tmp_path: Path) -> None:
    """From top to bottom, in one program, against a new server."""
    with ZqServer(f"rocksdb://{tmp_path}/store", config=CONFIG) as server:
        program = "\n".join(SAMPLES).replace("http://localhost:8888", server.url)
        succeed([*PYTHON, program], tmp_path)


def test_every_verb_of_the_client_is_in_a_sample() -> None:
    """Of clients, handles and messages that are worked on."""
    code = "\n".join(SAMPLES)
    verbs = [
        name for kind in (Client, Queue, Topic) for name in dir(kind) if not name.startswith("_") and name != "kind"
    ]
    verbs += [name for name in vars(Delivery) if not name.startswith("_") and callable(getattr(Delivery, name))]
    assert "post_many" in verbs
    comments = " ".join(re.findall(r"^#.*", code, re.MULTILINE))
    assert [name for name in verbs if f".{name}(" not in code and not re.search(rf"\b{name}\b", comments)] == []
