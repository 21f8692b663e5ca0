# SPDX-License-Identifier: Apache-2.0
"""The layout of the Redis driver: keys and records, without a server."""

import pytest

from zq.model import Draft, QueueRef
from zq.storage.redis import layout, scripts

ODD = QueueRef("a{b}\x00\ud800\U0001f600", "q.1")


def arguments(packed: bytes) -> list[bytes]:
    """What ``layout.wire`` packed."""
    found = []
    while packed:
        length, _, packed = packed[1:].partition(b"\r\n")
        found.append(packed[: int(length)])
        packed = packed[int(length) + 2 :]
    return found


def test_the_keys_of_a_project_share_a_hash_tag():
    """One tag of hex digits between braces, whatever the project holds; other projects have others."""
    keys = layout.keys(ODD)
    every = arguments(keys.project + keys.queue)
    tags = {key[: key.index(b"}") + 1] for key in every}
    assert len(every) == 12
    assert len(set(every)) == 12
    assert len(tags) == 1
    assert layout.keys(QueueRef("a", "q.1")).anchor.split(b"}")[0] not in {tag[:-1] for tag in tags}


def test_a_calendar_remembers_odd_queues():
    """Moment, project and queue come back, and a project cannot look like another one with a longer queue name."""
    assert layout.queue_of(layout.day(ODD, 1)) == ODD
    assert layout.day(QueueRef("a", "bc"), 1) != layout.day(QueueRef("ab", "c"), 1)
    assert layout.calendar_of(ODD) == layout.calendar_of(ODD)


def test_calendars_share_the_load():
    used = {layout.calendar_of(QueueRef("acme", f"q{at}")) for at in range(2000)}
    assert len(used) == layout.CALENDARS


def test_a_record_comes_back():
    """What the script completes with a body is read as the message that was drafted."""
    draft = Draft("\u00e9" * 16, b"", 60, 5, "\x00cl\U0001f600", "MD5:x")
    blob = layout.record(draft, 1_000_000) + layout.LENGTH.pack(3) + b'"b"'
    [found] = layout.messages(blob, 0, 1_000_000)
    assert (found.id, found.client, found.checksum, found.body) == (draft.id, draft.client, "MD5:x", b'"b"')
    assert (found.created, found.expires, found.available) == (1000, 1060, 1005)


@pytest.mark.parametrize("name", ["post", "claim", "list"])
def test_a_script_begins_with_its_flags(name: str):
    """Redis reads them from the first line only; what is shared comes behind it."""
    lines = arguments(scripts.Script(name).load)[1].decode().splitlines()
    assert lines[0].startswith("#!lua")
    assert sum(line.startswith("#!") for line in lines) == 1


def test_every_script_in_the_folder_is_used():
    """And those that only read say so."""
    names = {file.name.removesuffix(".lua") for file in scripts.FOLDER.iterdir() if file.name.endswith(".lua")}
    used = [script for script in vars(scripts).values() if isinstance(script, scripts.Script)]
    assert names - {scripts.SHARED} == {script.name for script in used}
    unconfirmed = {script.name for script in used if not script.confirmed}
    assert unconfirmed == {"get", "list", "claim_get", "queue_list", "queue_stats", "clock"}
