# SPDX-License-Identifier: Apache-2.0
"""Transactions whose process is gone, or lost its connection half-way.

The server keeps what such a transaction has locked for a minute (``transactionLifetimeLimitSeconds``): a queue's
counter, or the messages at its head. No living process leaves a transaction idle for longer than a moment; one that
was merely slow finds its transaction gone and repeats it.
"""

from typing import Final

from pymongo import MongoClient

from zq.storage.mongodb.layout import Document

IDLE: Final = 2_000_000
"""Microseconds after which an idle transaction is taken for abandoned."""


def end_orphans(client: MongoClient[Document]) -> int:
    """End the abandoned transactions of this application's servers; returns how many. Needs no rights of its own."""
    application = client.options.pool_options.appname
    abandoned = {
        "type": "idleSession",
        "appName": application,
        "transaction.timeInactiveMicros": {"$gt": IDLE},
    }
    own = {"$currentOp": {"allUsers": False, "idleSessions": True}}
    sessions = [{"id": found["lsid"]["id"]} for found in client.admin.aggregate([own, {"$match": abandoned}])]
    if sessions:
        client.admin.command({"killSessions": sessions})
    return len(sessions)
