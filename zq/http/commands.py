# SPDX-License-Identifier: Apache-2.0
"""Commands of ``zq-server`` that administer the store through the routes of the HTTP interface."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from zq.errors import StartRefused

# Keys or tokens in one page of a listing.
PAGE = 100
# Sends a request: method, target and document. Returns the status and the decoded answer.
Ask = Callable[[str, str, object], tuple[int, Any]]


class Command(Struct, frozen=True):
    """A command of ``zq-server`` with verbs, as ``zq-server token create``.

    Args:
        name: The word behind ``zq-server``.
        summary: A phrase for ``zq-server --help``.
        description: The description of the command's own help.
        add_verbs: Adds a parser for each verb, and returns these parsers.
        verbs: Functions by verb that carry it out and yield the lines to print.
    """

    name: str
    summary: str
    description: str
    add_verbs: Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], Iterable[argparse.ArgumentParser]]
    verbs: Mapping[str, Callable[[argparse.Namespace, Ask], Iterator[str]]]


def request(ask: Ask, method: str, target: str, document: object = None) -> Any:
    """Return the answer of a request. Raises ``StartRefused`` with the sentence of a refusal."""
    status, answer = ask(method, target, document)
    if status >= 400:
        raise StartRefused(answer.get("description") or answer["title"])
    return answer


def list_all(ask: Ask, path: str, member: str, project: str | None) -> Iterator[dict[str, Any]]:
    """Yield the entries of a listing page by page; of all projects if ``project`` is None."""
    target = f"{path}?{urlencode({'limit': PAGE} | ({'project': project} if project else {}))}"
    while True:
        page = request(ask, "GET", target)
        yield from page[member]
        if not page["links"]:
            return
        target = page["links"][0]["href"]
