# SPDX-License-Identifier: Apache-2.0
"""Assignment of SQS account ids to projects. An account id has twelve digits and never changes."""

import re
import threading
from hashlib import sha256
from typing import Final

from cachetools import FIFOCache

from zq.clock import Clock
from zq.model.documents import DocumentRef
from zq.storage.api import Storage

# Matches an account id.
ACCOUNT: Final = re.compile(r"[0-9]{12}", re.ASCII)
# Number of possible account ids.
ACCOUNTS: Final = 10**12
# Kind of the documents that map accounts to projects, and projects to accounts.
KIND: Final = "sqs-account"
# Maximum number of projects in a process's cache.
MAX_CACHED: Final = 10_000


class Accounts:
    """Account registry of all projects. A project whose id has twelve digits is its own account."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._lock = threading.Lock()
        self._known: FIFOCache[str, str] = FIFOCache(MAX_CACHED)

    def of(self, project: str) -> str:
        """Return the project's account id, and assign one on first use."""
        account = self._known.get(project)
        if account is None:
            account = project if ACCOUNT.fullmatch(project) else self._read(project) or self._assign(project)
            with self._lock:
                self._known[project] = account
        return account

    def project_of(self, account: str) -> str:
        """Return the project that owns the account, or "" if the account is not assigned."""
        return self._read(account) or (account if self._storage.queues.list(account, "", 1).items else "")

    def _read(self, name: str) -> str:
        document = self._documents.get(DocumentRef("", KIND, name), self._clock.now())
        return document.value.decode() if document else ""

    def _assign(self, project: str) -> str:
        """Assign the first free account id, starting at the project's hash, which is the same on every server."""
        number = int.from_bytes(sha256(project.encode()).digest()) % ACCOUNTS
        while True:
            account = f"{number:012d}"
            if not self.project_of(account):
                self._write(account, project)
            if self._read(account) == project:
                self._write(project, account)
                return account
            number = (number + 1) % ACCOUNTS

    def _write(self, name: str, value: str) -> None:
        """Create the document if it does not exist."""
        self._documents.put(DocumentRef("", KIND, name), value.encode(), self._clock.now(), expected="")
