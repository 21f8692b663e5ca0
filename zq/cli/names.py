# SPDX-License-Identifier: Apache-2.0
"""Names of queues and topics: completed by a shell, and what is said of one that does not exist."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Literal, TypeVar

import click
from click.shell_completion import get_completion_class

from zq.cli.session import Command, Session, given
from zq.client.warnings import did_you_mean
from zq.errors import NotFound, ZqError

T = TypeVar("T")
Kind = Literal["queues", "topics"]
# Names that a completion offers at most.
MAX_OFFERED: Final = 200
# Names of a project that are compared with a wrong one at most.
MAX_COMPARED: Final = 500


def names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes names of ``queues`` or ``topics``; silently none if the server cannot be asked."""

    def complete(context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
        session = Session({**given(context), "retry": 0.0})
        try:
            listed = getattr(session.client, kind)(name=prefix or None, page=None)
            found = (entry.name for entry in listed if entry.name.startswith(prefix))
            return [name for name, _ in zip(found, range(MAX_OFFERED), strict=False)]
        except (ZqError, click.UsageError):
            return []
        finally:
            session.close()

    return complete


def name_argument(parameter: str, kind: str, **options: Any) -> Callable[[Any], Any]:
    """An argument that is the name of one of the ``queues`` or ``topics``."""
    return click.argument(parameter, shell_complete=names(kind), **options)


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that teaches a shell to complete.

    For bash: put eval "$(zq completion bash)" into ~/.bashrc.
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(context.find_root().command, {}, "zq", "_ZQ_COMPLETE").source())


def missing(session: Session, name: str, kind: Kind = "queues") -> NotFound:
    """The error for a queue or a topic that does not exist."""
    page = session.client.limits()["max_queues_per_page"]
    listed = session.client.queues(page=page) if kind == "queues" else session.client.topics(page=page)
    ending = did_you_mean(name, [entry.name for entry in islice(listed, MAX_COMPARED)])
    return NotFound(f"There is no {kind[:-1]} {name} in the project{ending}")


def check_exists(session: Session, name: str, kind: Kind = "queues") -> None:
    """Raises ``NotFound`` for a queue or a topic that does not exist."""
    handle = session.queue(name) if kind == "queues" else session.client.topic(name)
    if not handle.exists():
        raise missing(session, name, kind)


def not_missing(session: Session, queue: str, found: Iterable[T]) -> Iterator[T]:
    """Yields what was found in a queue. Raises ``NotFound`` if there is nothing and the queue does not exist."""
    empty = True
    for item in found:
        empty = False
        yield item
    if empty:
        check_exists(session, queue)
