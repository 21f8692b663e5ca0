# SPDX-License-Identifier: Apache-2.0
"""Shell completion of queue and topic names, and errors for missing queues."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import click
from click.shell_completion import get_completion_class

from zq.cli.session import Command, Session, option_values
from zq.errors import ZqError

T = TypeVar("T")
# Maximum number of names that the completion offers.
MAX_OFFERED: Final = 200


def name_completer(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a shell completion function for queue or topic names. It offers no names if the server is down."""

    def complete(context: click.Context, _parameter: click.Parameter, prefix: str) -> list[str]:
        session = Session({**option_values(context), "retry": 0.0})
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
    """Return a decorator that adds an argument for a queue or topic name, with shell completion."""
    return click.argument(parameter, shell_complete=name_completer(kind), **options)


@click.command("completion", cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    For bash, add eval "$(zq completion bash)" to ~/.bashrc.
    """
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(context.find_root().command, {}, "zq", "_ZQ_COMPLETE").source())


def check_not_missing(session: Session, queue: str, found: Iterable[T]) -> Iterator[T]:
    """Yield the items in ``found``. If ``found`` is empty and the queue does not exist, raise ``NotFound``."""
    empty = True
    for item in found:
        empty = False
        yield item
    if empty:
        session.check_exists(queue)
