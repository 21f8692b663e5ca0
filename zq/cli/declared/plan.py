# SPDX-License-Identifier: Apache-2.0
"""The plan of ``zq apply``: its steps in order, and the obstacles that would make a step fail."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from zq.cli.declared.changes import Action, Change, Field, compare
from zq.cli.declared.declaration import Declaration
from zq.cli.declared.kinds import COMMON_KINDS, KINDS, Kind, Mode, Subscriptions
from zq.cli.declared.schema import FILE_VERSION
from zq.cli.failures import Failure, error_message, exit_code
from zq.client import Client
from zq.errors import NotAuthenticated, NotAuthorized, NotBuilt, NotFound, ZqError
from zq.model.limits import Limits

# Errors of a server that does not support a section.
MISSING_ERRORS: Final = (NotFound, NotBuilt)


class Step(Struct, frozen=True):
    """A change of a plan, with the current state of the object on the server."""

    kind: Kind[Any, Any]
    change: Change
    actual: Any = None


class Plan(Struct, frozen=True):
    """The steps of ``zq apply`` in order. ``obstacles`` has a sentence for each reason why a step would fail."""

    steps: list[Step]
    obstacles: list[str]

    @property
    def changes(self) -> list[Change]:
        return [step.change for step in self.steps]


def make_plan(kinds: Iterable[Kind[Any, Any]], mode: Mode) -> Plan:
    """Compare the declared objects with the server and return the plan."""
    steps: list[Step] = []
    deletions: list[Step] = []
    for kind in kinds:
        with named_errors(kind, kind.section):
            actual = kind.read()
            steps += _changes(kind, actual)
            if mode.prune:
                deletions = [_deletion(kind, name, actual[name]) for name in kind.deletion_order(actual)] + deletions
    steps += deletions
    changes = [step.change for step in steps]
    return Plan(steps, [each for step in steps for each in step.kind.obstacles(step.change, step.actual, changes)])


def _changes(kind: Kind[Any, Any], actual: dict[str, Any]) -> Iterable[Step]:
    for name in kind.creation_order():
        found = actual.get(name)
        fields = kind.fields(kind.declared[name], found)
        if found is None:
            yield _step(kind, "create", name, fields)
        elif fields:
            yield _step(kind, "change", name, fields, found)


def _deletion(kind: Kind[Any, Any], name: str, actual: Any) -> Step:
    return _step(kind, "delete", name, compare(kind.properties(actual), {}), actual)


def _step(kind: Kind[Any, Any], action: Action, name: str, fields: list[Field], actual: Any = None) -> Step:
    return Step(kind, Change(action, kind.word, name, fields, kind.remark(action, name, actual)), actual)


def carry_out(plan: Plan, show_secrets: Callable[[Change, dict[str, Any]], None]) -> None:
    """Make all changes of the plan. Raises ``Failure`` at the first error; another run makes the remaining changes."""
    for index, step in enumerate(plan.steps):
        change = step.change
        with named_errors(
            step.kind, f"{change.kind} {change.name}", f"{index} of {len(plan.steps)} changes were made."
        ):
            if change.action == "create":
                if secrets := step.kind.create(change.name):
                    show_secrets(change, secrets)
            elif change.action == "change":
                step.kind.change(change.name, step.actual, change.fields)
            else:
                step.kind.prune(change.name, step.actual)


@contextmanager
def named_errors(kind: Kind[Any, Any], name: str, remark: str = "") -> Generator[None, None, None]:
    """Convert server errors in the block to a ``Failure`` whose message begins with ``name``.

    If the caller lacks a permission, the message includes ``kind.right``, which describes the required permission.
    """
    try:
        yield
    except ZqError as error:
        lacks = type(error) in (NotAuthorized, NotAuthenticated)
        text = "This server does not support this section." if type(error) in MISSING_ERRORS else error_message(error)
        parts = [f"{name}: {text}", kind.right if lacks else "", remark]
        raise Failure(" ".join(filter(None, parts)), exit_code(error)) from error


def export_declaration(client: Client, limits: Limits) -> tuple[Declaration, list[str]]:
    """Return the project's declaration, and a sentence for each omission.

    The declaration omits sections that the caller may not list or the server does not support, and subscriptions whose
    queue or topic no longer exists.
    """
    sections: dict[str, Any] = {}
    notes: list[str] = []
    for make in KINDS:
        kind = make(client, limits, {}, Mode(prune=True))
        try:
            found = kind.export(kind.read())
        except (NotAuthorized, *MISSING_ERRORS) as error:
            if isinstance(error, NotAuthorized) and make in COMMON_KINDS:
                raise
            reason = "this caller may not list" if isinstance(error, NotAuthorized) else "this server does not support"
            notes.append(f"The file omits {kind.section}, which {reason}.")
            continue
        if make is Subscriptions:
            known = {(each, name) for each in ("queues", "topics") for name in sections.get(each, ())}
            alone = [each for each in found if not {("queues", each.queue), ("topics", each.topic)} & known]
            found = [each for each in found if each not in alone]
            sources = [f"queue {each.queue}" if each.queue else f"topic {each.topic}" for each in alone]
            notes += [f"The file omits a subscription, because its {source} no longer exists." for source in sources]
        if found:
            sections[kind.section] = found
    return Declaration(version=FILE_VERSION, **sections), notes
