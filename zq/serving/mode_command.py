# SPDX-License-Identifier: Apache-2.0
"""``zq-server mode``: show or set the mode of a store (``normal``, ``no_posts`` or ``read_only``).

The mode applies to all servers on the store. If a server has the store open, the command uses the server's control
socket. If not, the command opens the store.
"""

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from msgspec import Struct
from msgspec.json import Decoder

from zq import wire
from zq.core.modes import Modes
from zq.errors import StartRefused, Unavailable
from zq.model.modes import Mode
from zq.serving import control

# Path of the operation of the control socket.
PATH: Final = "/mode"


class ModeChange(Struct, forbid_unknown_fields=True):
    """The body of a request that shows or sets the mode. If ``mode`` is ``None``, the request only shows the mode."""

    mode: Mode | None


_decoder: Final = Decoder(ModeChange)


class ModeControl:
    """The control socket operation that shows or sets the mode (``normal``, ``no_posts`` or ``read_only``)."""

    def __init__(self, modes: Modes) -> None:
        self._modes = modes

    def __call__(self, body: bytes) -> dict[str, object]:
        return _apply(self._modes, wire.decode(_decoder, body).mode)


def _apply(modes: Modes, mode: Mode | None) -> dict[str, object]:
    if mode is not None:
        modes.set(mode)
    else:
        modes.refresh(modes.has_low_space)
    return {"mode": modes.stored, "has_low_space": modes.has_low_space}


def run(args: argparse.Namespace, socket: str, open_modes: Callable[[], AbstractContextManager[Modes]]) -> int:
    """Run ``zq-server mode`` and return its exit code. ``open_modes`` is called if no server answers."""
    names = args.names
    if len(names) > 1 or (names and names[0] not in list(Mode)):
        raise StartRefused(
            f"The mode must be {', '.join(list(Mode)[:-1])} or {list(Mode)[-1]}: zq-server mode no_posts"
        )
    report = _ask(socket, Mode(names[0]) if names else None, open_modes)
    print(f"The mode is {report['mode']}.")  # noqa: T201
    if report["has_low_space"]:
        print("The store has little free disk space, so its server refuses posts.")  # noqa: T201
    return 0


def _ask(socket: str, mode: Mode | None, open_modes: Callable[[], AbstractContextManager[Modes]]) -> dict[str, object]:
    if socket:
        try:
            report: dict[str, object] = control.operate(socket, PATH, {"mode": mode})
            return report
        except Unavailable:
            pass  # no server has the store open
    with open_modes() as modes:
        return _apply(modes, mode)
