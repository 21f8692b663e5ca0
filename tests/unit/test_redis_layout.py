# SPDX-License-Identifier: Apache-2.0
"""The layout of the Redis driver: keys and records, without a server."""

import pytest

from zq.model import Committed, Draft, QueueRef
from zq.model.topics import Batch, Entry
from zq.storage.redis import batches, layout, replies, scripts, transactions

ODD = QueueRef("a{b}\x00\ud800\U0001f600", "q.1")


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
    every = [*keys.first, *(key for block in blocks for key in block)]
    tags = {key[: key.index(b"}") + 1] for key in every}
    assert len(every) == 41
    assert len(set(every)) == 41
    assert len(tags) == 1
    assert layout.keys(QueueRef("a", "q.1")).names.split(b"}")[0] not in {tag[:-1] for tag in tags}


def test_an_entry_of_the_expiry_schedule_names_odd_queues():
    """Moment, project and queue come back, and a project cannot look like another one with a longer queue name."""
    assert layout.queue_of(layout.schedule_entry(ODD, 1)[layout.MOMENT.size :]) == ODD
    assert layout.schedule_entry(QueueRef("a", "bc"), 1) != layout.schedule_entry(QueueRef("ab", "c"), 1)
    assert layout.bucket_of(ODD) == layout.bucket_of(ODD)


def test_buckets_share_the_load():
    used = {layout.bucket_of(QueueRef("acme", f"q{at}")) for at in range(2000)}
    assert len(used) == layout.BUCKETS


IDS = ["\u00e9" * 16, "0" * 32, "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f", "", "x"]


@pytest.mark.parametrize("id", IDS)
def test_a_draft_comes_back(id: str):
    """What the script completes is read as the message that was drafted."""
    draft = Draft(id, b'"b"', 60, 5, "\x00cl\U0001f600", "MD5:x", b"{}", "g\x00\U0001f600")
    blob = layout.FRONT.pack(0) + b"\1" + (7).to_bytes(6) + layout.draft(draft, 1_000_000)
    [found, again] = replies.messages(blob * 2, 0, 1_000_000)
    assert found == again
    assert (found.id, found.client, found.checksum, found.body) == (draft.id, draft.client, "MD5:x", b'"b"')
    assert (found.extra, found.group) == (draft.extra, draft.group)
    assert (found.created, found.expires, found.available, found.sequence) == (1000, 1060, 1005, 7)


@pytest.mark.parametrize("digits", ["0123456789abcdef" * 2, "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f"])
def test_an_id_of_digits_is_short_and_stays_as_it_is(digits: str):
    """One that only looks like it, by capitals, spaces or hyphens elsewhere, is another one."""
    others = [digits.upper(), " " + digits[1:], digits[:-1] + " ", digits[:-2] + "--", digits[:-1] + "\u0661", "-" * 36]
    others += [digits[:20] + "-" + digits[20:31], "".join(sorted(digits)), digits[:31], digits + "0"]
    every = {digits, *others}
    packed = {layout.packed(id) for id in every}
    assert len(packed) == len(every)
    assert {layout.unpacked(one) for one in packed} == every
    assert len(layout.packed(digits)) == 17


@pytest.mark.parametrize("name", ["post", "claim", "list"])
def test_a_script_begins_with_its_flags(name: str):
    """Redis reads them from the first line only; what is shared comes behind it."""
    lines = scripts.Script(name).load[1].decode().splitlines()
    assert lines[0].startswith("#!lua")
    assert sum(line.startswith("#!") for line in lines) == 1


def test_every_section_of_the_files_is_used():
    """And those that only read say so."""
    names = set(scripts.SECTIONS)
    used = [script for script in vars(scripts).values() if isinstance(script, scripts.Script)]
    assert names == {name for script in used for name in (script.name, *script.parts)}
    unconfirmed = {script.name for script in used if not script.confirmed}
    history = {"history_list", "history_all", "history_get"}
    assert unconfirmed == {
        "get",
        "list",
        "claim_get",
        "claim_list",
        "queue_list",
        "queue_stats",
        "depth",
        "clock",
        "due",
        "due_done",
        "work_list",
        "log_read",
        "topic_stats",
        "document_list",
        *history,
    }


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
        assert batches.edges(front) == (6, 7, 1.5)


def test_a_stage_tells_its_queues():
    """As the script keeps them: moment, bytes, number of queues; least ttl, length and name of each."""
    name = layout.text("\u00e9")
    kept = (
        transactions.STAGE.pack(9, 100, 2)
        + transactions.STAGED_QUEUE.pack(5, 1)
        + b"a"
        + transactions.STAGED_QUEUE.pack(7, len(name))
    )
    assert transactions.least_lives(kept + name) == {"a": 5, "\u00e9": 7}
    assert transactions.least_lives(b"") == {}


def test_a_producer_tells_its_last_batch():
    """A batch may have more digits than a number in Lua."""
    kept = transactions.PRODUCER.pack(9, 2, 3) + b"%d" % 10**30
    assert transactions.committed(kept, replayed=True) == Committed(10**30, 2, 3, replayed=True)
    assert transactions.expiry(kept) == 9


def test_both_halves_know_how_fast_a_log_goes_on():
    """The script that publishes, and the one who judges which markers it can have given."""
    assert f"PER_MS = {batches.PACE} " in scripts.part("publish")
