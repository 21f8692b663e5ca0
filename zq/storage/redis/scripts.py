# SPDX-License-Identifier: Apache-2.0
"""The Lua scripts, one per operation.

A file in the folder ``lua`` has sections. A section is a script or a part that several scripts share, and begins with
the line ``---- part name`` or ``---- script name: flags``.
"""

import re
from hashlib import sha1
from importlib.resources import files
from typing import Final

from zq.model.quotas import OVERHEAD
from zq.storage.api import FALSE_FUTURE

FOLDER: Final = files("zq.storage.redis") / "lua"
# Constants defined before the shared part.
CONSTANTS: Final = f"local FALSE_FUTURE, OVERHEAD = {FALSE_FUTURE * 1000}, {OVERHEAD}\n"
SECTION: Final = re.compile(r"^---- (?:part|script) (\w+)(?:: (.+))?\n", re.MULTILINE)


def read_sections() -> dict[str, tuple[str, str]]:
    """Read the sections of all files in the folder ``lua``, as a mapping from section name to (flags, text)."""
    found = {}
    for file in FOLDER.iterdir():
        if file.name.endswith(".lua"):
            _, *pieces = SECTION.split(file.read_text())
            for name, flags, text in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
                found[name] = (flags or "", text)
    return found


SECTIONS: Final = read_sections()


def part(name: str) -> str:
    return SECTIONS[name][1]


class Script:
    """A Lua script.

    The source consists of the part ``shared``, the parts ``parts``, and the script's own section, in this order. If
    ``alone`` is true, the part ``shared`` is left out.
    """

    def __init__(self, name: str, *parts: str, alone: bool = False, confirmed: bool = True) -> None:
        self.name = name
        self.parts = parts if alone else ("shared", *parts)
        flags, text = SECTIONS[name]
        constants = "" if alone else CONSTANTS
        # Redis reads the flags only from the first line.
        source = "".join([f"#!lua{flags and ' flags='}{flags}\n", constants, *map(part, self.parts), text])
        self.confirmed = confirmed and "no-writes" not in flags
        """Whether the client waits for replicas after the script, if ``wait_replicas`` is set."""
        self.call = b"EVALSHA", sha1(source.encode(), usedforsecurity=False).hexdigest().encode()
        """Start of the command for a server that has already loaded the script."""
        self.load = b"EVAL", source.encode()
        """Start of the command for a server that has not loaded the script. The command also loads the script."""


LINE_PARTS: Final = ("lines", "entries")
REMOVE_PARTS: Final = (*LINE_PARTS, "removing")
FINISH_PARTS: Final = (*REMOVE_PARTS, "finishing")
CHECK_PARTS: Final = (*REMOVE_PARTS, "taking")
LAPSE_PARTS: Final = (*CHECK_PARTS, "lane", "lapsing", "walking")
TAKE_PARTS: Final = (*LAPSE_PARTS, "choosing")
MOVE_PARTS: Final = ("posting", "moving")
GUARD_PARTS: Final = ("guarding",)
ONCE_PARTS: Final = ("conditions", "remembering")
CHANGE_PARTS: Final = ("changing", "releasing")
PUBLISH_PARTS: Final = ("staging", "publishing")

POST = Script("post", *ONCE_PARTS, "lines", "posting")
GET = Script("get", "entries")
LIST = Script("list", "entries", "lane")
BROWSE = Script("browse", *TAKE_PARTS)
DELETE = Script("delete", *CHECK_PARTS, "finishing")
POP = Script("pop", *TAKE_PARTS, "finishing")
MOVE = Script("move", *CHECK_PARTS, "finishing", *MOVE_PARTS)
CLAIM = Script("claim", *TAKE_PARTS, "changing", "conditions")
CLAIM_GET = Script("claim_get", "entries")
CLAIM_LIST = Script("claim_list", "entries")
RENEW = Script("renew", *LINE_PARTS, "changing", "conditions")
RELEASE = Script("release", *REMOVE_PARTS, *CHANGE_PARTS)
HANDLE = Script("handle", *CHECK_PARTS, "finishing", "changing")
SETTLE = Script("settle", *ONCE_PARTS, *FINISH_PARTS, *MOVE_PARTS, *CHANGE_PARTS)
HISTORY_LIST = Script("history_list", *FINISH_PARTS, "past")
HISTORY_NEWEST = Script("history_newest", *FINISH_PARTS, "past")
HISTORY_ALL = Script("history_all", *FINISH_PARTS, "past")
HISTORY_GET = Script("history_get", *FINISH_PARTS, "past")
STAGE = Script("stage", *ONCE_PARTS, "staging")
STAGE_DROP = Script("stage_drop", "staging")
COMMIT = Script("commit", "conditions", *CHECK_PARTS, "finishing", *MOVE_PARTS, *PUBLISH_PARTS)
CARRY = Script("carry", *FINISH_PARTS, *MOVE_PARTS, *PUBLISH_PARTS)
FENCE = Script("fence", "staging")
WORK_LIST = Script("work_list", "staging", confirmed=False)
QUEUE_CREATE = Script("queue_create", *GUARD_PARTS, "posting")
QUEUE_UPDATE = Script("queue_update")
QUEUE_LIST = Script("queue_list")
QUEUE_DELETE = Script("queue_delete", *GUARD_PARTS)
QUEUE_PURGE = Script("queue_purge")
QUEUE_STATS = Script("queue_stats", "entries")
READY = Script("ready", *LAPSE_PARTS, "counting")
DEPTH = Script("depth", "entries", "lane", "counting")
SWEEP = Script("sweep", *FINISH_PARTS, *ONCE_PARTS, "sweeping")
SWEEP_PROJECT = Script("sweep_project", *ONCE_PARTS, "staging", "log", "trimming", "sweeping")
PUBLISH = Script("publish", "conditions", "log", "trimming", alone=True)
LOG_TRIM = Script("log_trim", "log", "trimming", alone=True)
LOG_READ = Script("log_read", "log", alone=True)
TOPIC_PURGE = Script("topic_purge", "log", alone=True)
TOPIC_STATS = Script("topic_stats", "log", alone=True)
DOCUMENT_PUT = Script("document_put", "document", alone=True)
DOCUMENT_PUT_VITAL = Script("document_put_vital", "document", alone=True)
DOCUMENT_DELETE = Script("document_delete", "document", alone=True)
DOCUMENT_LIST = Script("document_list", "document", alone=True)
ADOPT_QUEUE = Script("adopt_queue", *GUARD_PARTS, "lines", "posting")
ADOPT_MESSAGES = Script("adopt_messages", *GUARD_PARTS, "lines", "entries")
ADOPT_HISTORY = Script("adopt_history", *GUARD_PARTS, *FINISH_PARTS)
ADOPT_KEYS = Script("adopt_keys", *GUARD_PARTS, *ONCE_PARTS)
ADOPT_WORK = Script("adopt_work", *GUARD_PARTS, "staging")
ADOPT_LOG = Script("adopt_log", *GUARD_PARTS, "log", "trimming")
ADOPT_BATCHES = Script("adopt_batches", *GUARD_PARTS, "log")
ADOPT_DOCUMENTS = Script("adopt_documents", *GUARD_PARTS, "document")
SCHEDULE = Script("schedule", alone=True)
DUE = Script("due", alone=True, confirmed=False)
DUE_DONE = Script("due_done", alone=True, confirmed=False)
CLOCK = Script("clock", alone=True, confirmed=False)
PING = Script("clock", alone=True)
LEVEL = Script("level", alone=True)
