# SPDX-License-Identifier: Apache-2.0
"""The default HTTP server, and the default numbers of threads, waiting requests and streams."""

from importlib.util import find_spec
from typing import Any, Final

from zq.errors import StartRefused
from zq.serving.settings.sections import ServerOptions

# Default of max_waiters with gunicorn, where each waiting request holds a thread.
MAX_WAITERS: Final = 40
# Default of max_streams with gunicorn, where each stream holds a thread.
MAX_STREAMS: Final = 16
# Default of max_waiters with Granian.
WAITERS_WITHOUT_THREADS: Final = 10_000
# Default of max_streams with Granian.
STREAMS_WITHOUT_THREADS: Final = 2_000
# Default of threads with Granian. One caller uses up to three quarters. With 16 connections, MongoDB accepts 1.3 times
# as many posts with 24 threads as with 16, and Redis up to 1.2 times as many. 32 threads are not faster.
THREADS: Final = 24
# Default of threads with gunicorn.
THREADS_WITH_WAITERS: Final = 64
# Threads reserved for requests that neither wait nor stream.
THREADS_FOR_WORK: Final = 8


def engine_of(chosen: str, certificates: str) -> str:
    """Return the HTTP server to use.

    "auto" selects Granian if it is installed and client certificates are not used, else gunicorn.
    """
    if chosen != "auto":
        return chosen
    return "granian" if find_spec("granian") is not None and not certificates else "gunicorn"


def allot_places(engine: str, server: ServerOptions) -> dict[str, Any]:
    """Return the numbers of threads, waiting requests and streams, with defaults for unset options."""
    waiters, streams, threads = server.max_waiters, server.max_streams, server.threads
    if engine != "granian":
        threads = threads or THREADS_WITH_WAITERS
        return {"threads": threads} | _thread_shares(waiters, streams, threads)
    return {
        "threads": threads or THREADS,
        "max_waiters": WAITERS_WITHOUT_THREADS if waiters is None else waiters,
        "max_streams": STREAMS_WITHOUT_THREADS if streams is None else streams,
    }


def _thread_shares(waiters: int | None, streams: int | None, threads: int) -> dict[str, int]:
    """Return how many waiting requests and how many streams may hold threads.

    ``THREADS_FOR_WORK`` threads stay free for other requests. Unset options get their defaults, reduced in proportion
    if there are too few threads. Raises ``StartRefused`` if the set options exceed the threads.
    """
    most = threads - THREADS_FOR_WORK
    if (waiters or 0) + (streams or 0) > most:
        raise StartRefused(
            f"[server] max_waiters + max_streams must be at most threads - {THREADS_FOR_WORK}, to keep threads for "
            f"other requests; they are {waiters or 0} and {streams or 0}, and threads is {threads}."
        )
    if streams is None:
        share = most * MAX_STREAMS // (MAX_WAITERS + MAX_STREAMS) if waiters is None else most - waiters
        streams = min(MAX_STREAMS, share)
    if waiters is None:
        waiters = min(MAX_WAITERS, most - streams)
    return {"max_waiters": waiters, "max_streams": streams}
