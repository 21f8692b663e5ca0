# SPDX-License-Identifier: Apache-2.0
"""``zq-deliver``: a process that delivers notifications for servers with a shared store."""

import sys
from collections.abc import Sequence

from zq.serving.commands import Run, run_until_signal


def main(arguments: Sequence[str] | None = None) -> int:
    return run_until_signal("zq-deliver", "delivery", _load, arguments)


def _load() -> Run:
    from zq.serving import delivering

    return delivering.run


if __name__ == "__main__":
    sys.exit(main())
