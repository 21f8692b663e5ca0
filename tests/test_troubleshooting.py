# SPDX-License-Identifier: Apache-2.0
"""The messages that ``api-ref/troubleshooting.md`` quotes, compared word for word with the program's."""

import ast
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.blocks import ROOT
from tests.reader import PYTHON, follow
from tests.servers import ZqServer
from tests.words import parsed
from zq.client import Client, Retries
from zq.errors import ZqError

pytestmark = pytest.mark.slow

PAGE = (ROOT / "api-ref" / "troubleshooting.md").read_text()
GAP = "…"
PLACE = re.compile(r"%(?:\.0)?[a-z]|\{\}|\{[a-z_.]+(?::[^}]*)?\}")
"""Placeholders of ``logging`` and ``str.format``."""


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every text of a module, with gaps for placeholders."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield PLACE.sub(GAP, node.value)
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)


def said(folder: Path) -> list[str]:
    files = [*folder.joinpath("zq").rglob("*.py"), *folder.joinpath("pyspark_zq").glob("*.py")]
    return [" ".join(text.split()) for file in files for text in texts(parsed(file.read_text()))]


def quoted() -> list[str]:
    """Return the texts in code style that are a sentence or the beginning of one."""
    return [text for text in re.findall(r"`([^`\n]+)`", PAGE) if re.fullmatch(r"[A-Z_\[l].* .*(\.|to …)", text)]


def holds(text: str, sentence: str) -> bool:
    """Return whether a text contains the sentence; its gaps match any text."""
    return re.search(".*".join(map(re.escape, sentence.split(GAP))), text) is not None


def heard(folder: Path) -> Iterator[str]:
    """Yield messages of running programs that the source does not contain as a whole."""
    yield follow(["zq-server", "--bind", "0.0.0.0"], folder).stderr
    yield follow(["zq", "--project", "p", "--url", "http://127.0.0.1:1", "--retry", "0", "health"], folder).stderr
    broken = "import sys, pyspark_zq; sys.modules['zq.spark.source'] = None; pyspark_zq.DefaultSource"
    yield follow([*PYTHON, broken], folder).stderr
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, "p", timeout=0.1, retries=Retries(attempts=1)) as client:
            yield refusal(client.limits)
    with ZqServer(f"rocksdb://{folder}/store") as server, Client(server.url, "p") as client:
        yield refusal(client.queue("q").create, {"_default_message_ttl": 5})
        yield refusal(client.queue("q").claim, 1_000_000)


def refusal(verb: Callable[..., Any], *given: Any) -> str:
    """Return the error message of a failing call."""
    with pytest.raises(ZqError) as refused:
        verb(*given)
    return str(refused.value)


def test_the_sentences_are_those_of_the_program(tmp_path: Path) -> None:
    """Each quoted sentence is in the source or in the output of a program."""
    sentences = quoted()
    assert len(sentences) > 35
    program = [*said(ROOT), *heard(tmp_path)]
    assert [sentence for sentence in sentences if not any(holds(text, sentence) for text in program)] == []


def test_a_sentence_that_the_program_does_not_say_is_noticed() -> None:
    """The search does not match a sentence with another text."""
    assert holds("The store … is in use by another. Stop it.", "The store … is in use by another.")
    assert not holds("The store … is in use.", "The queue … is in use.")
    assert not any(holds(text, "The store is unavailable today.") for text in said(ROOT))
