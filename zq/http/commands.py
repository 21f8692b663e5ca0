# SPDX-License-Identifier: Apache-2.0
"""Interface and helper functions of the ``zq-server`` commands that send HTTP requests."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from zq.errors import StartRefused

# Number of keys or tokens per page of a listing.
PAGE = 100
# Sends a request with method, target and JSON document. Returns the status and the decoded response.
SendRequest = Callable[[str, str, object], tuple[int, Any]]


class Command(Struct, frozen=True):
    """A ``zq-server`` command with subcommands, such as ``zq-server token create``.

    Args:
        add_verbs: Adds a parser for each subcommand and returns the new parsers.
        verbs: Functions by subcommand. Each function runs the subcommand and yields the lines to print.
    """

    name: str
    summary: str
    description: str
    add_verbs: Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], Iterable[argparse.ArgumentParser]]
    verbs: Mapping[str, Callable[[argparse.Namespace, SendRequest], Iterator[str]]]


def request(send: SendRequest, method: str, target: str, document: object = None) -> Any:
    """Send a request and return the decoded response. Raises ``StartRefused`` for an error response."""
    status, answer = send(method, target, document)
    if status >= 400:
        raise StartRefused(answer.get("description") or answer["title"])
    return answer


def list_all(send: SendRequest, path: str, member: str, project: str | None) -> Iterator[dict[str, Any]]:
    """Yield the entries of all pages of a listing. If ``project`` is ``None``, list the entries of all projects."""
    target = f"{path}?{urlencode({'limit': PAGE} | ({'project': project} if project else {}))}"
    while True:
        page = request(send, "GET", target)
        yield from page[member]
        if not page["links"]:
            return
        target = page["links"][0]["href"]
