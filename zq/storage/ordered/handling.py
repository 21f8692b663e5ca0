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
    change = Change(store, end.now)
    handled = [
        _handle(change, state, found[grip.id], grip, late, end) if grip.id in found else Handled.GONE for grip in grips
    ]
    change.commit()
    return handled


def _handle(change: Change, state: QueueState, found: Found, grip: Grip, late: bool, end: End) -> Handled:
    sequence, record = found
    if sequence in state.reserved:
        return Handled.LOST
    judged = grip.judge(record.claim, record.count, late or record.held(end.now))
    if judged is Handled.DONE:
        if grip.hold is None:
            change.finish(state, sequence, record, end)
        else:
            _hold(change, state, found, grip.hold, end.now)
    return judged


def _hold(change: Change, state: QueueState, found: Found, seconds: int, now: int) -> None:
    """Let the claim end so many seconds from now."""
    sequence, record = found
    place = record.index_place()
    wait = record.available - record.ends
    if not record.held(now):  # it is claimed again, before its redelivery delay is over
        change.show(state, sequence)
    record.ends = now + seconds * 1000
    record.available = record.ends + wait
    change.rewrite(state, sequence, place, record)
