# SPDX-License-Identifier: Apache-2.0
"""Exchange of reports among the processes that share a store."""

from typing import Final, Generic, TypeVar
from uuid import uuid4

import msgspec

from zq.model import Seconds
from zq.model.documents import DocumentRef
from zq.storage.api import DocumentController

R = TypeVar("R")
# Maximum number of processes whose reports are read.
MAX_PROCESSES: Final = 256


class Reports(Generic[R]):
    """Reports that processes exchange. Each process publishes one report as a document, and reads all reports."""

    def __init__(self, documents: DocumentController, kind: str, ttl: float, report_type: type[R]) -> None:
        self._documents = documents
        self._ttl = ttl
        self._decoder = msgspec.json.Decoder(report_type)
        self._own = DocumentRef("", kind, uuid4().hex)

    def publish(self, report: bytes, now: Seconds) -> None:
        self._documents.put(self._own, report, now, expires=now + self._ttl)

    def read(self, now: Seconds) -> dict[str, R]:
        """Return the reports of all processes, including this one, by process ID.

        Raises ``msgspec.MsgspecError`` if another version of zq has written a report that cannot be decoded.
        """
        page = self._documents.list("", self._own.kind, "", "", MAX_PROCESSES, now)
        return {document.ref.name: self._decoder.decode(document.value) for document in page.items}

    def read_others(self, now: Seconds) -> list[R]:
        return [report for process, report in self.read(now).items() if process != self._own.name]
