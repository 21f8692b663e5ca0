# SPDX-License-Identifier: Apache-2.0
"""The Lua scripts, one per verb, as they are sent."""

from hashlib import sha1
from importlib.resources import files

from zq.storage.redis.layout import wire

SHARED = ("sequences", "shared")
FOLDER = files("zq.storage.redis")


class Script:
    """A script of the name. Its first line says with which flags it runs, so what it needs of others goes behind that:
    ``SHARED``, unless it stands ``alone``, and then ``parts``."""

    def __init__(self, name: str, *parts: str, alone: bool = False, confirmed: bool = True) -> None:
        self.name = name
        self.parts = parts if alone else (*SHARED, *parts)
        first, _, rest = read(name).partition("\n")
        source = "".join([f"{first}\n", *map(read, self.parts), rest])
        self.confirmed = confirmed and "no-writes" not in first
        """Whether replicas are to have what it writes, where that is asked for."""
        self.call = wire(b"EVALSHA", sha1(source.encode(), usedforsecurity=False).hexdigest().encode())
        """The front of the command for a server that knows the script."""
        self.load = wire(b"EVAL", source.encode())
        """The same for one that does not; it knows it then."""


def read(name: str) -> str:
    """The text of a script's file."""
    return FOLDER.joinpath(f"{name}.lua").read_text()


POST = Script("post", "conditions", "posting")
GET = Script("get")
LIST = Script("list")
DELETE = Script("delete", "finishing")
DELETE_MANY = Script("delete_many", "finishing")
POP = Script("pop", "finishing")
MOVE = Script("move", "finishing", "posting", "moving")
CLAIM = Script("claim", "conditions", "finishing", "posting", "moving")
CLAIM_GET = Script("claim_get")
RENEW = Script("renew", "conditions")
RELEASE = Script("release", "releasing")
SETTLE = Script("settle", "conditions", "finishing", "posting", "moving", "releasing")
HISTORY_LIST = Script("history_list", "finishing", "past")
HISTORY_ALL = Script("history_all", "finishing", "past")
HISTORY_GET = Script("history_get", "finishing", "past")
STAGE = Script("stage", "conditions", "staging")
STAGE_DROP = Script("stage_drop", "staging")
COMMIT = Script("commit", "conditions", "finishing", "posting", "moving", "staging", "publishing")
CARRY = Script("carry", "finishing", "posting", "moving", "staging", "publishing")
FENCE = Script("fence")
QUEUE_CREATE = Script("queue_create", "posting")
QUEUE_UPDATE = Script("queue_update")
QUEUE_LIST = Script("queue_list")
QUEUE_DELETE = Script("queue_delete")
QUEUE_PURGE = Script("queue_purge")
QUEUE_STATS = Script("queue_stats")
READY = Script("ready")
SWEEP = Script("sweep", "finishing", "sweeping")
SWEEP_PROJECT = Script("sweep_project", "staging", "log", "trimming", "sweeping")
PUBLISH = Script("publish", "conditions", "log", "trimming", alone=True)
LOG_TRIM = Script("log_trim", "log", "trimming", alone=True)
LOG_READ = Script("log_read", "log", alone=True)
TOPIC_PURGE = Script("topic_purge", "log", alone=True)
TOPIC_STATS = Script("topic_stats", "log", alone=True)
DOCUMENT_PUT = Script("document_put", "document", alone=True)
DOCUMENT_DELETE = Script("document_delete", "document", alone=True)
DOCUMENT_LIST = Script("document_list", "document", alone=True)
EXPECT = Script("expect", alone=True)
DUE = Script("due", alone=True, confirmed=False)
DUE_DONE = Script("due_done", alone=True, confirmed=False)
DEPTH = Script("depth")
CLOCK = Script("clock", alone=True, confirmed=False)
PING = Script("clock", alone=True)
