# SPDX-License-Identifier: Apache-2.0
"""The command line ``zq``. Reference: ``api-ref/cli.md``."""

import sys


def main() -> None:
    """Run it with the arguments of this process."""
    try:
        from zq.cli.root import cli
    except ModuleNotFoundError as error:
        sys.exit(f"zq: The package {error.name} is missing: pip install 'zq[cli]' brings it.")
    cli()
