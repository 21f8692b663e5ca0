# SPDX-License-Identifier: Apache-2.0
"""The command ``zq move-queue``, which moves a queue to another pool."""

import time
from typing import Any, Final

import click

from zq.cli.failures import Failure, exit_code
from zq.cli.names import name_argument
from zq.cli.output import note
from zq.cli.session import Command, Session, pass_session
from zq.errors import MoveRefused

# Seconds between two requests for the state of the move.
INTERVAL: Final = 0.5
# Phases in which a move has ended.
ENDED: Final = ("done", "failed", "cancelled")


@click.command("move-queue", cls=Command)
@name_argument("name", "queues")
@click.option("--to", "pool", required=True, metavar="POOL", help="The pool to which the queue moves.")
@click.option("--wait", is_flag=True, help="Wait until the move has ended, and show its progress.")
@pass_session
def move_queue(session: Session, name: str, pool: str, wait: bool) -> None:
    """Move a queue to another pool while clients use the queue. Requires the role of an administrator.

    The queues that must be in the same pool, such as its dead-letter queue, move with it. First, the command shows
    for about how many seconds the queues will accept no changes.
    """
    move = session.client.move_queue(name, pool)
    rate = f"{move['estimate']} rate"
    note(f"{move['messages']:,} messages. About {move['estimated_seconds']:,} seconds without changes ({rate}).")
    shown = ""
    while wait and move["phase"] not in ENDED:
        time.sleep(INTERVAL)
        move = session.client.queue_move(pool, move["id"])
        if (progress := f"{move['phase']}: {move['copied']} items copied") != shown:
            shown = progress
            note(f"{progress}.")
    session.out.result(move)
    _check_end(move)


def _check_end(move: dict[str, Any]) -> None:
    """Raise ``Failure`` if the move has failed or was cancelled."""
    if move["phase"] in ("failed", "cancelled"):
        raise Failure(move.get("error") or "The move was cancelled.", exit_code(MoveRefused()))
