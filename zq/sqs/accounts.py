# SPDX-License-Identifier: Apache-2.0
"""SQS account ids of projects. An account id has twelve digits; a project keeps its account id forever."""

import math
import re
from hashlib import sha256
from typing import Final

from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.model.documents import DocumentRef
from zq.storage.api import Storage

ACCOUNT: Final = re.compile(r"[0-9]{12}", re.ASCII)
# Number of possible account ids.
ACCOUNTS: Final = 10**12
# Kind of the documents that map accounts to projects, and projects to accounts.
KIND: Final = "sqs-account"
# Maximum number of cached projects per process.
MAX_CACHED: Final = 10_000


class Accounts:
    """The account ids of all projects. A project id of twelve digits is also the project's account id."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._accounts = ReadThroughCache(self._read_or_assign, MAX_CACHED, math.inf)
        self.get_or_assign = self._accounts.get
        """Returns the project's account id. On the first call for a project, assigns one."""

    def find_project(self, account: str) -> str:
        """Return the project of an account id, or "" if no project has this id."""
        return self._read(account) or (account if self._storage.queues.list(account, "", 1).items else "")

    def _read_or_assign(self, project: str) -> str:
        return project if ACCOUNT.fullmatch(project) else self._read(project) or self._assign(project)

    def _read(self, name: str) -> str:
        document = self._documents.get(DocumentRef("", KIND, name), self._clock.now())
        return document.value.decode() if document else ""

    def _assign(self, project: str) -> str:
        """Assign an unused account id to the project, and return the id.

        The first candidate is a hash of the project id. If a candidate is in use, the next candidate is the next
        number. If two servers assign an id to the same project at the same time, they therefore choose the same id.
        """
        number = int.from_bytes(sha256(project.encode()).digest()) % ACCOUNTS
        while True:
            account = f"{number:012d}"
            if not self.find_project(account):
                self._write(account, project)
            if self._read(account) == project:
                self._write(project, account)
                return account
            number = (number + 1) % ACCOUNTS

    def _write(self, name: str, value: str) -> None:
        # An empty ``expected`` only creates the document; an existing one stays unchanged.
        self._documents.put(DocumentRef("", KIND, name), value.encode(), self._clock.now(), expected="")
