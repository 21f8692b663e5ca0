# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server`` where the packages of the server may be missing: it says so in a sentence."""

import signal
import sys


def main() -> int:
    """Run ``zq.serving.server.main``; return 2 after a sentence if a package that it needs is not installed."""
    # Imports take long, and a reload must not end a server meanwhile. The server unblocks the signal once it serves.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        from zq.serving.server import main as serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        sentence = f"The package {error.name} is missing: pip install 'zq-queue[server,rocksdb]' brings it."
        print(f"zq-server: {sentence}", file=sys.stderr)  # noqa: T201
        return 2
    return serve()
