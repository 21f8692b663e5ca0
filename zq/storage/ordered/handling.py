# SPDX-License-Identifier: Apache-2.0
"""Single messages, deleted or held for longer or shorter by the claims that handed them out. ``handle`` needs the
queue's lock."""

from collections.abc import Sequence

from zq.model import Grip, Handled
from zq.storage.ordered.changes import Change, End
from zq.storage.ordered.layout import Found
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.scans import locate
from zq.storage.ordered.store import Store


def handle(store: Store, state: QueueState, grips: Sequence[Grip], late: bool, end: End) -> list[Handled]:
    """Do what is wanted of messages, no two alike, and say what was done; one change."""
    found = {record.id: (at, record) for at, record in locate(store, state, [grip.id for grip in grips], end.now)}
    change, handled = Change(store, end.now), []
    for grip in grips:
        sequence, record = found.get(grip.id, (0, None))
        if record is None:
            handled.append(Handled.GONE)
        elif sequence in state.reserved:
            handled.append(Handled.LOST)
        else:
            handled.append(grip.judge(record.claim, record.count, record.held(end.now), late))
            if handled[-1] is Handled.DONE:
                _handle(change, state, (sequence, record), grip, end)
    change.commit()
    return handled


def _handle(change: Change, state: QueueState, found: Found, grip: Grip, end: End) -> None:
    sequence, record = found
    if grip.hold is None:
        change.finish(state, sequence, record, end)
        return
    place = record.index_place()
    wait = record.available - record.ends
    if not record.held(end.now):  # it is claimed again, before its redelivery delay is over
        change.show(state, sequence)
    record.ends = end.now + grip.hold * 1000
    record.available = record.ends + wait
    change.rewrite(state, sequence, place, record)
