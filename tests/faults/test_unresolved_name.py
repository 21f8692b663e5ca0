# SPDX-License-Identifier: Apache-2.0
"""A server whose ``bind`` is a name, and a resolver that fails later."""

from pathlib import Path

from tests.servers import ZqServer

# The name is not known to be local.
CONFIG = "[server]\ntrust_network = true\n"
# Resolves a name until a file exists.
RESOLVER = """\
import os, socket
resolve = socket.gethostbyname

def gethostbyname(name):
    if name != "zq.test":
        return resolve(name)
    if os.path.exists(os.environ["ZQ_TEST_FILE"]):
        raise OSError("no such name")
    return "127.0.0.1"

socket.gethostbyname = gethostbyname
"""


def test_a_server_ends_though_its_name_has_no_address_any_more(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(RESOLVER)
    gone = tmp_path / "gone"
    env = {"PYTHONPATH": str(tmp_path), "ZQ_TEST_FILE": str(gone)}
    with ZqServer("memory:", "--bind", "zq.test", engine="granian", config=CONFIG, env=env) as server:
        gone.touch()
        assert server.terminate(20) == 0
