# SPDX-License-Identifier: Apache-2.0
"""The values that travel between the layers, and the rules that need nothing but them.

No I/O, no clock, no JSON. Moments (``created``, ``available``, ``expires``, ``now``) are seconds since the epoch, UTC,
to the millisecond; ``ttl``, ``delay`` and ``grace`` are whole seconds. Bodies are raw JSON bytes.
Values of queues, messages, claims and transactions are imported from here, those of ``topics``, ``documents``,
``stats``, ``moments`` and ``expiry`` from their modules.
"""

from zq.model.claims import (
    MAX_LOOKS,
    Claim,
    Claimed,
    ClaimRequest,
    ClaimSummary,
    Holder,
    Lease,
    Release,
    Settled,
    Settlement,
)
from zq.model.messages import (
    Copies,
    Draft,
    HistoryEntry,
    IdempotencyKey,
    Message,
    Messages,
    Move,
    Outcome,
    Span,
    age,
    new_ids,
    portion,
)
from zq.model.queues import UNBOUNDED, Edge, ListFilter, Page, Queue, QueueRef, Ready, Seconds, Stats
from zq.model.transactions import MOST_STAGED, Bounds, ClaimRef, Commit, Committed, Fence, Unfinished

__all__ = [
    "MAX_LOOKS",
    "MOST_STAGED",
    "UNBOUNDED",
    "Bounds",
    "Claim",
    "ClaimRef",
    "ClaimRequest",
    "ClaimSummary",
    "Claimed",
    "Commit",
    "Committed",
    "Copies",
    "Draft",
    "Edge",
    "Fence",
    "HistoryEntry",
    "Holder",
    "IdempotencyKey",
    "Lease",
    "ListFilter",
    "Message",
    "Messages",
    "Move",
    "Outcome",
    "Page",
    "Queue",
    "QueueRef",
    "Ready",
    "Release",
    "Seconds",
    "Settled",
    "Settlement",
    "Span",
    "Stats",
    "Unfinished",
    "age",
    "new_ids",
    "portion",
]
