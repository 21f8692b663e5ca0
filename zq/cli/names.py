# SPDX-License-Identifier: Apache-2.0
"""Names of queues and topics: shell completion, and errors for missing ones."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import click
from click.shell_completion import get_completion_class

from zq.cli.session import Command, Session, given
from zq.errors import ZqError

T = TypeVar("T")
# Maximum number of names that a completion offers.
MAX_OFFERED: Final = 200


def names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes names of ``queues`` or ``topics``; without a server, it offers none."""

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
    """Return an argument for the name of a queue or topic, with completion."""
    return click.argument(parameter, shell_complete=names(kind), **options)


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash, add eval "$(zq completion bash)" to ~/.bashrc.
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(context.find_root().command, {}, "zq", "_ZQ_COMPLETE").source())


def not_missing(session: Session, queue: str, found: Iterable[T]) -> Iterator[T]:
    """Yield what was found in a queue. Raises ``NotFound`` if nothing was found and the queue does not exist."""
    empty = True
    for item in found:
        empty = False
        yield item
    if empty:
        session.check_exists(queue)
