# SPDX-License-Identifier: Apache-2.0
"""The program and the tables of ``api-ref/sqs.md``, compared with a server and with the code."""

import re
from pathlib import Path

import pytest

from tests.blocks import ROOT, blocks, only
from tests.reader import PYTHON, SHELL, succeed
from tests.servers import ZqServer
from zq.sqs.limits import NUMBERS
from zq.sqs.operations import OPERATIONS
from zq.sqs.queue_attributes import READ_ONLY, SETTERS

PAGE = ROOT / "api-ref" / "sqs.md"


@pytest.mark.slow
def test_the_program_of_the_page_works(tmp_path: Path) -> None:
    """The server has the options of the page."""
    with ZqServer("memory:", config=only("api-ref/sqs.md", "ini")) as server:
        written = [block.text for block in blocks(PAGE) if block.language == "python" and "celery" not in block.text]
        program = "\n".join(written)
        said = succeed([*PYTHON, program.replace("http://localhost:8888", server.url)], tmp_path)
        assert said.splitlines() == [f"['{server.url}/123456789012/orders']", "one pair of shoes", "open pay True"]
        assert "[sqs] auth is none: everyone who reaches 127.0.0.1" in server.stderr
        assert f"SQS: {server.url}." in server.stderr


@pytest.mark.slow
def test_the_commands_on_keys_work(tmp_path: Path) -> None:
    """The commands run in order on a store in the current folder; secrets are shown once."""
    (commands,) = (block.text for block in blocks(PAGE) if block.text.startswith("zq-server sqs-key"))
    said = succeed([*SHELL, commands], tmp_path)
    first, second, *listed = said.splitlines()
    (one, secret), (other, _) = first.split(), second.split()
    assert {one, other} <= set(" ".join(listed).split())
    assert secret not in " ".join(listed)


def row(first: str) -> str:
    """Return the table row with this text in its first cell."""
    (found,) = re.findall(rf"^\| (?:[^|]*, )?{first}(?:, [^|]*)? \|.*", PAGE.read_text(), re.MULTILINE)
    return str(found)


def test_each_operation_and_attribute_is_on_the_page() -> None:
    """Numeric attributes have their default and range; the row of an unsupported operation says so."""
    for name, operation in OPERATIONS.items():
        assert ("UnsupportedOperation" in row(name)) == (operation.params.__name__ == "Params"), name
    for name in {*SETTERS, *READ_ONLY} - {name for name in READ_ONLY if name.endswith(("NotVisible", "Delayed"))}:
        assert row(name)
    for name, (least, most, default) in NUMBERS.items():
        if not name.startswith("Kms"):
            assert f"| {default}; {least} to {most} |" in row(name)
