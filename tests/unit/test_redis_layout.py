# SPDX-License-Identifier: Apache-2.0
"""The layout of the Redis driver: keys and records, without a server."""

import pytest

from zq.model import Committed, Draft, QueueRef
from zq.storage.redis import batches, layout, listener, scripts, speech, stages
from zq.topics import Batch, Entry

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
    blocks = (
        keys.transactions,
        keys.answers,
        keys.history,
        *batches.whole(ODD.project),
        layout.content(ODD.project, "s.1"),
        layout.opened(ODD.project, "etl", 3),
    )
    more = [key for block in blocks for key in arguments(block.packed)]
    assert len(more) == sum(block.number for block in blocks)
    every = arguments(keys.project + keys.queue) + more
    tags = {key[: key.index(b"}") + 1] for key in every}
    assert len(every) == 37
    assert len(set(every)) == 37
    assert len(tags) == 1
    assert layout.keys(QueueRef("a", "q.1")).anchor.split(b"}")[0] not in {tag[:-1] for tag in tags}


def test_a_calendar_remembers_odd_queues():
    """Moment, project and queue come back, and a project cannot look like another one with a longer queue name."""
    assert layout.queue_of(layout.day(ODD, 1)[layout.MOMENT.size :]) == ODD
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
    assert names == {name for script in used for name in (script.name, *script.parts)}
    unconfirmed = {script.name for script in used if not script.confirmed}
    history = {"history_list", "history_all", "history_get"}
    assert unconfirmed == {
        "get",
        "list",
        "claim_get",
        "queue_list",
        "queue_stats",
        "depth",
        "clock",
        "due",
        "due_done",
        "log_read",
        "topic_stats",
        "document_list",
        *history,
    }


def test_published_names_are_read_however_they_arrive():
    """Cut anywhere, with other answers before and between, and with names that look like the protocol."""
    odd = QueueRef("a\r\n*3\r\n$7\r\nmessage\r\n$8\r\nzq:ready\r\n$2\r\nxx", "q.1")
    other = QueueRef("b", "q.2")
    told = [listener.MESSAGE + layout.wire(layout.full(queue)) for queue in (odd, other, odd)]
    welcome = b"*3\r\n" + layout.wire(b"subscribe", layout.READY) + b":1\r\n"
    stream = welcome + told[0] + b"*2\r\n" + layout.wire(b"pong", b"") + told[1] + told[2]
    for cut in range(len(stream)):
        first, rest = listener.heard(stream[:cut])
        second, rest = listener.heard(rest + stream[cut:])
        assert {layout.queue_of(name) for name in first | second} == {odd, other}
        assert len(rest) <= len(listener.MESSAGE)
    assert listener.heard(stream[:-1])[1].endswith(b"q.1\r")


def test_what_a_server_says_is_read_however_it_arrives():
    """Confirmations, batches that look like the protocol, errors and answers to a ping; cut anywhere."""
    batch = b"\r\n*3\r\n$8\r\nsmessage\r\n"
    told = [[b"ssubscribe", b"zq:{0}:feed", 1], [b"smessage", b"zq:{0}:feed", batch], [b"+PONG"], [b"-MOVED 1 x:1"]]
    told += [[b"pong", b""], [b"smessage", b"zq:{0}:feed", b""]]
    stream = b""
    for parts in told:
        plain = [b":%d\r\n" % part if isinstance(part, int) else layout.wire(part) for part in parts]
        stream += b"*%d\r\n" % len(parts) + b"".join(plain) if len(parts) > 1 else parts[0] + b"\r\n"
    for cut in range(len(stream) + 1):
        first, rest = speech.spoken(stream[:cut])
        second, rest = speech.spoken(rest + stream[cut:])
        assert (first + second, rest) == (told, b"")


def test_a_batch_comes_back():
    """Topics with names that look like digits or lengths, and what follows the batch."""
    entries = [Entry(b"[1]", 60, "MD5:x"), Entry(b"2", 61)]
    messages = batches.pack(entries)
    for topic in ("news", "0" * 30, "\ud800\x00", ""):
        name = layout.text(topic)
        front = len(name).to_bytes(2) + name + b"%016d" % 7 + batches.FRONT.pack(2, 1500, 61500, 62500, 5, 100)
        packed = layout.LENGTH.pack(len(messages)) + front + messages
        found = [batch.opened() for batch in batches.batches(b"!" + packed + packed, 1)]
        assert found == [Batch(topic, 6, 1.5, entries)] * 2
        assert batches.landmarks(front) == (6, 7, 1.5)


def test_a_stage_tells_its_queues():
    """As the script keeps them: moment, bytes, number of queues; least ttl, length and name of each."""
    name = layout.text("\u00e9")
    kept = stages.STAGE.pack(9, 100, 2) + stages.STAGED_QUEUE.pack(5, 1) + b"a" + stages.STAGED_QUEUE.pack(7, len(name))
    assert stages.least_lives(kept + name) == {"a": 5, "\u00e9": 7}
    assert stages.least_lives(b"") == {}


def test_a_producer_tells_its_last_batch():
    """A batch may have more digits than a number in Lua."""
    kept = stages.PRODUCER.pack(9, 2, 3) + b"%d" % 10**30
    assert stages.committed(kept, replayed=True) == Committed(10**30, 2, 3, replayed=True)
    assert stages.expiry(kept) == 9


def test_both_halves_know_how_fast_a_log_goes_on():
    """The script that publishes, and the one who judges which markers it can have given."""
    assert f"PER_MS = {batches.PACE} " in scripts.read("publish")
