# SPDX-License-Identifier: Apache-2.0
"""The ``zq`` command-line program. Reference: ``api-ref/cli.md``."""

import io
import os
import sys


def main() -> None:
    try:
        open_streams()
        try:
            from zq.cli.root import cli

            cli()
        except ModuleNotFoundError as error:
            sys.exit(f"zq: The package {error.name} is missing. Install it with pip install 'zq-queue[cli]'.")
    except KeyboardInterrupt:
        sys.exit(130)  # the value of ``failures.INTERRUPTED``, which may not be imported yet


def open_streams() -> None:
    """Replace closed standard streams with ``/dev/null``, and escape characters that a stream cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
