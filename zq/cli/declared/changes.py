# SPDX-License-Identifier: Apache-2.0
"""Differences between a declaration file and the server: data types and text output."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct

from zq.cli.output import as_text

Action = Literal["create", "change", "delete"]
# Sign of an added, changed or removed value, and its colour on a terminal.
SIGNS: Final[Mapping[Action, tuple[str, str]]] = {
    "create": ("+", "green"),
    "change": ("~", "yellow"),
    "delete": ("-", "red"),
}


class Field(Struct, frozen=True, omit_defaults=True):
    """A changed property with its old and new value. ``UNSET`` = the property does not exist."""

    name: str
    old: Any = UNSET
    new: Any = UNSET

    @property
    def action(self) -> Action:
        return "create" if self.old is UNSET else "delete" if self.new is UNSET else "change"


class Change(Struct, frozen=True, omit_defaults=True):
    """A change of one object, such as a queue. Secrets are not included."""

    action: Action
    kind: str
    name: str
    fields: list[Field] = []
    remark: str = ""


def same(one: object, other: object) -> bool:
    """Return whether two values are equal as JSON, where ``true`` and 1 differ."""
    return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Field]:
    """Return a ``Field`` for each key whose values differ."""
    names = [*new, *(name for name in old if name not in new)]
    pairs = ((name, old.get(name, UNSET), new.get(name, UNSET)) for name in names)
    return [Field(*each) for each in pairs if UNSET in each[1:] or not same(*each[1:])]


def lines(change: Change) -> Iterator[tuple[str, str]]:
    """Yield the text lines that describe a change, each with its terminal colour."""
    sign, colour = SIGNS[change.action]
    remark = f" ({change.remark})" if change.remark else ""
    yield f"{sign} {change.kind} {change.name}{remark}", colour
    for field in change.fields:
        sign, colour = SIGNS[field.action]
        values = [as_text(value) for value in (field.old, field.new) if value is not UNSET]
        yield f"    {sign} {field.name}: {' → '.join(values)}", colour


def count(changes: Iterable[Change]) -> dict[Action, int]:
    """Return the number of changes by action."""
    counts: dict[Action, int] = dict.fromkeys(SIGNS, 0)
    for change in changes:
        counts[change.action] += 1
    return counts
