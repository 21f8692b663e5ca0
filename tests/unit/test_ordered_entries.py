# SPDX-License-Identifier: Apache-2.0
"""The table of index entries of the ordered engine."""

from itertools import product

import pytest
from msgspec import structs

from zq.storage.ordered import layout
from zq.storage.ordered.entries import MESSAGE_OF, difference, message_changes, message_entries, message_removal
from zq.storage.ordered.layout import StoredMessage

KEY = layout.pair.pack(7, 3)
PROJECT = layout.project_prefix("acme")
RECORD = StoredMessage("id", 1000, 61_000, 1000, 60, "alice")
# Records of one message that differ in the fields that its index entries contain.
RECORDS = [
    structs.replace(RECORD, indexed=indexed, available=available, expires=expires)
    for indexed, available, expires in product((False, True), (1000, 2000), (61_000, 90_000))
]


def applied(entries: dict[tuple[str, bytes], bytes], writes: list) -> dict[tuple[str, bytes], bytes]:
    after = dict(entries)
    for family, key, value in writes:
        if value is None:
            del after[family, key]
        else:
            after[family, key] = value
    return after


def stored(record: StoredMessage) -> dict[tuple[str, bytes], bytes]:
    return applied({}, message_entries(PROJECT, KEY, record))


@pytest.mark.parametrize("old", RECORDS)
@pytest.mark.parametrize("new", RECORDS)
def test_changes_of_a_message_equal_the_difference_of_its_entries(old: StoredMessage, new: StoredMessage) -> None:
    """Only entries that differ are written."""
    writes = message_changes(KEY, old.index_fields(), new)
    expected = difference(message_entries(PROJECT, KEY, old), message_entries(PROJECT, KEY, new))
    assert sorted(writes, key=str) == sorted(expected, key=str)
    assert applied(stored(old), writes) == stored(new)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("body", [None, b"1"])
def test_a_removal_leaves_no_entry(record: StoredMessage, body: bytes | None) -> None:
    """The record and a separate body are removed with the index entries."""
    whole = stored(record) | {("messages", KEY): b"record"} | ({} if body else {("bodies", KEY): b"body"})
    assert applied(whole, message_removal(PROJECT, KEY, structs.replace(record, body=body))) == {}


@pytest.mark.parametrize("record", RECORDS)
def test_each_entry_leads_to_its_message(record: StoredMessage) -> None:
    """The integrity check and salvage find the message of an entry by its key and value."""
    for family, key, value in message_entries(PROJECT, KEY, record):
        assert value is not None
        assert MESSAGE_OF[family](key, value) == KEY
