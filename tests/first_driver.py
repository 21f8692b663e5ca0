# SPDX-License-Identifier: Apache-2.0
"""A minimal driver: queues, messages, claims and documents, without any optional capability."""

from zq.model import Seconds
from zq.model.expiry import Expiry, Pace
from zq.storage import connect
from zq.storage.api import Defaults


class FirstStorage(Defaults):
    """A minimal storage that uses the controllers of the engine in memory."""

    def __init__(self) -> None:
        self._whole = whole = connect("memory:")
        self.queues, self.messages, self.claims = whole.queues, whole.messages, whole.claims
        self.documents = whole.documents

    def now(self) -> Seconds:
        return self._whole.now()

    def ping(self) -> None:
        self._whole.ping()

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        return self._whole.maintain(now, expiry, pace)

    def close(self) -> None:
        self._whole.close()
