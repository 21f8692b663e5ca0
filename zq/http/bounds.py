# SPDX-License-Identifier: Apache-2.0
"""``/v2/limits``: every limit in force (extensions 10)."""

import falcon
from msgspec.structs import asdict

from zq import limits, wire
from zq.broker import Broker

FIXED = {
    "min_message_ttl": limits.MIN_TTL,
    "min_claim_ttl": limits.MIN_TTL,
    "min_claim_grace": limits.MIN_TTL,
    "min_history_ttl": limits.MIN_TTL,
    "default_page": limits.DEFAULT_PAGE,
    "max_ids": limits.MAX_IDS,
    "max_queue_name": limits.MAX_NAME,
    "max_project_id": limits.MAX_PROJECT,
    "max_control_body": limits.MAX_CONTROL_BODY,
    "max_idempotency_key": limits.MAX_KEY,
    "max_reason": limits.MAX_REASON,
    "max_batch": limits.MAX_BATCH,
    "max_name": limits.MAX_FREE_NAME,
    "max_committed": limits.MAX_COMMITTED,
    "max_commit_body": limits.MAX_COMMIT_BODY,
}
"""Bounds that no option changes."""


class LimitsDocument:
    """``/v2/limits``"""

    def __init__(self, broker: Broker) -> None:
        self._fixed = asdict(broker.limits) | FIXED
        self._lifetimes = broker.lifetimes

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(self._fixed | {"default_message_ttl": self._lifetimes.default})
