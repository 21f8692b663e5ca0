# SPDX-License-Identifier: Apache-2.0
"""The Lua scripts, one per verb.

A file of them holds sections: parts, which several scripts need, and scripts. A section begins with a line
``---- part name`` or ``---- script name: flags``.
"""

import re
from hashlib import sha1
from importlib.resources import files
from typing import Final

from zq.model.moments import FALSE_FUTURE
from zq.model.quotas import OVERHEAD

FOLDER: Final = files("zq.storage.redis") / "lua"
# Constants in front of what is shared.
CONSTANTS: Final = f"local FALSE_FUTURE, OVERHEAD = {FALSE_FUTURE * 1000}, {OVERHEAD}\n"
SECTION: Final = re.compile(r"^---- (?:part|script) (\w+)(?:: (.+))?\n", re.MULTILINE)


def read_sections() -> dict[str, tuple[str, str]]:
    """Flags and text of each section, by name."""
    found = {}
    for file in FOLDER.iterdir():
        if file.name.endswith(".lua"):
            _, *pieces = SECTION.split(file.read_text())
            for name, flags, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
                found[name] = (flags or "", text)
    return found


SECTIONS: Final = read_sections()


def part(name: str) -> str:
    """The text of a part."""
    return SECTIONS[name][1]


class Script:
    """A script of the name. What it needs of others goes in front: ``shared``, unless it stands ``alone``, and then
    ``parts``."""

    def __init__(self, name: str, *parts: str, alone: bool = False, confirmed: bool = True) -> None:
        self.name = name
        self.parts = parts if alone else ("shared", *parts)
        flags, text = SECTIONS[name]
        constants = "" if alone else CONSTANTS
        # Redis reads the flags from the first line only.
        source = "".join([f"#!lua{flags and ' flags='}{flags}\n", constants, *map(part, self.parts), text])
        self.confirmed = confirmed and "no-writes" not in flags
        """Whether replicas are to have what it writes, where that is asked for."""
        self.call = b"EVALSHA", sha1(source.encode(), usedforsecurity=False).hexdigest().encode()
        """The front of the command for a server that knows the script."""
        self.load = b"EVAL", source.encode()
        """The same for one that does not; it knows it then."""


POST = Script("post", "conditions", "remembering", "posting")
GET = Script("get")
LIST = Script("list")
DELETE = Script("delete", "finishing")
POP = Script("pop", "finishing")
MOVE = Script("move", "finishing", "posting", "moving")
CLAIM = Script("claim", "conditions")
CLAIM_GET = Script("claim_get")
RENEW = Script("renew", "conditions")
RELEASE = Script("release", "releasing")
SETTLE = Script("settle", "conditions", "remembering", "finishing", "posting", "moving", "releasing")
HISTORY_LIST = Script("history_list", "finishing", "past")
HISTORY_ALL = Script("history_all", "finishing", "past")
HISTORY_GET = Script("history_get", "finishing", "past")
STAGE = Script("stage", "conditions", "remembering", "staging")
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
SWEEP = Script("sweep", "finishing", "conditions", "remembering", "sweeping")
SWEEP_PROJECT = Script("sweep_project", "conditions", "remembering", "staging", "log", "trimming", "sweeping")
PUBLISH = Script("publish", "conditions", "log", "trimming", alone=True)
LOG_TRIM = Script("log_trim", "log", "trimming", alone=True)
LOG_READ = Script("log_read", "log", alone=True)
TOPIC_PURGE = Script("topic_purge", "log", alone=True)
TOPIC_STATS = Script("topic_stats", "log", alone=True)
DOCUMENT_PUT = Script("document_put", "document", alone=True)
DOCUMENT_DELETE = Script("document_delete", "document", alone=True)
DOCUMENT_LIST = Script("document_list", "document", alone=True)
SCHEDULE = Script("schedule", alone=True)
DUE = Script("due", alone=True, confirmed=False)
DUE_DONE = Script("due_done", alone=True, confirmed=False)
DEPTH = Script("depth")
CLOCK = Script("clock", alone=True, confirmed=False)
PING = Script("clock", alone=True)
