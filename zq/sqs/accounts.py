# SPDX-License-Identifier: Apache-2.0
"""The accounts of SQS: twelve digits for each project, which it keeps for ever."""

import re
import threading
from hashlib import sha256
from typing import Final

from cachetools import FIFOCache

from zq.clock import Clock
from zq.model.documents import DocumentRef
from zq.storage.api import Storage

# An account.
ACCOUNT: Final = re.compile(r"[0-9]{12}", re.ASCII)
# How many there are.
ACCOUNTS: Final = 10**12
# The kind of the documents that say whose an account is, under its digits, and which a project has, under its id.
KIND: Final = "sqs-account"
# Projects whose accounts one process remembers.
MOST_KNOWN: Final = 10_000


class Accounts:
    """Which account each project has. A project whose id is twelve digits is its own."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._lock = threading.Lock()
        self._known: FIFOCache[str, str] = FIFOCache(MOST_KNOWN)

    def of(self, project: str) -> str:
        """The project's account, which it gets now if it has none."""
        account = self._known.get(project)
        if account is None:
            account = project if ACCOUNT.fullmatch(project) else self._read(project) or self._take(project)
            with self._lock:
                self._known[project] = account
        return account

    def project_of(self, account: str) -> str:
        """Whose account it is; "" if no project has it."""
        return self._read(account) or (account if self._storage.queues.list(account, "", 1).items else "")

    def _read(self, name: str) -> str:
        document = self._documents.get(DocumentRef("", KIND, name), self._clock.now())
        return document.value.decode() if document else ""

    def _take(self, project: str) -> str:
        """The first account from the project's own place on that no other one has: the same for all servers."""
        place = int.from_bytes(sha256(project.encode()).digest()) % ACCOUNTS
        while True:
            account = f"{place:012d}"
            if not self.project_of(account):
                self._write(account, project)
            if self._read(account) == project:
                self._write(project, account)
                return account
            place = (place + 1) % ACCOUNTS

    def _write(self, name: str, value: str) -> None:
        """Unless something is there."""
        self._documents.put(DocumentRef("", KIND, name), value.encode(), self._clock.now(), expected="")
