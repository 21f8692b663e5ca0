# SPDX-License-Identifier: Apache-2.0
"""An example store: the ordered engine over one SQLite file, ``sqlite:/absolute/path``.

``api-ref/write-a-driver.md`` explains it. The store is complete and durable, and shows what the engine needs from a
store. zq does not offer it, because each write syncs separately; in the embedded store many writes share a sync.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from zq.errors import StartRefused, Unavailable
from zq.model import levels
from zq.model.expiry import Expiry
from zq.model.levels import Initial
from zq.model.stats import Measure
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.ordered.store import Housekeeping, Range, Store, Write

SCHEME: Final = "sqlite:"
# Number of items in the first and the largest step of a scan; small first steps help scans that end early.
FIRST: Final = 8
MOST: Final = 512
# Number of keys in one statement, below SQLite's limit of 32,766 parameters.
TOGETHER: Final = 1000


def connect(uri: str, expiry: Expiry | None = None, initial: Initial = levels.initial) -> OrderedStorage:
    """Open the store in a file, which is created if necessary. Raises ``StartRefused`` with a message."""
    path = uri.removeprefix(SCHEME)
    if not uri.startswith(SCHEME) or not path.startswith("/"):
        raise StartRefused(f"A SQLite store is sqlite:/absolute/path; it is {uri!r}.")
    try:
        store = SqliteStore(path)
    except Unavailable as error:
        raise StartRefused(f"The SQLite store {path} cannot be opened: {error.__cause__}.") from error
    return OrderedStorage(lambda: store, expiry, store, initial=initial)


class SqliteStore(Store, Housekeeping):
    """A store with a table for each family in WAL mode, so that readers block no writer.

    Each thread has a connection.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._own = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._writing = threading.Lock()
        with self._connection() as connection:
            for family in layout.FAMILIES:
                connection.execute(f'CREATE TABLE IF NOT EXISTS "{family}" (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID')

    def get(self, family: str, key: bytes) -> bytes | None:
        [value] = self.get_many(family, [key])
        return value

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for at in range(0, len(keys), TOGETHER):
            some = keys[at : at + TOGETHER]
            places = ",".join("?" * len(some))
            found.update(self._read(f'SELECT k, v FROM "{family}" WHERE k IN ({places})', some))
        return [found.get(key) for key in keys]

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        size, order = FIRST, "DESC" if backwards else "ASC"
        while lower < upper:
            words = f'SELECT k, v FROM "{family}" WHERE k >= ? AND k < ? ORDER BY k {order} LIMIT {size}'
            found = self._read(words, (lower, upper))
            yield from found
            if len(found) < size:
                return
            last = found[-1][0]
            lower, upper = (lower, last) if backwards else (last + b"\0", upper)
            size = min(MOST, 4 * size)

    def write(self, writes: Sequence[Write], gone: Sequence[Range] = ()) -> None:
        """Write in one transaction, which is on disk when the method returns."""
        with self._writing, self._connection() as connection:
            for family, lower, upper in gone:
                connection.execute(f'DELETE FROM "{family}" WHERE k >= ? AND k < ?', (lower, upper))
            for family, key, value in writes:
                if value is None:
                    connection.execute(f'DELETE FROM "{family}" WHERE k = ?', (key,))
                else:
                    connection.execute(f'REPLACE INTO "{family}" VALUES (?, ?)', (key, value))

    def wait_durable(self, always: bool = False) -> None:
        """Return at once, because ``write`` has already synced."""

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def measures(self) -> Iterator[Measure]:
        [[size]] = self._read("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()", ())
        yield Measure("store_bytes", size, (("part", "file"),))

    def _read(self, words: str, values: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        with self._connection() as connection:
            return connection.execute(words, values).fetchall()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Yield this thread's connection in a transaction, which is atomic. Raises ``Unavailable``."""
        try:
            if not hasattr(self._own, "connection"):
                self._own.connection = sqlite3.connect(self._path, check_same_thread=False)
                self._own.connection.execute("PRAGMA journal_mode = WAL")
                self._own.connection.execute("PRAGMA synchronous = FULL")
                self._all.append(self._own.connection)
            with self._own.connection as connection:
                yield connection
        except sqlite3.Error as error:
            raise Unavailable from error
