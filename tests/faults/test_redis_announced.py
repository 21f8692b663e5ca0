# SPDX-License-Identifier: Apache-2.0
"""Entries of open commits on Redis: an entry that is registered again during a check is kept."""

import pytest

from tests.stores import RedisServer
from zq.model import Commit
from zq.storage import connect
from zq.storage.redis import transactions
from zq.storage.redis.layout import OPEN_KEY
from zq.storage.redis.store import Store

COMMIT = Commit(project="acme", producer="etl", batch=1, publish=["s"], settle=[], ttl=3600)
LATER = 10 * transactions.STALE_AFTER_MS


def entries(store: Store) -> int:
    return int(store.client.command(OPEN_KEY, b"ZCARD", OPEN_KEY))


def test_what_is_announced_anew_while_it_is_looked_at_stays(store: RedisServer, monkeypatch: pytest.MonkeyPatch):
    """A producer may repeat its commit a minute later; other servers must find the commit that is open from then on."""
    storage = connect(store.uri)
    ours = storage.transactions._store
    transactions.register(ours, COMMIT, 1)
    look = transactions._find_open

    def meanwhile(*args: object) -> tuple[bytes | None, int]:
        found = look(*args)
        transactions.register(ours, COMMIT, LATER)
        return found

    monkeypatch.setattr(transactions, "_find_open", meanwhile)
    assert not transactions.find_unfinished_commits(ours, LATER)
    assert entries(ours) == 1
    monkeypatch.undo()
    assert not transactions.find_unfinished_commits(ours, LATER + transactions.STALE_AFTER_MS)
    assert entries(ours) == 1
    assert not transactions.find_unfinished_commits(ours, LATER + transactions.STALE_AFTER_MS + 1)
    assert entries(ours) == 0
    storage.close()
