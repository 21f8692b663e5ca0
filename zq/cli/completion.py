# SPDX-License-Identifier: Apache-2.0
"""Arguments that are names at the server, which a shell can complete; and the scripts that teach a shell to."""

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import get_completion_class

from zq.cli.options import given
from zq.cli.session import Command, Session
from zq.errors import ZqError

MOST = 200


def names(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes names of ``queues`` or ``topics``; silently none if the server cannot be asked."""

    def complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
        session = Session({**given(context), "retry": 0.0})
        try:
            listed = getattr(session.client, kind)(name=begun or None, page=None)
            found = (entry.name for entry in listed if entry.name.startswith(begun))
            return [name for name, _ in zip(found, range(MOST), strict=False)]
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
