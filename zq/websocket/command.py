# SPDX-License-Identifier: Apache-2.0
"""``zq-websocket``: a process that serves WebSocket alone, on a store that other servers may share."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

PRIVATE: Final = 0o077
EMBEDDED: Final = (
    " An embedded store is one process's: set [websocket] port in the configuration of zq-server, which then serves "
    "WebSocket itself."
)
DEFAULT_PORT: Final = "9000"


def main(arguments: Sequence[str] | None = None) -> int:
    """``zq-websocket``: returns the exit code."""
    try:
        from zq.websocket import running
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        return _refuse(f"The package {error.name} is missing: pip install 'zq-queue[server,websocket]' brings it.")
    from zq.errors import StartRefused, Unavailable

    os.umask(PRIVATE)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        running.run(sys.argv[1:] if arguments is None else arguments, ended)
    except (StartRefused, Unavailable) as refusal:
        return _refuse(f"{refusal}{EMBEDDED if running.is_embedded() else ''}")
    return 0


def _refuse(sentence: str) -> int:
    from zq.logs import without_secrets

    print(f"zq-websocket: {without_secrets(sentence)}", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main())
