# SPDX-License-Identifier: Apache-2.0
"""Draining: before a server stops, it reports that it is not ready and finishes its requests.

``zq-server drain`` starts draining through the control socket. The server then continues to serve until SIGTERM. There
is no HTTP route for draining: a request through a load balancer would drain an arbitrary server.
"""

import argparse
import mmap
import time
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.json import Decoder

from zq import wire
from zq.errors import StartRefused
from zq.serving import control, lifecycle

# Maximum number of workers whose requests are counted: the maximum of [server] workers.
MAX_WORKERS: Final = 256
# Size in bytes of a number in shared memory.
NUMBER_SIZE: Final = 8
# Seconds without a request after which a server is idle.
IDLE_SECONDS: Final = 1.0
# Seconds between two checks of whether the server is idle.
CHECK_INTERVAL: Final = 0.05
# Path of the request through the control socket.
PATH: Final = "/drain"
# Default of --wait in seconds.
DEFAULT_WAIT: Final = 25
# Maximum of --wait in seconds.
MAX_WAIT: Final = 3600


class Drain:
    """The drain state and request counts of a server, stored in shared memory.

    Processes that are forked later use the same memory.
    """

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, NUMBER_SIZE * (1 + 2 * MAX_WORKERS))).cast("Q")

    @property
    def is_draining(self) -> bool:
        return bool(self._numbers[0])

    def set(self, is_draining: bool) -> None:
        self._numbers[0] = is_draining

    def is_leaving(self) -> bool:
        """Return whether clients must use another server, because this server drains or this process stops."""
        return self.is_draining or lifecycle.is_stopping()

    def counter(self, worker: int) -> "RequestCounter":
        """Return the request counter of a new worker. A previous worker with this number must have ended."""
        return RequestCounter(self._numbers[1 + 2 * worker : 3 + 2 * worker])

    def wait_until_idle(self, seconds: float, counts: bool = True) -> int | None:
        """Wait until the server is idle, draining is cancelled, or ``seconds`` have passed.

        The server is idle if no request has been in progress for ``IDLE_SECONDS`` seconds. Return the number of
        requests that are still in progress. If ``counts`` is false, the HTTP server does not count requests: the method
        does not detect an idle server, and returns ``None``.
        """
        now = began = quiet_since = time.monotonic()
        begun, in_progress = self._requests()
        while (
            self.is_draining
            and now < began + seconds
            and (in_progress or now < quiet_since + IDLE_SECONDS or not counts)
        ):
            time.sleep(CHECK_INTERVAL)
            former, now = begun, time.monotonic()
            begun, in_progress = self._requests()
            if in_progress or begun != former:
                quiet_since = now
        return in_progress if counts else None

    def _requests(self) -> tuple[int, int]:
        """Return the number of requests begun so far, and the number of requests in progress."""
        # Read the ended requests first, so that a request that begins and ends between the reads is in progress.
        ended = sum(self._numbers[2::2])
        begun = sum(self._numbers[1::2])
        return begun, begun - ended


class RequestCounter:
    """The numbers of requests that one worker has begun and ended."""

    def __init__(self, numbers: memoryview) -> None:
        self._numbers = numbers
        self._begun = self._ended = numbers[0] = numbers[1] = 0

    def begin(self) -> None:
        self._begun += 1
        self._numbers[0] = self._begun

    def end(self) -> None:
        self._ended += 1
        self._numbers[1] = self._ended


class DrainRequest(Struct, forbid_unknown_fields=True):
    """The body of a request that starts or cancels draining.

    If ``wait`` is ``None``, the request cancels draining. Otherwise, the request starts draining. The server then
    responds when it is idle, or after ``wait`` seconds at the latest.
    """

    wait: Annotated[int, Meta(ge=0, le=MAX_WAIT)] | None


_decoder: Final = Decoder(DrainRequest)


class DrainControl:
    """The control socket operation that starts or cancels draining."""

    def __init__(self, drain: Drain, counts: bool) -> None:
        self._drain = drain
        self._counts = counts

    def __call__(self, body: bytes) -> dict[str, int | None]:
        given = wire.decode(_decoder, body)
        self._drain.set(given.wait is not None)
        in_progress = None if given.wait is None else self._drain.wait_until_idle(given.wait, self._counts)
        return {"is_draining": self._drain.is_draining, "in_progress": in_progress}


def run(args: argparse.Namespace, socket: str) -> int:
    """Run ``zq-server drain`` and return its exit code. ``socket`` is "" if the server has no control socket."""
    if args.undo and args.wait is not None:
        raise StartRefused("--undo cannot be combined with --wait.")
    if not socket:
        raise StartRefused(
            "drain needs the server's control socket: set [server] control to a path. Or set [server] drain_delay, "
            "so that the server drains after SIGTERM."
        )
    wait = None if args.undo else DEFAULT_WAIT if args.wait is None else args.wait
    answer = control.operate(socket, PATH, {"wait": wait}, control.TIMEOUT + (wait or 0))
    if not answer["is_draining"]:
        print("The server is not draining.")  # noqa: T201
        return int(wait is not None)  # while this command waited, another one ended draining
    if answer["in_progress"] == 0:
        print("The server is draining: /readyz answers 503, and no request is in progress.")  # noqa: T201
    else:
        count = "unknown" if answer["in_progress"] is None else f"{answer['in_progress']:,}"
        print(f"The server is draining: /readyz answers 503. Requests in progress after {wait} s: {count}.")  # noqa: T201
    return 0
