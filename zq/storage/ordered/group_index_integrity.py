# SPDX-License-Identifier: Apache-2.0
"""The integrity check and the salvage of the message group indexes; see the module ``group_index``."""

from collections.abc import Callable, Iterator, Mapping

from zq.model import Grouping
from zq.storage.ordered import layout
from zq.storage.ordered.group_index import GROUP_KEY_SIZE, encode_slot, group_entry, group_key
from zq.storage.ordered.layout import QueueRecord, StoredMessage
from zq.storage.ordered.log_integrity import Findings
from zq.storage.ordered.store import Write


def slot(grouping: Grouping, key: bytes, record: StoredMessage) -> bytes:
    """Return a message's key in ``group_indexes``. ``key`` is the message's key in ``messages``."""
    number, sequence = layout.pair.unpack(key)
    return group_key(number, record.message_group) + encode_slot(grouping, record.available, sequence)


def parse_grouping(key: bytes) -> Grouping:
    """Determine the grouping of a queue from the key of one of its messages in ``group_indexes``."""
    return Grouping.FAIR if layout.pair.unpack(key[GROUP_KEY_SIZE:])[0] else Grouping.ORDERED


class GroupIndexIntegrity:
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
        group = head = b""
        for key, value in self._findings.entries("lines"):
            if not self.grouping(key[: layout.number.size]):
                self._check_former(key)
            elif len(key) == GROUP_KEY_SIZE:
                group, head = key, value
                if self._store.get("available", group_entry(key, value)[0]) != group_entry(key, value)[1]:
                    self._findings.contradict(f"available: nothing of the group {key.hex()}")
                if self._store.get("lines", key + value[layout.number.size :]) is None:
                    self._findings.contradict(f"lines: the head of {key.hex()} stands nowhere in it")
            else:
                self._check_place(key, has_head=bool(head) and key.startswith(group))

    def check_entry(self, key: bytes, value: bytes) -> None:
        """Check that an entry in ``available`` matches the head of its message group."""
        group = key[: layout.number.size] + value
        head = self._store.get("lines", group) or b""
        if len(head) != layout.triple.size or group_entry(group, head)[0] != key:
            self._findings.contradict(f"available: {key.hex()} is no group's entry")

    def _check_place(self, key: bytes, has_head: bool) -> None:
        number = key[: layout.number.size]
        message = number + key[-layout.number.size :]
        stored = self._store.get("messages", message)
        if stored is None or slot(self.grouping(number), message, layout.decode_record(stored)) != key:
            self._findings.contradict(f"lines: {key.hex()} is no message's place")
        elif not has_head:
            self._findings.contradict(f"lines: {key.hex()} stands in a group without a head")

    def _check_former(self, key: bytes) -> None:
        number = key[: layout.number.size]
        if self._store.get("default", layout.PENDING_QUEUE + number) is None:
            self._findings.contradict(f"lines: {key.hex()} is of no grouped queue")


class RebuiltGroupIndexes:
    """The message group indexes that a salvage rebuilds from the messages; see the module ``group_index``."""

    def __init__(self, former: Callable[[bytes], bytes]) -> None:
        """Create an empty collection. ``former`` returns a group's head in the damaged store, or b"" if unknown."""
        self._former = former
        self._heads: dict[bytes, tuple[bytes, int]] = {}

    def join(self, grouping: Grouping, key: bytes, record: StoredMessage) -> Write:
        """Add a message to its group, and return the write that stores the index entry."""
        where = slot(grouping, key, record)
        group, within = where[:GROUP_KEY_SIZE], where[GROUP_KEY_SIZE:]
        if group not in self._heads or within < self._heads[group][0]:
            self._heads[group] = within, record.available
        return "lines", where, b""

    def heads(self) -> Iterator[Write]:
        """Yield the writes that store the head of each group and the head's entry in ``available``."""
        for group, (within, available) in self._heads.items():
            head = self._former(group)
            if head[layout.number.size :] != within:
                head = layout.number.pack(available) + within
            yield "lines", group, head
            yield "available", *group_entry(group, head)
