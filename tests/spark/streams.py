# SPDX-License-Identifier: Apache-2.0
"""Streams from a queue to another one, and the bodies that arrive."""

from typing import Any, Final

from zq.client import Client

# Seconds that a busy machine may need until a stream has made progress.
SLOW: Final = 240
# Spark gives the Python process of a stream ten seconds to connect, and no setting changes that.
LATE: Final = "Python worker"


def taking(spark: Any, options: dict[str, str], **more: Any) -> Any:
    """A stream that claims messages of the queue ``in``."""
    given = {"consumer": "etl", "queue": "in", **more}
    return spark.readStream.format("zq").options(**{**options, **given}).load()


def writing(frame: Any, options: dict[str, str], **more: Any) -> Any:
    """A writer of the frame to the queue ``out``."""
    return frame.writeStream.format("zq").options(**options, queue="out", **more)


def bodies(client: Client, queue: str = "out") -> list[Any]:
    return sorted(message.body for message in client.queue(queue).list())


def finished(writer: Any, tries: int = 5) -> None:
    """Run a stream until nothing is left, and start it again if its Python process was late; raise its error."""
    for left in reversed(range(tries)):
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(SLOW), query.status
            return
        except Exception as error:
            if left == 0 or f"{LATE} failed to connect back" not in str(error):
                raise
        finally:
            query.stop()
