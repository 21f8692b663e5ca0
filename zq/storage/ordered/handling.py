# SPDX-License-Identifier: Apache-2.0
"""Deletion of single claimed messages and changes of their claims. The caller of ``handle`` holds the queue's lock."""

from collections.abc import Sequence

from zq.model import Grip, HandleOutcome
from zq.model.claims import DONE
from zq.storage.ordered.changes import Change, Completion
from zq.storage.ordered.layout import Found
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.scans import locate
from zq.storage.ordered.store import Store


def handle(store: Store, state: QueueState, grips: Sequence[Grip], late: bool, end: Completion) -> list[HandleOutcome]:
    """Apply the operations ``grips``, which are on different messages, in one change.

    Return the outcomes in the order of ``grips``.
    """
    found = {record.id: (at, record) for at, record in locate(store, state, [grip.id for grip in grips], end.now)}
    change, handled = Change(store, end.now), []
    for grip in grips:
        if grip.id not in found:
            handled.append(HandleOutcome.GONE)
            continue
        sequence, record = found[grip.id]
        if sequence in state.reserved:
            handled.append(HandleOutcome.LOST)
            continue
        age = (end.now - record.claimed) // 1000
        judged = grip.decide(record.claim, record.count, late or record.is_held(end.now), age)
        handled.append(judged)
        if judged is DONE:
            if grip.hold is None:
                change.finish(state, sequence, record, end)
            else:
                _hold(change, state, (sequence, record), grip.hold, end.now)
    change.commit()
    return handled


def _hold(change: Change, state: QueueState, found: Found, seconds: int, now: int) -> None:
    """Make the message's claim end ``seconds`` from now."""
    sequence, record = found
    place = record.index_fields()
    wait = record.available - record.ends
    if not record.is_held(now):  # the claim has expired and the message is claimed again during its redelivery delay
        change.invalidate_visibility(state, sequence)
    record.ends = now + seconds * 1000
    record.available = record.ends + wait
    change.rewrite(state, sequence, place, record)
