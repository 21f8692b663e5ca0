# SPDX-License-Identifier: Apache-2.0
"""A ``zq-server`` that is killed by SIGKILL before a call of a function; ``kill_at`` selects the call."""

import itertools
import os
import pkgutil
import signal
import sys

from zq.serving import server

MODULE = "tests.faults.killed"
VARIABLE = "ZQ_TEST_KILL"


def kill_at(owner: str, name: str, call: int) -> dict[str, str]:
    """Return the environment of a process of this module that is killed before the given call.

    ``owner`` is the module or class of the function, such as ``zq.storage:Store``. Calls are counted from 1.
    """
    return {**os.environ, VARIABLE: f"{owner} {name} {call}"}


def main() -> int:
    owner, name, call = os.environ[VARIABLE].split()
    place, calls = pkgutil.resolve_name(owner), itertools.count(1)
    former = getattr(place, name)

    def call_or_die(*given: object, **named: object) -> object:
        if next(calls) == int(call):
            os.kill(os.getpid(), signal.SIGKILL)
        return former(*given, **named)

    setattr(place, name, call_or_die)
    return server.main()


if __name__ == "__main__":
    sys.exit(main())
