# SPDX-License-Identifier: Apache-2.0
"""The command ``zq-server`` where the packages of the server may be missing: it says so in a sentence."""

import sys


def main() -> int:
    """``zq.server.main``; 2 and a sentence if something that it needs is not installed."""
    try:
        from zq.server import main as serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        sentence = f"The package {error.name} is missing: pip install 'zq-queue[server,rocksdb]' brings it."
        print(f"zq-server: {sentence}", file=sys.stderr)  # noqa: T201
        return 2
    return serve()
