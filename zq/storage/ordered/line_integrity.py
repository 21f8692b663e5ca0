# SPDX-License-Identifier: Apache-2.0
"""The integrity check and the salvage of the message group indexes; see the module ``lines``."""

from collections.abc import Callable, Iterator, Mapping

from zq.model import Grouping
from zq.storage.ordered import layout
from zq.storage.ordered.layout import QueueRecord, StoredMessage
from zq.storage.ordered.lines import LINE, encode_slot, line_entry, line_key
from zq.storage.ordered.log_integrity import Findings
from zq.storage.ordered.store import Write


def slot(grouping: Grouping, key: bytes, record: StoredMessage) -> bytes:
    """Return a message's key in ``lines``. ``key`` is the message's key in ``messages``."""
    number, sequence = layout.pair.unpack(key)
    return line_key(number, record.line) + encode_slot(grouping, record.available, sequence)


def parse_grouping(key: bytes) -> Grouping:
    """Determine the grouping of a queue from the key of one of its messages in ``lines``."""
    return Grouping.FAIR if layout.pair.unpack(key[LINE:])[0] else Grouping.ORDERED


class LineIntegrity:
    """The integrity check of message group indexes. ``queues`` maps queue numbers to queue records."""

    def __init__(self, findings: Findings, queues: Mapping[bytes, QueueRecord]) -> None:
        self._findings = findings
        self._store = findings.store
        self._queues = queues

    def grouping(self, number: bytes) -> Grouping:
        record = self._queues.get(number)
        return Grouping.NONE if record is None else record.grouping

    def check(self) -> None:
        """Check that index entries have messages, and that groups have valid heads and entries in ``available``."""
        line = head = b""
        for key, value in self._findings.entries("lines"):
            if not self.grouping(key[: layout.number.size]):
                self._check_former(key)
            elif len(key) == LINE:
                line, head = key, value
                if self._store.get("available", line_entry(key, value)[0]) != line_entry(key, value)[1]:
                    self._findings.contradict(f"available: nothing of the line {key.hex()}")
                if self._store.get("lines", key + value[layout.number.size :]) is None:
                    self._findings.contradict(f"lines: the head of {key.hex()} stands nowhere in it")
            else:
                self._check_place(key, has_head=bool(head) and key.startswith(line))

    def check_entry(self, key: bytes, value: bytes) -> None:
        """Check that an entry in ``available`` matches the head of its message group."""
        line = key[: layout.number.size] + value
        head = self._store.get("lines", line) or b""
        if len(head) != layout.triple.size or line_entry(line, head)[0] != key:
            self._findings.contradict(f"available: {key.hex()} is no line's entry")

    def _check_place(self, key: bytes, has_head: bool) -> None:
        number = key[: layout.number.size]
        message = number + key[-layout.number.size :]
        stored = self._store.get("messages", message)
        if stored is None or slot(self.grouping(number), message, layout.decode_record(stored)) != key:
            self._findings.contradict(f"lines: {key.hex()} is no message's place")
        elif not has_head:
            self._findings.contradict(f"lines: {key.hex()} stands in a line without a head")

    def _check_former(self, key: bytes) -> None:
        number = key[: layout.number.size]
        if self._store.get("default", layout.PENDING_QUEUE + number) is None:
            self._findings.contradict(f"lines: {key.hex()} is of no grouped queue")


class RebuiltLines:
    """The message group indexes that a salvage rebuilds from the messages; see the module ``lines``."""

    def __init__(self, former: Callable[[bytes], bytes]) -> None:
        """Create an empty collection. ``former`` returns a group's head in the damaged store, or b"" if unknown."""
        self._former = former
        self._heads: dict[bytes, tuple[bytes, int]] = {}

    def join(self, grouping: Grouping, key: bytes, record: StoredMessage) -> Write:
        """Add a message to its group, and return the write that stores the index entry."""
        where = slot(grouping, key, record)
        line, within = where[:LINE], where[LINE:]
        if line not in self._heads or within < self._heads[line][0]:
            self._heads[line] = within, record.available
        return "lines", where, b""

    def heads(self) -> Iterator[Write]:
        """Yield the writes that store the head of each group and the head's entry in ``available``."""
        for line, (within, available) in self._heads.items():
            head = self._former(line)
            if head[layout.number.size :] != within:
                head = layout.number.pack(available) + within
            yield "lines", line, head
            yield "available", *line_entry(line, head)
