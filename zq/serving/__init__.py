# SPDX-License-Identifier: Apache-2.0
"""The entry point of ``zq-server``, which reports missing packages."""

import signal
import sys


def main() -> int:
    """Run ``zq-server`` and return its exit code. If a package is not installed, print an error and return 2."""
    # SIGHUP must not end the process during its imports. The server unblocks the signal once it serves.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from zq.serving.server import main as serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        sentence = f"The package {error.name} is missing. Install it with pip install 'zq-queue[server,rocksdb]'."
        print(f"zq-server: {sentence}", file=sys.stderr)  # noqa: T201
        return 2
    return serve()
