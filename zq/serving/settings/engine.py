# SPDX-License-Identifier: Apache-2.0
"""Which HTTP server serves, and how many requests may wait in it: some hold a thread each."""

from importlib.util import find_spec
from typing import Any, Final

from zq.errors import StartRefused

# Default of max_waiters where each holds a thread.
MAX_WAITERS: Final = 40
# Default of max_streams where each holds a thread.
MAX_STREAMS: Final = 16
# Default of max_waiters where they hold none.
WAITERS_WITHOUT_THREADS: Final = 10_000
# Default of max_streams where they hold none.
STREAMS_WITHOUT_THREADS: Final = 2_000
# Default of threads where a request holds one only while it runs, and where a waiting request holds one too.
THREADS: Final = 16
THREADS_WITH_WAITERS: Final = 64
# Threads that are never lent to requests that wait, nor to streams.
THREADS_FOR_WORK: Final = 8


def engine_of(chosen: str, certificates: str) -> str:
    """The one that is chosen; of both, the faster one, if it is there and can do what is asked."""
    if chosen != "auto":
        return chosen
    return "granian" if find_spec("granian") is not None and not certificates else "gunicorn"


def places(server: dict[str, Any]) -> dict[str, int]:
    """Return how many threads work on requests, how many requests may wait, and how many streams may be open."""
    waiters, streams, threads = server["max_waiters"], server["max_streams"], server["threads"]
    if server["engine"] != "granian":
        threads = threads or THREADS_WITH_WAITERS
        return {"threads": threads} | _lent(waiters, streams, threads)
    return {
        "threads": threads or THREADS,
        "max_waiters": WAITERS_WITHOUT_THREADS if waiters is None else waiters,
        "max_streams": STREAMS_WITHOUT_THREADS if streams is None else streams,
    }


def _lent(waiters: int | None, streams: int | None, threads: int) -> dict[str, int]:
    """How many threads requests that wait, and streams, may hold: as many as are chosen, if enough are left for others.

    Without a choice both get their defaults, or of the threads that there are the share that these have of each other.
    """
    most = threads - THREADS_FOR_WORK
    if (waiters or 0) + (streams or 0) > most:
        raise StartRefused(
            f"[server] max_waiters and max_streams together must be at most threads - {THREADS_FOR_WORK}, so that "
            f"requests that do not wait find a thread; they are {waiters or 0} and {streams or 0}, with {threads} "
            f"threads."
        )
    if streams is None:
        share = most * MAX_STREAMS // (MAX_WAITERS + MAX_STREAMS) if waiters is None else most - waiters
        streams = min(MAX_STREAMS, share)
    if waiters is None:
        waiters = min(MAX_WAITERS, most - streams)
    return {"max_waiters": waiters, "max_streams": streams}
