# SPDX-License-Identifier: Apache-2.0
"""Fences: a document for each, with the last epoch given out.

Whoever checks a fence writes its document too, in the transaction of what the fence protects. So an epoch given out
meanwhile is either before that transaction, which then finds it, or after it.
"""

from pymongo.errors import DuplicateKeyError

from zq.errors import Fenced
from zq.model import Fence
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.port import Port, Session


def advance(port: Port, project: str, name: str) -> int:
    """Give out the next epoch; the first is 1."""
    command: Document = {
        "query": _identity(project, name),
        "update": {"$inc": {"epoch": 1}},
        "upsert": True,
        "new": True,
    }
    while True:
        try:
            fence = port.modify(command) or {}
        except DuplicateKeyError:  # two made it at once
            continue
        return int(fence["epoch"])


def check(port: Port, session: Session, project: str, fence: Fence) -> None:
    """Raise ``Fenced`` unless the epoch is the last one given out, and still is when the transaction commits."""
    # Nothing given out yet is epoch 0. That document is made, so that the first epoch meets it.
    touched = {"$set": {"epoch": {"$ifNull": ["$epoch", 0]}, "checks": {"$add": [{"$ifNull": ["$checks", 0]}, 1]}}}
    command: Document = {"query": _identity(project, fence.name), "update": [touched], "upsert": True, "new": True}
    found = port.modify(command, session) or {}
    if found["epoch"] != fence.epoch:
        raise Fenced(f"The fence is at epoch {found['epoch']}; the request was made at another one.")


def _identity(project: str, name: str) -> Document:
    """The filter that finds it, or makes it."""
    shard = layout.project_prefix(project) + layout.text(name)
    return {"_id": "f" + shard, "s": shard}
