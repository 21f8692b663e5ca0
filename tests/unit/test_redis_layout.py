# SPDX-License-Identifier: Apache-2.0
"""The key and record layout of the Redis driver, without a server."""

import pytest

from zq.model import QueueRef
from zq.storage.redis import batches, layout

ODD = QueueRef("a{b}\x00\ud800\U0001f600", "q.1")


def test_the_keys_of_a_project_share_a_hash_tag():
    """Each project has one tag of hex digits in braces, whatever names it contains, and tags of projects differ."""
    keys = layout.keys(ODD)
    blocks = (
        keys.transactions,
        keys.answers,
        keys.history,
        *batches.whole(ODD.project),
        layout.stage_key(ODD.project, "s.1"),
        layout.open_list_key(ODD.project, "etl", 3),
    )
    every = [*keys.first, *(key for block in blocks for key in block)]
    tags = {key[: key.index(b"}") + 1] for key in every}
    assert len(every) == 41
    assert len(set(every)) == 41
    assert len(tags) == 1
    assert layout.keys(QueueRef("a", "q.1")).names.split(b"}")[0] not in {tag[:-1] for tag in tags}


def test_an_entry_of_the_expiry_schedule_names_odd_queues():
    """Time, project and queue can be decoded, and entries of different projects and queues never coincide."""
    assert layout.decode_full_name(layout.schedule_entry(ODD, 1)[layout.MOMENT.size :]) == ODD
    assert layout.schedule_entry(QueueRef("a", "bc"), 1) != layout.schedule_entry(QueueRef("ab", "c"), 1)
    assert layout.queue_bucket_key(ODD) == layout.queue_bucket_key(ODD)


@pytest.mark.parametrize("digits", ["0123456789abcdef" * 2, "5ef2a3c0-1d4b-4c8e-9a5e-0f6b1c2d3e4f"])
def test_packed_ids_that_look_alike_stay_apart(digits: str):
    """An id of hex digits is packed into 17 bytes; ids with capitals, spaces or other hyphens differ."""
    others = [digits.upper(), " " + digits[1:], digits[:-1] + " ", digits[:-2] + "--", digits[:-1] + "\u0661", "-" * 36]
    others += [digits[:20] + "-" + digits[20:31], "".join(sorted(digits)), digits[:31], digits + "0"]
    every = {digits, *others}
    packed = {layout.pack_id(id) for id in every}
    assert len(packed) == len(every)
    assert {layout.unpack_id(one) for one in packed} == every
    assert len(layout.pack_id(digits)) == 17
