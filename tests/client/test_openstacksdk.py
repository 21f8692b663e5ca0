# SPDX-License-Identifier: Apache-2.0
"""``api-ref/migration-from-zaqar.md``: its program runs, and the SDK behaves as described."""

from pathlib import Path

import pytest

from tests.blocks import only
from tests.reader import PYTHON, follow, succeed
from tests.servers import ZqServer, ask

pytestmark = pytest.mark.slow

PAGE = "api-ref/migration-from-zaqar.md"


def program(server: ZqServer, project: str) -> str:
    return only(PAGE, "python").replace("http://localhost:8888", server.url).replace("acme", project)


def test_the_program_of_the_page_works(running: ZqServer, project: str, tmp_path: Path) -> None:
    """The program sees all pages and can delete claimed messages."""
    succeed([*PYTHON, program(running, project)], tmp_path)


def test_sdk_fails_as_the_page_says(running: ZqServer, project: str, tmp_path: Path) -> None:
    """The SDK's claims, a rejected post, a claim's limit and unknown metadata behave as described."""
    begin = program(running, project).partition("conn.message.create_queue")[0]
    lines = [
        "conn.message.create_queue(name='dlq', _dead_letter_queue='dead', _max_claim_count=3)",
        "conn.message.post_message('dlq', [{'body': 1}, {'body': 2}])",
        "print(len(Claim.new(queue_name='dlq', ttl=300, grace=60, limit=1).create(conn.message).messages))",
    ]
    assert succeed([*PYTHON, begin + "\n".join(lines)], tmp_path) == "2\n"
    metadata = ask(running.url, "GET", "/v2/queues/dlq", headers={"X-Project-ID": project}).document
    assert metadata.get("_dead_letter_queue") is None
    claim = "conn.message.post_message('q', [{'body': 1}]); conn.message.create_claim('q', ttl=300, grace=60)"
    post = "conn.message.post_message('q', [{'body': 1, 'ttl': 5}])"
    for line, error in ((claim, "AttributeError: split"), (post, "KeyError: 'resources'")):
        assert follow([*PYTHON, begin + line], tmp_path).stderr.strip().endswith(error)
