# SPDX-License-Identifier: Apache-2.0
"""Streams from one queue to another, and the bodies that arrive."""

from collections.abc import Callable
from typing import Any, Final

from tests.servers import wait_for
from zq.client import Client

# Seconds that a stream may take to make progress on a busy machine.
SLOW: Final = 240
# Spark gives the Python process of a stream ten seconds to connect, and no setting changes that.
LATE: Final = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")
# Number of attempts to start a stream on a slow machine.
TRIES: Final = 6


def taking(spark: Any, options: dict[str, str], **more: Any) -> Any:
    """Return a stream that claims messages of the queue ``in``."""
    given = {"consumer": "etl", "queue": "in", **more}
    return spark.readStream.format("zq").options(**{**options, **given}).load()


def writing(frame: Any, options: dict[str, str], **more: Any) -> Any:
    """Return a writer of the frame to the queue ``out``."""
    return frame.writeStream.format("zq").options(**options, queue="out", **more)


def bodies(client: Client, queue: str = "out") -> list[Any]:
    return sorted(message.body for message in client.queue(queue).list())


def finished(writer: Any) -> None:
    """Run a stream until all messages are processed.

    It is restarted if its Python process was late; other errors are raised.
    """
    for left in reversed(range(TRIES)):
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(SLOW), query.status
            return
        except Exception as error:
            if left == 0 or not is_late(error):
                raise
        finally:
            query.stop()


def started(writer: Any, reached: Callable[[], bool], what: str) -> Any:
    """Start a stream, wait until ``reached`` is true, and return the query.

    The stream is restarted if its Python process was late.
    """
    for _ in range(TRIES):
        query = writer.start()
        try:
            wait_for(lambda query=query: reached() or not query.isActive, SLOW, what)
        except BaseException:
            query.stop()
            raise
        if query.isActive:
            return query
        assert is_late(query.exception()), query.exception()
    raise AssertionError(f"The Python process of the stream was late {TRIES} times.")


def is_late(error: object) -> bool:
    """Return whether a query failed because its Python process took too long to start."""
    return any(sentence in str(error) for sentence in LATE)
