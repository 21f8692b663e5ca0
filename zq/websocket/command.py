# SPDX-License-Identifier: Apache-2.0
"""``zq-websocket``: a process that serves WebSocket alone, on a store that other servers may share."""

import sys
from collections.abc import Sequence

from zq.commands import Run, until_signal


def main(arguments: Sequence[str] | None = None) -> int:
    """``zq-websocket``: returns the exit code."""
    return until_signal("zq-websocket", "websocket", _load, arguments)


def _load() -> Run:
    from zq.websocket import running

    return running.run


if __name__ == "__main__":
    sys.exit(main())
