# SPDX-License-Identifier: Apache-2.0
"""The Lua scripts, one per verb, as they are sent."""

from hashlib import sha1
from importlib.resources import files

from zq.storage.redis.layout import wire

SHARED = "shared"
FOLDER = files("zq.storage.redis")


class Script:
    """A script of the name. Its first line says with which flags it runs, so ``shared.lua`` goes behind that."""

    def __init__(self, name: str, *, alone: bool = False, confirmed: bool = True) -> None:
        self.name = name
        first, _, rest = read(name).partition("\n")
        source = f"{first}\n{rest}" if alone else f"{first}\n{read(SHARED)}{rest}"
        self.confirmed = confirmed and "no-writes" not in first
        """Whether replicas are to have what it writes, where that is asked for."""
        self.call = wire(b"EVALSHA", sha1(source.encode()).hexdigest().encode())
        """The front of the command for a server that knows the script."""
        self.load = wire(b"EVAL", source.encode())
        """The same for one that does not; it knows it then."""


def read(name: str) -> str:
    """The text of a script's file."""
    return FOLDER.joinpath(f"{name}.lua").read_text()


POST = Script("post")
GET = Script("get")
LIST = Script("list")
DELETE = Script("delete")
DELETE_MANY = Script("delete_many")
POP = Script("pop")
CLAIM = Script("claim")
CLAIM_GET = Script("claim_get")
RENEW = Script("renew")
RELEASE = Script("release")
QUEUE_CREATE = Script("queue_create")
QUEUE_UPDATE = Script("queue_update")
QUEUE_LIST = Script("queue_list")
QUEUE_DELETE = Script("queue_delete")
QUEUE_PURGE = Script("queue_purge")
QUEUE_STATS = Script("queue_stats")
SWEEP = Script("sweep")
EXPECT = Script("expect", alone=True)
CLOCK = Script("clock", alone=True, confirmed=False)
PING = Script("clock", alone=True)
