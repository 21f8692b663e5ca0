# SPDX-License-Identifier: Apache-2.0
"""``zq-deliver``: a process that delivers to subscribers and serves nobody, on a store that servers share."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

PRIVATE: Final = 0o077


def main(arguments: Sequence[str] | None = None) -> int:
    """``zq-deliver``: returns the exit code."""
    try:
        from zq.delivery import process
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        return _refuse(f"The package {error.name} is missing: pip install 'zq-queue[server,delivery]' brings it.")
    from zq.errors import StartRefused, Unavailable

    os.umask(PRIVATE)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        process.run(sys.argv[1:] if arguments is None else arguments, ended)
    except (StartRefused, Unavailable) as refusal:
        return _refuse(str(refusal))
    return 0


def _refuse(sentence: str) -> int:
    from zq.logs import without_secrets

    print(f"zq-deliver: {without_secrets(sentence)}", file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main())
